"""A run follows from its config, its images and its seed alone, whatever interrupts it."""

import io
import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from rich.console import Console

from discopatch.errors import CheckpointError, DivergedError, MissingExtraError, RunError
from discopatch.images import open_cache
from discopatch.images.tensors import to_unit
from discopatch.model import Networks, Weights, extract_patches, random_corners
from discopatch.training import Ending, Hardware, RunOptions, TrainingResult, train
from discopatch.training.augment import DegradedBatch
from discopatch.training.auxiliary import AuxiliaryDiscriminator
from discopatch.training.batches import image_order, step_generator
from discopatch.training.logging import COLUMNS, read_losses
from discopatch.training.step import Noise, adversarial_step
from tests.samples import with_tensors
from tests.training.tiny import tiny_config

DEGRADED = {
    "grouping": "image",
    "weight_degraded": 1.0,
    "weight_classified": 0.5,
    "decay": 0.5,
    "min_scale": 0.5,
}
STOP_AT_ONCE = RunOptions(max_minutes=1e-9)


@pytest.fixture
def go(photos: Path, cache: Path, tmp_path: Path):
    """Trains into a folder of this test; everything else as little as possible."""

    def run(
        name: str = "run",
        *,
        source: object = None,
        resume: bool = False,
        options: RunOptions = RunOptions(),  # noqa: B008 - frozen
        hardware: Hardware = Hardware(),  # noqa: B008 - frozen
        start: Weights | None = None,
        console: Console | None = None,
        **config: Any,
    ) -> TrainingResult:
        return train(
            str(photos) if source is None else source,
            tmp_path / name,
            tiny_config(**config),
            cache=cache,
            resume=resume,
            hardware=hardware,
            options=options,
            console=console or Console(quiet=True),
            start=start,
        )

    return run


def tensors(result: TrainingResult) -> dict[str, torch.Tensor]:
    return tensors_of(result.weights)


def tensors_of(path: Path) -> dict[str, torch.Tensor]:
    return Weights.load(path).discriminator.state_dict()


def losses_file(result: TrainingResult) -> Path:
    return result.weights.with_name("losses.csv")


def assert_same_run(one: TrainingResult, other: TrainingResult) -> None:
    assert losses_file(one).read_text() == losses_file(other).read_text()
    assert all(torch.equal(tensors(one)[name], value) for name, value in tensors(other).items())


def test_the_same_seed_gives_the_same_run_twice_and_another_seed_another(go) -> None:
    one = go("one", seed=4)
    assert_same_run(one, go("two", seed=4))
    assert losses_file(one).read_text() != losses_file(go("three", seed=5)).read_text()


def test_a_run_continued_later_equals_one_in_one_go(go) -> None:
    whole = go("whole", steps=12)
    go("parts", steps=5)
    go("parts", steps=7, resume=True)
    assert_same_run(whole, go("parts", steps=12, resume=True))


@pytest.mark.parametrize("vae", [True, False])
def test_a_run_with_degraded_images_stopped_again_and_again_equals_one_in_one_go(go, vae: bool) -> None:
    whole = go("whole", steps=5, vae=vae, **DEGRADED)
    for attempt in range(5):
        parts = go("parts", steps=5, vae=vae, resume=attempt > 0, options=STOP_AT_ONCE, **DEGRADED)
        assert parts.step == attempt + 1
    assert_same_run(whole, parts)


def test_every_step_has_other_degradations_also_after_a_pause(go, monkeypatch) -> None:
    begun = []
    draw = DegradedBatch.draw

    def spy(images, generator, *, step, teachers):
        begun.append(step)
        return draw(images, generator, step=step, teachers=teachers)

    monkeypatch.setattr(DegradedBatch, "draw", spy)
    go(steps=2, **DEGRADED)
    go(steps=4, resume=True, **DEGRADED)
    assert begun == [0, 1, 2, 3]


def test_a_run_with_degraded_images_saves_a_discriminator_like_any_other(go) -> None:
    plain, degraded = tensors(go("plain", steps=2)), tensors(go("degraded", steps=2, **DEGRADED))
    assert {name: each.shape for name, each in degraded.items()} == {name: each.shape for name, each in plain.items()}


def test_the_papers_config_draws_patches_and_noise_and_nothing_else(go, photos, cache) -> None:
    """The first step by hand: what is not the paper's must not move the paper's runs."""
    config = tiny_config()
    networks = Networks.from_seed(config.architecture, config.seed)
    pixels = torch.from_numpy(np.array(open_cache(str(photos), config.transform, cache).pixels))
    which = image_order(0, config.images, images=len(pixels), seed=config.seed)
    generator = step_generator(config.seed, 0, 0, "cpu")
    corners = random_corners(config.images, config.patches, size=64, patch_size=16, generator=generator)
    real = to_unit(extract_patches(pixels[which], corners, 16))
    noise = Noise(*(torch.randn(len(real), config.architecture.latent, generator=generator) for _ in range(2)))
    still = [torch.optim.SGD(network.parameters(), lr=0.0) for network in (networks.vae, networks.discriminator)]
    auxiliary = AuxiliaryDiscriminator(networks.discriminator)
    expected = adversarial_step(networks.vae, auxiliary, still, real, noise, config)
    first = read_losses(losses_file(go(steps=1)))[0]
    assert first[1:] == pytest.approx([loss.item() for loss in expected], rel=1e-5)
    assert first[-1] == 0, "nothing degraded"


def test_a_weight_of_classification_without_degraded_images_changes_nothing(go) -> None:
    assert_same_run(go("plain", steps=3), go("classified", steps=3, weight_classified=0.5))


def test_the_learning_rate_falls_at_the_end_and_not_before(go) -> None:
    steady, falling = (read_losses(losses_file(go(f"decay-{decay}", steps=8, decay=decay))) for decay in (0.0, 0.5))
    # The rate is still whole at step 4 of 8; step 5 takes a smaller one, which the loss of step 6 is the first to show.
    assert steady[:6] == falling[:6]
    assert all(one != other for one, other in zip(steady[6:], falling[6:], strict=True))


def test_a_run_can_start_from_trained_weights(go) -> None:
    start = Weights(Networks.from_seed(tiny_config().architecture, seed=9).discriminator, tiny_config().transform)
    before = start.digest
    result = go(steps=2, learning_rate=1e-9, start=start)
    for name, value in tensors(result).items():
        torch.testing.assert_close(value, start.discriminator.state_dict()[name], rtol=0, atol=1e-7)
    assert Weights.load(result.weights).digest != before
    assert start.digest == before


def test_without_a_vae_there_are_no_samples_of_it(go) -> None:
    result = go(steps=2, vae=False, **DEGRADED)
    assert not (result.weights.parent / "samples").exists()
    assert [line[1] for line in read_losses(losses_file(result))] == [0, 0], "the VAE's loss"


def test_options_change_what_is_written_and_nothing_else(go) -> None:
    often = RunOptions(checkpoint_every=1, samples_every=1, log_every=1)
    assert_same_run(go("often", options=often), go("seldom"))


def test_the_fused_passes_learn_the_same(go) -> None:
    plain, fused = (go(f"{compile}", steps=6, hardware=Hardware(compile=compile)) for compile in (False, True))
    expected, found = (np.array(read_losses(losses_file(each))) for each in (plain, fused))
    np.testing.assert_allclose(found, expected, rtol=1e-3)


@pytest.mark.parametrize("first", [False, True])
def test_a_plain_run_can_continue_fused_and_the_other_way_round(go, first: bool) -> None:
    go(steps=2, hardware=Hardware(compile=first))
    assert go(steps=4, resume=True, hardware=Hardware(compile=not first)).step == 4


def test_the_csv_has_a_line_for_every_step(go) -> None:
    lines = losses_file(go(steps=7)).read_text().splitlines()
    assert lines[0].split(",") == list(COLUMNS)
    assert [line.split(",")[0] for line in lines[1:]] == [str(step) for step in range(1, 8)]


def test_the_runs_json_names_everything_that_decided_it(go) -> None:
    result = go(seed=11)
    description = json.loads(result.weights.with_name("run.json").read_text())
    assert description["config"] == tiny_config(seed=11, stream=False).to_dict()
    assert description["torch"] == torch.__version__
    assert description["discopatch"]
    assert len(description["data_digest"]) == 64
    assert description["transform_digest"] == tiny_config().transform.digest
    origin = Weights.load(result.weights).origin
    assert (origin["step"], origin["images_seen"]) == (12, 24)


def test_sample_sheets_show_real_reconstructed_and_generated_patches(go) -> None:
    result = go(steps=4, options=RunOptions(samples_every=2))
    sheets = sorted((result.weights.parent / "samples").glob("*.png"))
    assert [path.stem for path in sheets] == ["step-000000002", "step-000000004"]
    with Image.open(sheets[0]) as sheet:
        assert sheet.size == (2 * 16, 3 * 16)
        real = np.asarray(sheet)[:16]
    assert real.std() > 5


def test_kept_discriminators_are_those_of_their_steps(go) -> None:
    result = go(steps=5, options=RunOptions(keep_every=2))
    kept = sorted((result.weights.parent / "kept").iterdir())
    assert [path.stem for path in kept] == ["step-000000002", "step-000000004", "step-000000005"]
    shorter = tensors(go("shorter", steps=2))
    assert all(torch.equal(value, shorter[name]) for name, value in tensors_of(kept[0]).items())
    assert all(torch.equal(value, tensors(result)[name]) for name, value in tensors_of(kept[-1]).items())


def test_tensorboard_gets_every_loss(go) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    result = go(steps=4, options=RunOptions(tensorboard=True))
    events = EventAccumulator(str(result.weights.parent / "tensorboard"))
    events.Reload()
    assert [event.step for event in events.Scalars("loss/discriminator")] == [1, 2, 3, 4]


def test_weights_and_biases_gets_the_config_and_every_loss(go, monkeypatch) -> None:
    class Wandb:
        def __init__(self) -> None:
            self.started: list[dict[str, Any]] = []
            self.steps: list[int] = []
            self.finished = 0

        def init(self, **settings: Any) -> "Wandb":
            self.started.append(settings)
            return self

        def log(self, losses: dict[str, float], step: int) -> None:
            assert losses.keys() == {f"loss/{name}" for name in COLUMNS[1:]}
            self.steps.append(step)

        def finish(self) -> None:
            self.finished += 1

    wandb = Wandb()
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    go(steps=3, options=RunOptions(wandb="cameras"))
    go(steps=5, options=RunOptions(wandb="cameras"), resume=True)
    assert wandb.steps == [1, 2, 3, 4, 5]
    assert wandb.finished == 2
    first, second = wandb.started
    assert (first["project"], first["config"]["config"]["steps"]) == ("cameras", 3)
    assert (first["id"], first["resume"], second["resume"]) == (second["id"], None, "allow")


def test_a_missing_logger_says_what_to_install(go, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'discopatch\[wandb\]'"):
        go(options=RunOptions(wandb="project"))


@pytest.mark.filterwarnings("ignore:overflow")
def test_a_loss_that_is_no_number_stops_with_the_step_the_losses_and_the_last_good_checkpoint(go, tmp_path) -> None:
    go(steps=4, options=RunOptions(checkpoint_every=4))
    poison_the_newest_checkpoint(tmp_path / "run")
    with pytest.raises(DivergedError, match=r"step 5.*discriminator inf.*step-000000004"):
        go(steps=8, resume=True, options=RunOptions(checkpoint_every=1))
    assert [path.stem for path in sorted((tmp_path / "run" / "checkpoints").glob("step-*"))] == ["step-000000004"]


def poison_the_newest_checkpoint(run: Path) -> None:
    """A weight so large that the next step must overflow, though it is still a number."""
    with_tensors(
        max((run / "checkpoints").glob("step-*")),
        lambda state: state["discriminator/network/discriminator.head.weight"].fill_(3e38),
    )


def test_a_run_stops_in_time_and_continues_later(go) -> None:
    stopped = go(steps=50, options=STOP_AT_ONCE)
    assert stopped.ending is Ending.OUT_OF_TIME
    assert stopped.step == 1
    assert go(steps=3, resume=True).ending is Ending.COMPLETE
    assert_same_run(go("whole", steps=3), go(steps=3, resume=True))


def test_a_run_is_never_overwritten(go) -> None:
    go(steps=1)
    with pytest.raises(RunError, match="--resume"):
        go(steps=1)


def test_a_resumed_run_keeps_its_config(go) -> None:
    go(steps=2)
    with pytest.raises(RunError, match=r"learning_rate was 0\.\d+, now 0\.5"):
        go(steps=4, resume=True, learning_rate=0.5)


def test_a_resumed_run_keeps_its_images(go, photos, tmp_path) -> None:
    go(steps=2)
    others = shutil.copytree(photos, tmp_path / "others")
    next(others.iterdir()).unlink()
    with pytest.raises(RunError, match="digest"):
        go(steps=4, resume=True, source=str(others))


def test_images_may_move_between_two_parts_of_a_run(go, photos, tmp_path) -> None:
    whole = go("whole", steps=4)
    go(steps=2)
    moved = shutil.copytree(photos, tmp_path / "moved")
    assert_same_run(whole, go(steps=4, resume=True, source=str(moved)))


def test_nothing_to_resume_is_an_error_that_names_the_flag(go, tmp_path) -> None:
    with pytest.raises(RunError, match="--resume"):
        go(resume=True)
    go(steps=2)
    shutil.rmtree(tmp_path / "run" / "checkpoints")
    with pytest.raises(CheckpointError, match="--resume"):
        go(steps=4, resume=True)


def test_a_run_that_was_stopped_before_its_first_checkpoint_begins_again(go, tmp_path) -> None:
    whole = go("whole", steps=3)
    stop_before_the_first_checkpoint(go, tmp_path / "run")
    assert_same_run(whole, go(steps=3, resume=True))


def test_a_run_that_begins_again_needs_the_weights_that_it_began_with(go, tmp_path) -> None:
    start = Weights.load(go("start", steps=1).weights)
    stop_before_the_first_checkpoint(go, tmp_path / "run", start=start)
    with pytest.raises(RunError, match="--start"):
        go(steps=3, resume=True)
    whole = go("whole", steps=3, start=start)
    assert_same_run(whole, go(steps=3, resume=True, start=start))


def stop_before_the_first_checkpoint(go, run: Path, **options) -> None:
    go(steps=3, **options)
    shutil.rmtree(run / "checkpoints")
    (run / "discriminator.safetensors").unlink()


@pytest.mark.parametrize("killed", ["before its weights", "before its first weights"])
def test_weights_older_than_the_newest_checkpoint_are_written_again(go, tmp_path, killed: str) -> None:
    whole = go("whole", steps=4)
    go(steps=2)
    weights = tmp_path / "run" / "discriminator.safetensors"
    older = weights.read_bytes()
    go(steps=4, resume=True)
    if killed == "before its weights":
        weights.write_bytes(older)
    else:
        weights.unlink()
    assert_same_run(whole, go(steps=4, resume=True))


def test_a_run_of_another_version_is_refused(go, tmp_path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "run.json").write_text('{"recipe": {}}')
    with pytest.raises(RunError, match="version"):
        go(resume=True)


def test_bad_files_are_left_out_and_reported(go, photos, tmp_path) -> None:
    folder = shutil.copytree(photos, tmp_path / "mixed")
    (folder / "broken.jpg").write_bytes(b"no image")
    printed = io.StringIO()
    go(source=str(folder), steps=1, console=Console(file=printed, width=200))
    assert "1 of 6" in printed.getvalue()


@pytest.mark.parametrize("normalisation", ["patch", "batch", "group", "instance"])
def test_every_normalisation_trains(go, normalisation) -> None:
    architecture = replace(tiny_config().architecture, normalisation=normalisation)
    result = go(steps=2, architecture=architecture)
    assert Weights.load(result.weights).discriminator.architecture.normalisation == normalisation
