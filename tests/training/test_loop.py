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

from discopatch.images import open_cache
from discopatch.images.samples import crops, sample_photos
from discopatch.model import Pair
from discopatch.model.weights import Weights
from discopatch.patches import cut, random_corners, to_unit
from discopatch.training.checkpoint import CheckpointError
from discopatch.training.critic import Critic
from discopatch.training.lesson import Lesson
from discopatch.training.log import COLUMNS, read_losses
from discopatch.training.loop import Ending, Habits, Outcome, TrainingDiverged, train
from discopatch.training.machine import Machine
from discopatch.training.order import pictures_at, step_generator
from discopatch.training.pictures import shrunk
from discopatch.training.run import RunError
from discopatch.training.step import Noise, adversarial_step
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


NATURAL = {
    "grouping": "image",
    "weight_spoiled": 1.0,
    "weight_named": 0.5,
    "decay": 0.5,
    "smallest_scale": 0.5,
}


@pytest.mark.parametrize("forgeries", [True, False])
def test_a_run_with_lessons_that_was_stopped_again_and_again_equals_one_in_one_go(go, forgeries: bool) -> None:
    whole = go("whole", steps=5, forgeries=forgeries, **NATURAL)
    for attempt in range(5):
        parts = go(
            "parts", steps=5, forgeries=forgeries, resume=attempt > 0, habits=Habits(max_minutes=1e-9), **NATURAL
        )
        assert parts.step == attempt + 1
    assert_same_run(whole, parts)


def test_every_step_begins_with_another_defect_also_after_a_pause(go, monkeypatch) -> None:
    begun = []
    draw = Lesson.draw

    def spy(pictures, generator, *, first):
        begun.append(first)
        return draw(pictures, generator, first=first)

    monkeypatch.setattr(Lesson, "draw", spy)
    go(steps=2, **NATURAL)
    go(steps=4, resume=True, **NATURAL)
    assert begun == [0, 1, 2, 3]


def test_a_run_with_lessons_leaves_the_discriminator_alone(go) -> None:
    plain, taught = tensors(go("plain", steps=2)), tensors(go("taught", steps=2, **NATURAL))
    assert {name: each.shape for name, each in taught.items()} == {name: each.shape for name, each in plain.items()}


def test_the_papers_recipe_draws_patches_and_noise_and_nothing_else(go, photos, cache) -> None:
    """The first step by hand: what was added to the training since must not move the paper's runs."""
    recipe = tiny_recipe()
    pair = Pair.from_seed(recipe.architecture, recipe.seed)
    pixels = torch.from_numpy(np.array(open_cache(str(photos), recipe.transform, cache).pixels))
    which = pictures_at(0, recipe.images, pictures=len(pixels), seed=recipe.seed)
    generator = step_generator(recipe.seed, 0, 0, "cpu")
    corners = random_corners(recipe.images, recipe.patches, size=64, patch_size=16, generator=generator)
    real = to_unit(cut(pixels[which], corners, 16))
    noise = Noise(*(torch.randn(len(real), recipe.architecture.latent, generator=generator) for _ in range(2)))
    still = [torch.optim.SGD(network.parameters(), lr=0.0) for network in (pair.vae, pair.discriminator)]
    expected = adversarial_step(pair.vae, Critic(pair.discriminator), still, real, noise, recipe)
    first = read_losses(go(steps=1).weights.with_name("losses.csv"))[0]
    assert first[1:] == pytest.approx([loss.item() for loss in expected], rel=1e-5)
    assert first[-1] == 0, "nothing spoiled"


def test_names_without_lessons_change_nothing(go) -> None:
    assert_same_run(go("plain", steps=3), go("named", steps=3, weight_named=0.5))


def test_the_learning_rate_falls_at_the_end_and_not_before(go) -> None:
    steady, falling = (
        read_losses(go(name, steps=8, decay=decay).weights.with_name("losses.csv"))
        for name, decay in (("steady", 0.0), ("falling", 0.5))
    )
    # The rate is still whole at step 4 of 8; step 5 takes a smaller one, which the loss of step 6 is the first to show.
    assert steady[:6] == falling[:6]
    assert all(one != other for one, other in zip(steady[6:], falling[6:], strict=True))


def test_a_run_can_start_from_a_discriminator_that_already_knows_something(photos, cache, tmp_path) -> None:
    known = Weights(Pair.from_seed(tiny_recipe().architecture, seed=9).discriminator, tiny_recipe().transform)
    before = known.digest
    outcome = train(
        str(photos),
        tmp_path / "run",
        tiny_recipe(steps=2, learning_rate=1e-9),
        cache=cache,
        console=QUIET,
        start=known,
    )
    for name, value in tensors(outcome).items():
        torch.testing.assert_close(value, known.discriminator.state_dict()[name], rtol=0, atol=1e-7)
    assert Weights.load(outcome.weights).digest != before
    assert known.digest == before


def test_without_forgeries_there_are_no_pictures_of_them(go) -> None:
    outcome = go(steps=2, forgeries=False, **NATURAL)
    assert not (outcome.weights.parent / "samples").exists()
    assert [line[1] for line in read_losses(outcome.weights.with_name("losses.csv"))] == [0, 0], "the VAE's loss"


@pytest.mark.parametrize("size", [64, 100, 256])
@pytest.mark.parametrize("smallest", [0.5, 0.55, 0.9, 1.0])
def test_shrunk_pictures_lie_between_the_smallest_scale_and_their_own_size(size: int, smallest: float) -> None:
    photo = torch.from_numpy(crops(sample_photos(["cat"]), 1, size=size, seed=0)[0].pixels.copy())[None]
    sizes = set()
    for seed in range(20):
        found = shrunk(photo, smallest, torch.Generator().manual_seed(seed))
        assert found.dtype == torch.uint8
        assert found.shape[1] == found.shape[2]
        sizes.add(found.shape[1])
        assert abs(float(found.float().mean() - photo.float().mean())) < 3, "the same picture"
    assert min(sizes) >= smallest * size
    assert max(sizes) <= size
    assert len(sizes) > 1 or size == 64 or smallest > 0.55


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
