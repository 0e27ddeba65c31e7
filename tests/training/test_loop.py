import io
import json
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from rich.console import Console

from discopatch.model.weights import Weights
from discopatch.training.checkpoint import CheckpointError
from discopatch.training.log import COLUMNS, read_losses
from discopatch.training.loop import Ending, Habits, Outcome, TrainingDiverged, train
from discopatch.training.machine import Machine
from discopatch.training.run import RunError
from tests.training.tiny import tiny_recipe

QUIET = Console(quiet=True)


@pytest.fixture
def go(photos: Path, cache: Path, tmp_path: Path):
    """Trains into a folder of this test; everything else as little as possible."""

    def run(name: str = "run", *, source: object = None, resume: bool = False, habits=Habits(), **recipe) -> Outcome:  # noqa: B008
        return train(
            str(photos) if source is None else source,
            tmp_path / name,
            tiny_recipe(**recipe),
            cache=cache,
            resume=resume,
            habits=habits,
            console=QUIET,
        )

    return run


def tensors(outcome: Outcome) -> dict[str, torch.Tensor]:
    return Weights.load(outcome.weights).discriminator.state_dict()


def assert_same_run(one: Outcome, other: Outcome) -> None:
    assert (one.weights.parent / "losses.csv").read_text() == (other.weights.parent / "losses.csv").read_text()
    assert all(torch.equal(tensors(one)[name], value) for name, value in tensors(other).items())


def test_the_same_seed_gives_the_same_run_twice_and_another_seed_another(go) -> None:
    assert_same_run(go("one", seed=4), go("two", seed=4))
    assert (go("three", seed=5).weights.parent / "losses.csv").read_text() != go("four", seed=4).weights.with_name(
        "losses.csv"
    ).read_text()


def test_a_run_continued_later_equals_one_in_one_go(go) -> None:
    whole = go("whole", steps=12)
    go("parts", steps=5)
    go("parts", steps=7, resume=True)
    assert_same_run(whole, go("parts", steps=12, resume=True))


def test_habits_change_what_is_written_and_nothing_else(go) -> None:
    often = Habits(checkpoint_every=1, samples_every=1, log_every=1)
    assert_same_run(go("often", habits=often), go("seldom"))


def test_the_fused_passes_learn_the_same(go, photos, cache, tmp_path) -> None:
    plain = go("plain", steps=6)
    fused = train(
        str(photos), tmp_path / "fused", tiny_recipe(steps=6), cache=cache, machine=Machine(compile=True), console=QUIET
    )
    expected, found = (np.array(read_losses(each.weights.with_name("losses.csv"))) for each in (plain, fused))
    np.testing.assert_allclose(found, expected, rtol=1e-3)


def test_a_plain_run_can_go_on_fused_and_the_other_way_round(go, photos, cache, tmp_path) -> None:
    for first, then in ((False, True), (True, False)):
        for steps, compile in ((2, first), (4, then)):
            outcome = train(
                str(photos),
                tmp_path / f"{first}",
                tiny_recipe(steps=steps),
                cache=cache,
                resume=steps == 4,
                machine=Machine(compile=compile),
                console=QUIET,
            )
        assert outcome.step == 4


def test_the_csv_has_a_line_for_every_step(go) -> None:
    outcome = go(steps=7)
    lines = outcome.weights.with_name("losses.csv").read_text().splitlines()
    assert lines[0].split(",") == list(COLUMNS)
    assert [line.split(",")[0] for line in lines[1:]] == [str(step) for step in range(1, 8)]


def test_the_runs_json_names_everything_that_decided_it(go, photos) -> None:
    outcome = go(seed=11)
    description = json.loads(outcome.weights.with_name("run.json").read_text())
    assert description["recipe"] == tiny_recipe(seed=11).to_dict()
    assert description["torch"] == torch.__version__
    assert description["discopatch"]
    assert len(description["data_digest"]) == 64
    assert description["transform_digest"] == tiny_recipe().transform.digest
    assert Weights.load(outcome.weights).origin["step"] == 12


def test_pictures_of_patches_show_real_reconstructed_and_generated(go) -> None:
    outcome = go(steps=4, habits=Habits(samples_every=2))
    pictures = sorted((outcome.weights.parent / "samples").glob("*.png"))
    assert [path.stem for path in pictures] == ["step-000000002", "step-000000004"]
    with Image.open(pictures[0]) as picture:
        assert picture.size == (2 * 16, 3 * 16)
        real = np.asarray(picture)[:16]
    assert real.std() > 5


def test_tensorboard_gets_every_loss(go) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    outcome = go(steps=4, habits=Habits(tensorboard=True))
    events = EventAccumulator(str(outcome.weights.parent / "tensorboard"))
    events.Reload()
    assert [event.step for event in events.Scalars("loss/discriminator")] == [1, 2, 3, 4]


def test_weights_and_biases_gets_the_recipe_and_every_loss(go, monkeypatch) -> None:
    class Told:
        def __init__(self) -> None:
            self.started: list[dict[str, Any]] = []
            self.steps: list[int] = []
            self.finished = 0

        def init(self, **settings: Any) -> "Told":
            self.started.append(settings)
            return self

        def log(self, losses: dict[str, float], step: int) -> None:
            assert losses.keys() == {f"loss/{name}" for name in COLUMNS[1:]}
            self.steps.append(step)

        def finish(self) -> None:
            self.finished += 1

    told = Told()
    monkeypatch.setitem(sys.modules, "wandb", told)
    go(steps=3, habits=Habits(wandb="cameras"))
    go(steps=5, habits=Habits(wandb="cameras"), resume=True)
    assert told.steps == [1, 2, 3, 4, 5]
    assert told.finished == 2
    first, second = told.started
    assert (first["project"], first["config"]["recipe"]["steps"]) == ("cameras", 3)
    assert (first["id"], first["resume"], second["resume"]) == (second["id"], None, "allow")


def test_a_missing_logger_says_what_to_install(go, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'discopatch\[wandb\]'"):
        go(habits=Habits(wandb="project"))


@pytest.mark.filterwarnings("ignore:overflow")
def test_a_loss_that_is_no_number_stops_with_the_step_the_losses_and_the_last_good_checkpoint(go, tmp_path) -> None:
    go(steps=4, habits=Habits(checkpoint_every=4))
    poison_the_newest_checkpoint(tmp_path / "run")
    with pytest.raises(
        TrainingDiverged, match=r"step 5: .*discriminator inf.*last good checkpoint is .*step-000000004"
    ):
        go(steps=8, resume=True, habits=Habits(checkpoint_every=1))
    assert [path.stem for path in sorted((tmp_path / "run" / "checkpoints").glob("step-*"))] == ["step-000000004"]


def poison_the_newest_checkpoint(run: Path) -> None:
    """A weight so large that the next step must overflow, though it is still a number."""
    from safetensors import safe_open
    from safetensors.torch import load_file, save_file

    path = max((run / "checkpoints").glob("step-*"))
    with safe_open(path, "pt") as file:
        metadata = file.metadata()
    state = load_file(path)
    state["critic/network/discriminator.head.weight"].fill_(3e38)
    save_file(state, path, metadata)


def test_a_run_stops_in_time_and_goes_on_later(go) -> None:
    stopped = go(steps=50, habits=Habits(max_minutes=1e-9))
    assert stopped.ending is Ending.OUT_OF_TIME
    assert stopped.step == 1
    assert go(steps=3, resume=True).ending is Ending.COMPLETE
    assert_same_run(go("whole", steps=3), go(steps=3, resume=True))


def test_a_run_is_never_overwritten(go) -> None:
    go()
    with pytest.raises(RunError, match="add --resume"):
        go()


def test_a_resumed_run_keeps_its_recipe(go) -> None:
    go(steps=2)
    with pytest.raises(RunError, match=r"learning_rate was 0\.\d+, now 0\.5: drop the flag"):
        go(steps=4, resume=True, learning_rate=0.5)


def test_a_resumed_run_keeps_its_pictures(go, photos, tmp_path) -> None:
    go(steps=2)
    others = shutil.copytree(photos, tmp_path / "others")
    next(others.iterdir()).unlink()
    with pytest.raises(RunError, match="the pictures are not those"):
        go(steps=4, resume=True, source=str(others))


def test_pictures_may_move_between_two_parts_of_a_run(go, photos, tmp_path) -> None:
    whole = go("whole", steps=4)
    go(steps=2)
    moved = shutil.copytree(photos, tmp_path / "moved")
    assert_same_run(whole, go(steps=4, resume=True, source=str(moved)))


def test_nothing_to_resume_is_said_plainly(go, tmp_path) -> None:
    with pytest.raises(RunError, match="leave out --resume"):
        go(resume=True)
    go(steps=2)
    shutil.rmtree(tmp_path / "run" / "checkpoints")
    with pytest.raises(CheckpointError, match="Start again without --resume"):
        go(steps=4, resume=True)


def test_bad_files_are_left_out_and_reported(go, photos, tmp_path) -> None:
    folder = shutil.copytree(photos, tmp_path / "mixed")
    (folder / "broken.jpg").write_bytes(b"no image")
    said = io.StringIO()
    console = Console(file=said, width=200)
    train(str(folder), tmp_path / "run", tiny_recipe(steps=1), cache=tmp_path / "cache", console=console)
    assert "1 of 6 images refused: 1 not an image" in said.getvalue()


@pytest.mark.parametrize("normalisation", ["patch", "batch", "group", "instance"])
def test_every_normalisation_trains(go, normalisation) -> None:
    from dataclasses import replace

    architecture = replace(tiny_recipe().architecture, normalisation=normalisation)
    outcome = go(steps=2, architecture=architecture)
    assert Weights.load(outcome.weights).discriminator.architecture.normalisation == normalisation
