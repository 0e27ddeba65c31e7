"""`discopatch train`: its options land in the run."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from discopatch.cli import app
from discopatch.errors import DiscopatchError, ParameterError, RunError
from discopatch.model import Weights
from tests.training.tiny import photo_folder

TINY = ("--preset", "tiny", "--set", "images=2", "--set", "patches=2")


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return photo_folder(tmp_path_factory.mktemp("photos"))


@pytest.fixture
def train(photos, tmp_path_factory, tmp_path):
    cache = tmp_path_factory.getbasetemp() / "cli-cache"

    def run(*arguments: object):
        command = ["train", str(photos), "--out", str(tmp_path / "run"), "--cache", str(cache), *map(str, arguments)]
        return CliRunner().invoke(app, command)

    return run


def config_of(run: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((run / "run.json").read_text())["config"]
    return found


def test_options_and_settings_land_in_the_run(train, tmp_path) -> None:
    settings = ("beta1=0.5", "grouping=batch", "fit=squash", "normalisation=instance", "vae=false", "weight_degraded=1")
    given = (argument for setting in settings for argument in ("--set", setting))
    done = train(*TINY, "--steps", 2, "--lr", 0.003, "--seed", 9, "--set", "checkpoint_every=1", *given)
    assert done.exit_code == 0, done.output
    config = config_of(tmp_path / "run")
    assert (config["learning_rate"], config["beta1"], config["seed"], config["steps"]) == (0.003, 0.5, 9, 2)
    assert (config["grouping"], config["vae"], config["weight_degraded"]) == ("batch", False, 1.0)
    assert (config["transform"]["fit"], config["architecture"]["normalisation"]) == ("squash", "instance")
    assert (config["images"], config["decay"]) == (2, 0.0), "as given, and as the preset has it"
    assert len(list((tmp_path / "run" / "checkpoints").iterdir())) == 2


def test_a_run_begins_from_released_weights(train, tmp_path) -> None:
    settings = ("images=1", "patches=1", "vae=false")
    given = (argument for setting in settings for argument in ("--set", setting))
    done = train("--from", "natural-small-v2", "--steps", 1, *given)
    assert done.exit_code == 0, done.output
    description = json.loads((tmp_path / "run" / "run.json").read_text())
    assert (description["start"], description["config"]["preset"]) == ("6008f867079c4e56", "natural-small-v2")
    trained = Weights.load(tmp_path / "run" / "discriminator.safetensors")
    assert trained.discriminator.architecture.hidden == (8, 16, 40, 112, 240)


def test_a_teacher_is_named_by_its_digest_and_has_weight_1(train, tmp_path) -> None:
    assert train(*TINY, "--steps", 1).exit_code == 0
    weights = (tmp_path / "run").rename(tmp_path / "teacher") / "discriminator.safetensors"
    done = train(*TINY, "--steps", 1, "--set", "weight_degraded=1", "--teacher", weights, "--from", weights)
    assert done.exit_code == 0, done.output
    config = config_of(tmp_path / "run")
    assert (config["weight_distilled"], config["teachers"]) == (1.0, {"discriminator": Weights.load(weights).digest})
    assert train("--steps", 2, "--resume", "--teacher", weights).exit_code == 0


def test_a_preset_with_teachers_names_the_command_that_downloads_them(train, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "nothing"))
    error = train("--preset", "natural-v3", "--steps", 1).exception
    assert isinstance(error, DiscopatchError)
    assert "discopatch data fetch" in str(error)
    assert not (tmp_path / "run").exists()


def test_resume_keeps_the_settings_and_refuses_others(train) -> None:
    assert train(*TINY, "--steps", 2, "--lr", 0.003).exit_code == 0
    longer = train("--resume", "--steps", 3)
    assert longer.exit_code == 0, longer.output
    assert "complete after step 3" in longer.output
    for arguments in (("--lr", 0.1), ("--preset", "paper")):
        assert isinstance(train("--resume", *arguments).exception, RunError)


@pytest.mark.parametrize("arguments", [("--preset", "huge"), ("--lr", "-1"), ("--set", "fit=pad")])
def test_a_wrong_value_is_refused_before_anything_is_written(train, tmp_path, arguments) -> None:
    assert isinstance(train("--preset", "tiny", *arguments).exception, ParameterError)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("setting", ["depth=3", "images", "teachers={}"])
def test_an_unknown_setting_is_refused(train, setting: str) -> None:
    done = train("--preset", "tiny", "--set", setting)
    assert done.exit_code == 2
    assert "--set" in done.output
