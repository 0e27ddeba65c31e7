"""Probes have the effect of their names, and their shifts are reproducible."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from discopatch.corruptions.degradations import Draw, Normal, random_numbers
from discopatch.demo import crops, sample_photos
from discopatch.encoders import DiscriminatorEncoder, Features
from discopatch.heads.probes import MAX_PIXELS, PROBES, central, changed, measure_shifts
from discopatch.images import Pixels
from discopatch.images.tensors import to_unit
from tests.samples import tiny_weights


def photos(*names: str, count: int = 2) -> Pixels:
    return np.stack([each.pixels for each in crops(sample_photos(names), count, size=64, seed=0)])


def extract(pixels: Pixels) -> Features:
    return DiscriminatorEncoder(tiny_weights(), patches="dense").extract_pixels(pixels)


FORMS = [(name, form) for name, probe in PROBES.items() for form in probe.forms]


def test_shifts_are_the_same_for_the_same_seed_and_others_for_another() -> None:
    pixels = photos("cat", "temple", count=1)
    before = torch.get_rng_state()
    one, again, other = (measure_shifts(extract, pixels, seed=seed) for seed in (3, 3, 5))
    assert torch.equal(torch.get_rng_state(), before)
    assert list(one) == list(PROBES)
    for name in PROBES:
        assert np.array_equal(one[name], again[name]), name
        assert np.abs(one[name]).max() > 1e-3, name
    (form,) = PROBES["warmer"].forms
    expected = extract(changed(form, pixels, seed=3)).statistics - extract(pixels).statistics
    assert np.array_equal(one["warmer"], expected)
    assert any(not np.array_equal(one[name], other[name]) for name in PROBES)


@pytest.mark.parametrize(("name", "form"), FORMS, ids=[name for name, _ in FORMS])
def test_a_stronger_change_is_further_from_the_image(name, form) -> None:
    pixels = photos("cat", "coffee", count=1)
    images = to_unit(torch.from_numpy(pixels)).permute(0, 3, 1, 2)
    distances = []
    for strength in (0.0, 1.0):
        drawn = random_numbers(2, torch.Generator().manual_seed(0))
        result = form(images, torch.full((2, 1, 1, 1), strength), *drawn).clamp(-1, 1)
        distances.append(float((result - images).abs().mean()))
    assert 0 < distances[0] < distances[1], name


def test_half_of_the_images_are_cut_off_and_half_rounded_at_all_strengths() -> None:
    strengths: list[Tensor] = []

    def brighten(images: Tensor, strength: Tensor, draw: Draw, normal: Normal) -> Tensor:
        strengths.append(strength.flatten())
        return images + 0.7 / 127.5

    pixels = photos("cat", count=8) // 2
    added = changed(brighten, pixels, seed=0) - pixels
    assert (added == added[:, :1, :1, :1]).all()
    assert added[strengths[0].argsort(), 0, 0, 0].tolist() == [1, 0] * 4


def test_paler_and_stronger_colours_move_nothing_on_grey_images() -> None:
    grey = photos("camera")
    assert (grey == grey[..., :1]).all(), "a grey photo"
    found = measure_shifts(extract, grey, seed=0)
    assert not found["paler"].any()
    assert not found["stronger"].any()
    assert found["warmer"].any()


MEASURES: dict[str, Callable[[Tensor], Tensor]] = {
    "level": lambda images: images,
    "contrast": lambda images: images.std((1, 2, 3)),
    "detail": lambda images: images.diff(dim=3).abs(),
    "colour": lambda images: images.amax(1) - images.amin(1),
    "warmth": lambda images: images[:, 0] - images[:, 2],
}
MORE = {"level": "haze brighter bright_specks", "contrast": "more_contrast", "detail": "sharpening noise"}
MORE |= {"colour": "stronger", "warmth": "warmer"}
LESS = {"level": "darker dark_specks", "contrast": "less_contrast", "detail": "blur", "colour": "paler"}
LESS |= {"warmth": "colder"}


@pytest.mark.parametrize(("effects", "sign"), [(MORE, 1), (LESS, -1)])
def test_a_probe_does_what_its_id_says_in_every_form(effects, sign) -> None:
    pixels = photos("cat", "astronaut", "coffee")
    before = to_unit(torch.from_numpy(pixels)).permute(0, 3, 1, 2)
    for name, probes in effects.items():
        measure = MEASURES[name]
        for form in (form for probe in probes.split() for form in PROBES[probe].forms):
            after = to_unit(torch.from_numpy(changed(form, pixels, seed=0))).permute(0, 3, 1, 2)
            assert sign * float(measure(after).mean() - measure(before).mean()) > 0.005, probes


@pytest.mark.parametrize("shape", [(512, 512), (384, 1024), (2048, 64), (3000, 4000)])
def test_the_middle_of_a_large_image_keeps_its_pixels_and_blocks(shape: tuple[int, int]) -> None:
    rows, columns = np.meshgrid(*map(np.arange, shape), indexing="ij")
    pixels = np.stack([rows, columns, rows * 0], 2)[None]
    found = central(pixels)
    height, width = found.shape[1:3]
    assert MAX_PIXELS / 2 < height * width <= MAX_PIXELS
    assert height % 32 == width % 32 == 0
    top, left, _ = found[0, 0, 0]
    assert top % 8 == left % 8 == 0
    assert np.array_equal(found, pixels[:, top : top + height, left : left + width])
    assert abs(top - (shape[0] - top - height)) <= 8
    assert abs(left - (shape[1] - left - width)) <= 8


def test_a_small_image_is_its_own_middle() -> None:
    pixels = np.zeros((2, 256, 512, 3), np.uint8)
    assert central(pixels) is pixels
