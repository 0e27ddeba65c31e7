"""`discopatch train`: its flags are the fields of the settings, and land in the run."""

import json
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest
from typer.testing import CliRunner

from discopatch.cli import app, main
from discopatch.cli.train import choose_config
from discopatch.errors import ParameterError, RunError, WeightsError
from discopatch.training import get_preset
from discopatch.training.config import Hardware, RunOptions, TrainingConfig
from tests.training.tiny import photo_folder

TINY = ("--preset", "tiny", "--images", "2", "--patches", "2")


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


@pytest.mark.parametrize("settings", [TrainingConfig, Hardware, RunOptions])
def test_every_setting_is_a_flag(settings: type) -> None:
    printed = CliRunner().invoke(app, ["train", "--help"], env={"COLUMNS": "200"}).output
    flags = {
        "architecture": "normalisation",
        "transform": "fit",
        "learning_rate": "lr",
        "limits": "max_pixels",
        "teachers": "teacher",
    }
    for field in fields(settings):
        assert f"--{flags.get(field.name, field.name).replace('_', '-')}" in printed


def test_help_does_not_wait_for_torch() -> None:
    code = (
        "import sys\n"
        "from discopatch.cli import main\n"
        "sys.argv = ['discopatch', 'train', '--help']\n"
        "try:\n"
        "    main()\n"
        "except SystemExit:\n"
        "    print('torch imported:', 'torch' in sys.modules, 'numpy imported:', 'numpy' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.endswith("torch imported: False numpy imported: False\n")


def test_flags_land_in_the_runs_json(train, tmp_path) -> None:
    done = train(
        *TINY, "--steps", 2, "--lr", 0.003, "--beta1", 0.5, "--weight-kl", 0.01, "--grouping", "batch", "--seed", 9,
        "--fit", "squash", "--normalisation", "instance", "--no-vae", "--weight-degraded", 1,
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    config = json.loads((tmp_path / "run" / "run.json").read_text())["config"]
    assert (config["learning_rate"], config["beta1"], config["weight_kl"], config["seed"]) == (0.003, 0.5, 0.01, 9)
    assert (config["grouping"], config["vae"], config["weight_degraded"]) == ("batch", False, 1.0)
    assert config["transform"]["fit"] == "squash"
    assert config["architecture"]["normalisation"] == "instance"
    assert (config["images"], config["decay"]) == (2, 0.0), "as given, and as the preset has it"


def test_a_teacher_is_named_by_its_digest_and_has_weight_1(train, tmp_path) -> None:
    assert train(*TINY, "--steps", 1).exit_code == 0
    weights = (tmp_path / "run").rename(tmp_path / "teacher") / "discriminator.safetensors"
    done = train(*TINY, "--steps", 1, "--weight-degraded", 1, "--teacher", weights, "--start", weights)
    assert done.exit_code == 0, done.output
    config = json.loads((tmp_path / "run" / "run.json").read_text())["config"]
    assert config["weight_distilled"] == 1.0
    assert [(name, len(digest)) for name, digest in config["teachers"].items()] == [("discriminator", 16)]


def test_a_preset_with_teachers_says_how_to_get_them_or_to_do_without(train, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "nothing"))
    error = train("--preset", "natural-v2", "--steps", 1).exception
    assert isinstance(error, WeightsError)
    assert "discopatch data fetch resnet50 efficientnet-lite0" in str(error)
    assert not (tmp_path / "run").exists()
    changes = dict.fromkeys(field.name for field in fields(TrainingConfig) if "help" in field.metadata)
    alone = choose_config(None, "natural-v2", None, None, {**changes, "weight_distilled": 0.0}, teacher=None)
    assert (alone.teachers, alone.weight_distilled) == ({}, 0.0)
    other = choose_config(None, "natural-v2", None, None, changes, teacher="0123456789abcdef")
    assert other.teachers == {**get_preset("natural-v2").teachers, "discriminator": "0123456789abcdef"}


def test_resume_needs_no_flag_again_and_refuses_one_that_contradicts(train) -> None:
    assert train(*TINY, "--steps", 2, "--lr", 0.003).exit_code == 0
    longer = train("--resume", "--steps", 3)
    assert longer.exit_code == 0, longer.output
    assert "complete after step 3" in longer.output
    for arguments, named in ((("--lr", 0.1), "learning_rate was 0.003, now 0.1"), (("--preset", "paper"), "tiny")):
        error = train("--resume", *arguments).exception
        assert isinstance(error, RunError)
        assert named in str(error)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("--preset", "huge"), "'huge'"),
        (("--preset", "tiny", "--lr", "-1"), "learning_rate is -1.0"),
    ],
)
def test_a_wrong_value_is_refused_before_anything_is_written(train, tmp_path, arguments, named) -> None:
    error = train(*arguments).exception
    assert isinstance(error, ParameterError)
    assert named in str(error)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(("flag", "value"), [("--grouping", "row"), ("--fit", "pad"), ("--normalisation", "layer")])
def test_a_wrong_choice_is_refused_by_the_parser(train, tmp_path, flag: str, value: str) -> None:
    done = train("--preset", "tiny", flag, value)
    assert done.exit_code == 2
    assert value in done.output
    assert not (tmp_path / "run").exists()


def test_an_error_is_one_line_without_a_traceback(monkeypatch, capsys, tmp_path) -> None:
    monkeypatch.setattr("sys.argv", ["discopatch", "train", str(tmp_path / "nowhere"), "--out", str(tmp_path / "run")])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 1
    printed = capsys.readouterr().err.splitlines()
    assert len(printed) == 1
    assert printed[0].startswith("error: ")
    assert "nowhere" in printed[0]
