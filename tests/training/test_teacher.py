"""A pupil learns to see as its teacher does; the teacher never changes, and leaves nothing in the pupil's file."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from rich.console import Console

from discopatch.images import Transform
from discopatch.images.samples import crops, sample_photos
from discopatch.model import Discriminator, Pair
from discopatch.model.blocks import Block
from discopatch.model.discriminator import SMALLEST_VARIANCE
from discopatch.model.weights import Weights, digest_of
from discopatch.patches import to_unit
from discopatch.training.critic import Critic
from discopatch.training.lesson import Lesson
from discopatch.training.loop import Habits, Outcome, train
from discopatch.training.step import lesson_loss
from discopatch.training.teacher import Teacher
from tests.training.tiny import ARCHITECTURE, tiny_recipe

WIDER = replace(ARCHITECTURE, hidden=(6, 12))
TAUGHT = {"weight_spoiled": 1.0, "weight_named": 0.5, "forgeries": False}


@pytest.fixture
def weights() -> Weights:
    return Weights(Pair.from_seed(WIDER, seed=8).discriminator, Transform(size=64))


def pictures(count: int = 6, seed: int = 1) -> torch.Tensor:
    return torch.rand(count, 3, 32, 32, generator=torch.Generator().manual_seed(seed)) * 2 - 1


@pytest.fixture
def teacher(weights: Weights) -> Teacher:
    return Teacher.prepare(weights, [pictures(seed=2), pictures(seed=3)], torch.device("cpu"))


def by_hand(discriminator: Discriminator, picture: torch.Tensor) -> np.ndarray:
    """Means and log-variances of one picture, by numpy."""
    found, x = [], picture[None]
    for block in discriminator.blocks:
        assert isinstance(block, Block)
        values = block.conv(x).detach().numpy()
        found += [values.mean((0, 2, 3)), np.log(values.var((0, 2, 3)) + SMALLEST_VARIANCE)]
        x = block(x, 1)
    return np.concatenate(found)


def test_its_answers_are_its_logits_and_its_statistics_in_standard_deviations(teacher, weights) -> None:
    shown = [by_hand(weights.discriminator, each) for each in torch.cat([pictures(seed=2), pictures(seed=3)])]
    answer = teacher.answer(pictures())
    centre, scale = np.mean(shown, 0), np.std(shown, 0, ddof=1) + 0.01
    for picture, logits, statistics in zip(pictures(), answer.logits, answer.statistics, strict=True):
        torch.testing.assert_close(logits, weights.discriminator(picture[None], 1)[0])
        expected = (by_hand(weights.discriminator, picture) - centre) / scale
        np.testing.assert_allclose(statistics.numpy(), expected, rtol=1e-3, atol=1e-3)


def test_the_loss_is_the_distance_to_its_answers_for_pictures_and_spoiled_copies(teacher) -> None:
    lesson = teacher.teach(Lesson.draw(pictures(), torch.Generator().manual_seed(5), first=2))
    torch.manual_seed(0)
    critic = Critic(Pair.from_seed(ARCHITECTURE, seed=1).discriminator, taught=teacher.statistics)
    apart = 0.0
    for shown in (lesson.pictures, lesson.spoiled):
        mine, theirs = critic(shown, 1, whole=True), teacher.answer(shown)
        assert mine.logits.shape == theirs.logits.shape
        apart += F.smooth_l1_loss(mine.logits, theirs.logits).item()
        apart += F.smooth_l1_loss(mine.statistics, theirs.statistics).item()
    recipe = tiny_recipe(weight_spoiled=1.0, weight_taught=3.0, teacher="some")
    untaught = lesson_loss(critic, lesson._replace(answers=None), recipe).item()
    assert lesson_loss(critic, lesson, recipe).item() == pytest.approx(untaught + 3.0 * 0.5 * apart, rel=1e-5)


@pytest.fixture
def go(photos: Path, cache: Path, tmp_path: Path, weights: Weights):
    def run(name: str, *, taught: float = 1.0, **options) -> Outcome:
        chosen = {"resume": options.pop("resume", False), "habits": options.pop("habits", Habits())}
        recipe = tiny_recipe(**TAUGHT, weight_taught=taught, teacher=weights.digest if taught else None, **options)
        return train(
            str(photos),
            tmp_path / name,
            recipe,
            cache=cache,
            console=Console(quiet=True),
            teacher=weights if taught else None,
            **chosen,
        )

    return run


def test_a_pupil_ends_nearer_to_its_teacher_than_one_who_had_none(go, teacher) -> None:
    shown = crops(sample_photos(("coffee", "cat")), 8, size=64, seed=3)
    photos = to_unit(torch.from_numpy(np.stack([each.pixels for each in shown]))).permute(0, 3, 1, 2)

    def apart(taught: float) -> float:
        pupil = Weights.load(go(f"taught-{taught}", taught=taught, steps=60).weights).discriminator
        return F.smooth_l1_loss(pupil(photos, 1), teacher.answer(photos).logits).item()

    assert apart(10.0) < 0.8 * apart(0.0)


def test_teaching_changes_no_teacher_and_leaves_nothing_of_it_in_the_file(go, weights) -> None:
    before = weights.digest
    pupil = Weights.load(go("run", steps=2).weights)
    assert digest_of(weights.discriminator) == before
    assert pupil.discriminator.state_dict().keys() == Discriminator(ARCHITECTURE).state_dict().keys()
    assert pupil.origin["recipe"]["teacher"] == before


def test_a_taught_run_that_was_stopped_again_and_again_equals_one_in_one_go(go) -> None:
    whole = go("whole", steps=4)
    for attempt in range(4):
        parts = go("parts", steps=4, resume=attempt > 0, habits=Habits(max_minutes=1e-9))
    assert whole.weights.with_name("losses.csv").read_text() == parts.weights.with_name("losses.csv").read_text()
    assert Weights.load(whole.weights).digest == Weights.load(parts.weights).digest


def test_another_teacher_than_the_recipes_is_refused(photos: Path, tmp_path: Path, weights: Weights) -> None:
    for given, named in ((weights, "0123456789abcdef"), (None, weights.digest), (weights, None)):
        taught = 1.0 if named else 0.0
        recipe = tiny_recipe(**TAUGHT, weight_taught=taught, teacher=named)
        with pytest.raises(ValueError, match="give the weights of that digest"):
            train(str(photos), tmp_path / "run", recipe, teacher=given)
    assert not (tmp_path / "run").exists()


def test_a_teacher_of_other_patches_is_refused(photos: Path, tmp_path: Path) -> None:
    other = replace(ARCHITECTURE, patch_size=32)
    weights = Weights(Pair.from_seed(other, seed=8).discriminator, Transform(size=64))
    recipe = tiny_recipe(**TAUGHT, weight_taught=1.0, teacher=weights.digest)
    with pytest.raises(ValueError, match="judges patches of 32 pixels every 4, the pupil of 16 every 4"):
        train(str(photos), tmp_path / "run", recipe, teacher=weights)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"weight_taught": 1.0, "teacher": "some"}, "give weight_spoiled"),
        ({"weight_taught": 1.0, "weight_spoiled": 1.0}, "go together"),
        ({"teacher": "some", "weight_spoiled": 1.0}, "go together"),
        ({"weight_taught": -1.0, "weight_spoiled": 1.0, "teacher": "some"}, "weight_taught is -1.0"),
    ],
)
def test_a_recipe_says_what_is_missing_for_teaching(changes, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        tiny_recipe(**changes)
