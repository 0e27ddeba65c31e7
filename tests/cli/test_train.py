import json
from dataclasses import fields
from pathlib import Path

import pytest
from typer.testing import CliRunner

from discopatch.cli import app, main
from discopatch.training.recipe import Recipe
from tests.training.tiny import photo_folder

TINY = ("--preset", "tiny", "--images", "2", "--patches", "2")


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return photo_folder(tmp_path_factory.mktemp("photos"))


@pytest.fixture
def train(photos, tmp_path_factory, tmp_path):
    cache = tmp_path_factory.getbasetemp() / "cli-cache"

    def run(*words: object):
        command = ["train", str(photos), "--out", str(tmp_path / "run"), "--cache", str(cache), *map(str, words)]
        return CliRunner().invoke(app, command)

    return run


def test_every_hyper_parameter_is_a_flag() -> None:
    text = CliRunner().invoke(app, ["train", "--help"], env={"COLUMNS": "200"}).output
    flags = {"architecture": "normalisation", "transform": "fit", "learning_rate": "lr"}
    for field in fields(Recipe):
        assert f"--{flags.get(field.name, field.name).replace('_', '-')}" in text


def test_flags_land_in_the_runs_json(train, tmp_path) -> None:
    done = train(
        *TINY, "--steps", 2, "--lr", 0.003, "--beta1", 0.5, "--weight-kl", 0.01, "--grouping", "batch", "--seed", 9,
        "--fit", "squash", "--normalisation", "instance",
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    recipe = json.loads((tmp_path / "run" / "run.json").read_text())["recipe"]
    assert (recipe["learning_rate"], recipe["beta1"], recipe["weight_kl"], recipe["seed"]) == (0.003, 0.5, 0.01, 9)
    assert recipe["grouping"] == "batch"
    assert recipe["transform"]["fit"] == "squash"
    assert recipe["architecture"]["normalisation"] == "instance"


def test_resume_needs_no_flag_again_and_refuses_one_that_contradicts(train, tmp_path) -> None:
    assert train(*TINY, "--steps", 2, "--lr", 0.003).exit_code == 0
    longer = train("--resume", "--steps", 3)
    assert longer.exit_code == 0, longer.output
    assert "complete after step 3" in longer.output
    assert "learning_rate was 0.003, now 0.1" in str(train("--resume", "--lr", 0.1).exception)
    assert "begun with the preset tiny" in str(train("--resume", "--preset", "paper").exception)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--preset", "huge"), "unknown preset 'huge': choose one of paper, natural, full, small"),
        (("--preset", "tiny", "--grouping", "row"), "unknown grouping 'row'"),
        (("--preset", "tiny", "--lr", "-1"), "learning_rate is -1.0: it must be above 0"),
        (("--preset", "tiny", "--fit", "pad"), "fit 'pad': must be one of crop, squash"),
    ],
)
def test_a_wrong_flag_is_refused_before_anything_is_written(train, tmp_path, words, told) -> None:
    assert told in str(train(*words).exception)
    assert not (tmp_path / "run").exists()


def test_an_error_is_one_line_without_a_traceback(monkeypatch, capsys, tmp_path) -> None:
    monkeypatch.setattr("sys.argv", ["discopatch", "train", str(tmp_path / "nowhere"), "--out", str(tmp_path / "run")])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 1
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 1
    assert said[0].startswith("error: no such file or folder")
