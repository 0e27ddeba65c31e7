"""Every defect has its turn, and every picture the defect that is named."""

import pytest
import torch

from discopatch.defects import DEFECTS, Defect
from discopatch.patches import to_pixels
from discopatch.training.lesson import Lesson
from tests.test_defects import COUNT, flat, photos, seeded


@pytest.fixture
def marked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Defects that paint their own number instead."""

    def painting(level: int) -> Defect:
        return lambda x, draw, normal: torch.full_like(x, level / 127.5 - 1)

    monkeypatch.setattr(
        "discopatch.training.lesson.DEFECTS", {name: painting(1 + number) for number, name in enumerate(DEFECTS)}
    )


@pytest.mark.usefixtures("marked")
@pytest.mark.parametrize("count", [1, 3, COUNT, 2 * COUNT + 3])
@pytest.mark.parametrize("first", [0, 4, COUNT - 1, COUNT, 1003])
def test_defects_take_turns_and_each_picture_has_the_one_that_is_named(count: int, first: int) -> None:
    lesson = Lesson.draw(flat(-1.0, count, size=16), seeded(), first=first)
    painted = to_pixels(lesson.spoiled)[:, 0, 0, 0]
    assert lesson.defects.tolist() == [1 + (first + place) % COUNT for place in range(count)]
    assert painted.tolist() == lesson.defects.tolist()
    assert lesson.defects.dtype == torch.int64


def test_a_lesson_is_the_pictures_beside_their_spoiled_copies() -> None:
    pictures = photos().requires_grad_()
    lesson = Lesson.draw(pictures, seeded(), first=3)
    assert lesson.pictures is pictures
    assert lesson.spoiled.shape == pictures.shape
    assert not lesson.spoiled.requires_grad
    changed = (lesson.spoiled - pictures).abs().mean((1, 2, 3))
    assert (changed > 0).all()
    again, other = (Lesson.draw(pictures, seeded(seed), first=3) for seed in (0, 1))
    assert torch.equal(again.spoiled, lesson.spoiled)
    assert not torch.equal(other.spoiled, lesson.spoiled)


def test_in_ten_steps_every_place_of_a_small_batch_has_met_every_defect() -> None:
    met = [Lesson.draw(photos(1, size=16), seeded(), first=step).defects.tolist() for step in range(COUNT)]
    assert all(sorted(place) == list(range(1, COUNT + 1)) for place in zip(*met, strict=True))
