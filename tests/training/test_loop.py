"""A run follows from its config, its images and its seed alone, whatever interrupts it."""

import io
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from rich.console import Console

from discopatch.errors import ParameterError, RunError
from discopatch.images import Transform
from discopatch.model import Networks, Weights
from discopatch.training import Ending, RunOptions, TrainingResult, train
from discopatch.training.batches import TrainingImages
from discopatch.training.folder import COLUMNS, RunFolder
from tests.samples import TINY_INVERTED, with_tensors
from tests.training.tiny import first_step, read_losses, tiny_config

DEGRADED = {"grouping": "image", "weight_degraded": 1.0, "weight_classified": 0.5, "decay": 0.5, "min_scale": 0.5}
STOP_AT_ONCE = RunOptions(max_minutes=1e-9)


@pytest.fixture
def go(photos: Path, cache: Path, tmp_path: Path):
    """Trains into a folder of this test."""

    def run(name: str = "run", *, source: object = None, **given: Any) -> TrainingResult:
        how: dict[str, Any] = {"cache": cache, "console": Console(quiet=True)}
        how |= {key: given.pop(key) for key in ("resume", "options", "start", "console") if key in given}
        return train(source or str(photos), tmp_path / name, tiny_config(**given), **how)

    return run


def tensors(result: TrainingResult) -> dict[str, torch.Tensor]:
    return Weights.load(result.weights).discriminator.state_dict()


def losses_file(result: TrainingResult) -> Path:
    return result.weights.with_name("losses.csv")


def assert_same_run(one: TrainingResult, other: TrainingResult) -> None:
    assert losses_file(one).read_text() == losses_file(other).read_text()
    assert all(torch.equal(tensors(one)[name], value) for name, value in tensors(other).items())


def test_the_same_seed_gives_the_same_run_twice_and_another_seed_another(go) -> None:
    one = go("one", seed=4, options=RunOptions(checkpoint_every=1, samples_every=1, log_every=1))
    assert_same_run(one, go("two", seed=4))
    assert losses_file(one).read_text() != losses_file(go("three", seed=5)).read_text()


@pytest.mark.parametrize("changes", [{}, DEGRADED, {**DEGRADED, "vae": False}])
def test_a_run_stopped_again_and_again_equals_one_in_one_go(go, changes: dict[str, Any]) -> None:
    whole = go("whole", steps=4, **changes)
    for attempt in range(4):
        parts = go("parts", steps=4, resume=attempt > 0, options=STOP_AT_ONCE, **changes)
        assert parts.step == attempt + 1
        assert parts.ending is (Ending.OUT_OF_TIME if attempt < 3 else Ending.COMPLETE)
    assert_same_run(whole, parts)


def test_the_papers_config_draws_patches_and_noise_and_nothing_else(go, photos, cache) -> None:
    expected, _ = first_step(photos, cache, tiny_config())
    found = read_losses(losses_file(go(steps=1)))
    assert found.pop("step") == 1
    assert [value[0] for value in found.values()] == pytest.approx([loss.item() for loss in expected], rel=1e-5)
    assert found["degraded"] == 0


def test_every_third_step_has_crops_of_the_images_that_are_large(go, monkeypatch) -> None:
    sizes, take = [], TrainingImages.take

    def recorded(images: TrainingImages, start: int, count: int) -> torch.Tensor:
        sizes.append(len(images))
        return take(images, start, count)

    monkeypatch.setattr(TrainingImages, "take", recorded)
    go(steps=5, architecture=TINY_INVERTED, crop=48, weight_degraded=1.0, native=400)
    assert sizes == [4, 5, 5, 4, 5], "one of the five photos is smaller"


def test_the_learning_rate_falls_at_the_end_and_not_before(go) -> None:
    steady, falling = (
        read_losses(losses_file(go(f"decay-{decay}", steps=8, decay=decay)))["vae"] for decay in (0.0, 0.5)
    )
    same = [True] * 6 + [False] * 2  # the rate falls after step 5, and the loss of step 7 is the first to show it
    assert (steady == falling).tolist() == same


def test_a_run_can_begin_from_weights_of_its_architecture(go) -> None:
    start = Weights(Networks.from_seed(tiny_config().architecture, seed=9).discriminator, tiny_config().transform)
    before = start.digest
    result = go(steps=2, learning_rate=1e-9, start=start)
    for name, value in tensors(result).items():
        torch.testing.assert_close(value, start.discriminator.state_dict()[name], rtol=0, atol=1e-7)
    assert Weights.load(result.weights).digest != before == start.digest
    with pytest.raises(ParameterError, match="architecture"):
        go("other", start=start, architecture=replace(tiny_config().architecture, hidden=(4, 6)))
    with pytest.raises(ParameterError, match="unit"):
        go("other", start=replace(start, transform=Transform(size=64, pixels="unit")))


def test_the_fused_passes_learn_the_same_and_continue_a_plain_run(go) -> None:
    plain, fused = (go(f"{fused}", steps=6, options=RunOptions(fused=fused)) for fused in (False, True))
    expected, found = (list(read_losses(losses_file(each)).values()) for each in (plain, fused))
    np.testing.assert_allclose(found, expected, rtol=1e-3)
    for first in (False, True):
        assert go(str(first), steps=8, resume=True, options=RunOptions(fused=not first)).step == 8


def test_the_files_of_a_run(go) -> None:
    result = go(seed=11, steps=4, options=RunOptions(samples_every=2, checkpoint_every=1, tensorboard=True))
    description = json.loads(result.weights.with_name("run.json").read_text())
    assert description["config"] == tiny_config(seed=11, steps=4).to_dict()
    assert len(description["data_digest"]) == 64
    origin = Weights.load(result.weights).origin
    assert (origin["step"], origin["images_seen"], origin["run_id"]) == (4, 8, description["run_id"])
    lines = losses_file(result).read_text().splitlines()
    assert lines[0].split(",") == list(COLUMNS)
    assert [line.split(",")[0] for line in lines[1:]] == ["1", "2", "3", "4"]
    steps = [path.stem for path in RunFolder(result.weights.parent).checkpoints()]
    assert steps == ["step-000000004", "step-000000003"]
    sheets = sorted((result.weights.parent / "samples").glob("*.png"))
    assert [path.stem for path in sheets] == ["step-000000002", "step-000000004"]
    with Image.open(sheets[0]) as sheet:
        assert sheet.size == (2 * 16, 3 * 16), "real, reconstructed and generated patches"
        assert np.asarray(sheet)[:16].std() > 5
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(result.weights.parent / "tensorboard"))
    events.Reload()
    assert [event.step for event in events.Scalars("loss/discriminator")] == [1, 2, 3, 4]


@pytest.mark.filterwarnings("ignore:overflow")
def test_a_loss_that_is_no_number_names_the_step_and_the_last_good_checkpoint(go, tmp_path) -> None:
    go(steps=4, options=RunOptions(checkpoint_every=4))
    newest = RunFolder(tmp_path / "run").checkpoints()[0]
    with_tensors(newest, lambda state: state["discriminator/network/discriminator.head.weight"].fill_(3e38))
    with pytest.raises(RunError, match=r"step 5.*step-000000004"):
        go(steps=8, resume=True, options=RunOptions(checkpoint_every=1))
    assert RunFolder(tmp_path / "run").checkpoints() == [newest]


def test_a_damaged_newest_checkpoint_gives_way_to_the_one_before(go, tmp_path) -> None:
    whole = go("whole", steps=6)
    go(steps=4, options=RunOptions(checkpoint_every=2))
    newest, _ = RunFolder(tmp_path / "run").checkpoints()
    content = bytearray(newest.read_bytes())
    content[-100] ^= 1
    newest.write_bytes(content)
    assert_same_run(whole, go(steps=6, resume=True))
    for path in RunFolder(tmp_path / "run").checkpoints():
        path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(RunError, match="--resume"):
        go(steps=8, resume=True)


def test_a_run_is_never_overwritten_and_keeps_its_config_and_images(go, photos, tmp_path) -> None:
    whole = go("whole", steps=4)
    with pytest.raises(RunError, match="--resume"):
        go(resume=True)
    go(steps=2)
    with pytest.raises(RunError, match="--resume"):
        go(steps=1)
    with pytest.raises(RunError, match="learning_rate"):
        go(steps=4, resume=True, learning_rate=0.5)
    others = shutil.copytree(photos, tmp_path / "others")
    next(others.iterdir()).unlink()
    with pytest.raises(RunError, match="digest"):
        go(steps=4, resume=True, source=str(others))
    moved = shutil.copytree(photos, tmp_path / "moved")
    assert_same_run(whole, go(steps=4, resume=True, source=str(moved)))


def test_a_run_stopped_before_its_first_checkpoint_begins_again_with_the_same_weights(go, tmp_path) -> None:
    start = Weights.load(go("start", steps=1).weights)
    whole = go("whole", steps=3, start=start)
    go(steps=3, start=start)
    shutil.rmtree(tmp_path / "run" / "checkpoints")
    with pytest.raises(RunError, match="--from"):
        go(steps=3, resume=True)
    assert_same_run(whole, go(steps=3, resume=True, start=start))


@pytest.mark.parametrize("first", [False, True])
def test_weights_older_than_the_newest_checkpoint_are_written_again(go, tmp_path, first: bool) -> None:
    whole = go("whole", steps=4)
    go(steps=2)
    weights = tmp_path / "run" / "discriminator.safetensors"
    older = weights.read_bytes()
    go(steps=4, resume=True)
    weights.unlink() if first else weights.write_bytes(older)
    assert_same_run(whole, go(steps=4, resume=True))


@pytest.mark.parametrize("content", ['{"recipe": {}}', "{", "[" * 2_000_000])
def test_a_folder_with_another_description_is_refused(go, tmp_path, content: str) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "run.json").write_text(content)
    with pytest.raises(RunError, match="--out"):
        go(resume=True)


def test_bad_files_are_left_out_and_reported(go, photos, tmp_path) -> None:
    folder = shutil.copytree(photos, tmp_path / "mixed")
    (folder / "broken.jpg").write_bytes(b"no image")
    printed = io.StringIO()
    go(source=str(folder), steps=1, console=Console(file=printed, width=200))
    assert "1 of 6" in printed.getvalue()


@pytest.mark.parametrize("normalisation", ["batch", "group", "instance"])
def test_every_normalisation_trains(go, normalisation) -> None:
    architecture = replace(tiny_config().architecture, normalisation=normalisation)
    result = go(steps=2, architecture=architecture)
    assert Weights.load(result.weights).discriminator.architecture.normalisation == normalisation
