"""Known changes do what their words say, and how they move normal images is the same every time."""

import re

import numpy as np
import pytest
import torch
from torch import Tensor

from discopatch.defects import DEFECTS, spoil
from discopatch.images import Pixels
from discopatch.images.samples import crops, sample_photos
from discopatch.patches import to_pixels, to_unit
from discopatch.scoring import Evidence, Scorer
from discopatch.scoring.changes import CHANGES, displacements

from .samples import tiny_weights

DRAWN = tuple(CHANGES)[: len(DEFECTS)]
FIXED = tuple(CHANGES)[len(DEFECTS) :]


def photos(*names: str, count: int = 2) -> Pixels:
    return np.stack([each.pixels for each in crops(sample_photos(names), count, size=64, seed=0)])


def look(pixels: Pixels) -> Evidence:
    return Scorer(tiny_weights(), sampling="dense").inspect_pixels(pixels)


def changed(name: str, pixels: Pixels, *, seed: int = 0) -> Tensor:
    pictures = to_unit(torch.from_numpy(pixels)).permute(0, 3, 1, 2)
    return CHANGES[name](pictures, torch.Generator().manual_seed(seed)).clamp(-1, 1)


def test_every_name_is_words_for_people() -> None:
    for name in CHANGES:
        assert re.fullmatch(r"[a-z]+,?( [a-z]+,?)+", name), name
    assert len(set(CHANGES)) == len(CHANGES) == 16


def test_every_defect_of_the_training_is_known_by_some_words() -> None:
    pixels = photos("cat")
    told = {to_pixels(changed(name, pixels)).numpy().tobytes() for name in DRAWN}
    pictures = to_unit(torch.from_numpy(pixels)).permute(0, 3, 1, 2)
    for name, defect in DEFECTS.items():
        spoiled = spoil(pictures, defect, torch.Generator().manual_seed(0))
        assert to_pixels(spoiled).numpy().tobytes() in told, name


def test_displacements_are_the_same_for_the_same_seed_and_others_for_another() -> None:
    pixels = photos("cat", "temple")
    one, again, other = (displacements(look, pixels, seed=seed) for seed in (3, 3, 4))
    assert list(one) == list(CHANGES)
    for name in CHANGES:
        assert np.array_equal(one[name], again[name]), name
        assert np.array_equal(one[name], other[name]) == (name in FIXED), name


def test_displacements_leave_the_global_random_state_alone() -> None:
    before = torch.get_rng_state()
    displacements(look, photos("cat"), seed=0)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_displacement_is_what_one_sees_after_less_what_one_saw_before() -> None:
    pixels = photos("cat", "temple")
    found = displacements(look, pixels, seed=0)
    brighter = np.clip(np.round(pixels + 0.25 * 127.5), 0, 255).astype(np.uint8)
    expected = look(brighter).statistics - look(pixels).statistics
    assert np.array_equal(found["brighter than normal"], expected)
    assert all(each.shape == expected.shape for each in found.values())


def test_every_change_moves_a_colour_photo() -> None:
    for name, by in displacements(look, photos("cat"), seed=0).items():
        assert np.abs(by).max() > 1e-3, name


def test_changes_are_looked_at_as_pictures_of_8_bits() -> None:
    seen: list[Pixels] = []

    def spy(pixels: Pixels) -> Evidence:
        seen.append(pixels)
        return look(pixels)

    displacements(spy, photos("cat"), seed=0)
    assert len(seen) == 1 + len(CHANGES)
    assert all(each.dtype == np.uint8 and each.shape == (2, 64, 64, 3) for each in seen)


def test_stronger_colours_move_nothing_on_grey_pictures() -> None:
    grey = photos("camera")
    assert (grey == grey[..., :1]).all(), "a grey photo"
    found = displacements(look, grey, seed=0)
    assert not found["paler or stronger colours than normal"].any()
    assert found["warmer colours than normal"].any()


def level(pictures: Tensor) -> float:
    return float(pictures.mean())


def contrast(pictures: Tensor) -> float:
    return float(pictures.std((1, 2, 3)).mean())


def detail(pictures: Tensor) -> float:
    return float(pictures.diff(dim=3).abs().mean())


def warmth(pictures: Tensor) -> float:
    return float((pictures[:, 0] - pictures[:, 2]).mean())


@pytest.mark.parametrize(
    ("name", "measure", "sign"),
    [
        ("less fine detail than normal", detail, -1),
        ("more fine detail than normal", detail, 1),
        ("more noise than normal", detail, 1),
        ("hazier than normal", level, 1),
        ("brighter than normal", level, 1),
        ("darker than normal", level, -1),
        ("more contrast than normal", contrast, 1),
        ("less contrast than normal", contrast, -1),
        ("warmer colours than normal", warmth, 1),
        ("colder colours than normal", warmth, -1),
    ],
)
def test_a_change_does_what_its_words_say(name, measure, sign) -> None:
    pixels = photos("cat", "astronaut", "coffee")
    before = to_unit(torch.from_numpy(pixels)).permute(0, 3, 1, 2)
    assert sign * (measure(changed(name, pixels)) - measure(before)) > 0.005
