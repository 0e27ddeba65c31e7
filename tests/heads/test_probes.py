"""Probes do what their texts say, and how they move normal images is the same every time."""

import re

import numpy as np
import pytest
import torch
from torch import Tensor

from discopatch.corruptions.degradations import DEGRADATIONS, degrade
from discopatch.encoders import DiscriminatorEncoder, Features
from discopatch.heads.probes import MAX_REASONS, MIN_Z, PROBES, measure_shifts, notable_probes
from discopatch.images import Pixels
from discopatch.images.samples import crops, sample_photos
from discopatch.images.tensors import to_pixels, to_unit
from tests.samples import tiny_weights

DRAWN = tuple(PROBES)[: len(DEGRADATIONS)]
FIXED = tuple(PROBES)[len(DEGRADATIONS) :]


def photos(*names: str, count: int = 2) -> Pixels:
    return np.stack([each.pixels for each in crops(sample_photos(names), count, size=64, seed=0)])


def extract(pixels: Pixels) -> Features:
    return DiscriminatorEncoder(tiny_weights(), patches="dense").extract_pixels(pixels)


def changed(name: str, pixels: Pixels, *, seed: int = 0) -> Tensor:
    images = to_unit(torch.from_numpy(pixels)).permute(0, 3, 1, 2)
    return PROBES[name].change(images, torch.Generator().manual_seed(seed)).clamp(-1, 1)


def test_every_probe_has_an_id_for_files_and_a_text_for_people() -> None:
    for name, probe in PROBES.items():
        assert re.fullmatch(r"[a-z]+(_[a-z]+)*", name), name
        assert re.fullmatch(r"[a-z]+,?( [a-z]+,?)+", probe.text), probe.text
    assert len({probe.text for probe in PROBES.values()}) == len(PROBES) == 16


def test_every_degradation_of_the_training_is_a_probe() -> None:
    pixels = photos("cat")
    known = {to_pixels(changed(name, pixels)).numpy().tobytes() for name in DRAWN}
    images = to_unit(torch.from_numpy(pixels)).permute(0, 3, 1, 2)
    for name, degradation in DEGRADATIONS.items():
        degraded = degrade(images, degradation, torch.Generator().manual_seed(0))
        assert to_pixels(degraded).numpy().tobytes() in known, name


def test_shifts_are_the_same_for_the_same_seed_and_others_for_another() -> None:
    pixels = photos("cat", "temple")
    one, again, other = (measure_shifts(extract, pixels, seed=seed) for seed in (3, 3, 4))
    assert list(one) == list(PROBES)
    for name in PROBES:
        assert np.array_equal(one[name], again[name]), name
        assert np.array_equal(one[name], other[name]) == (name in FIXED), name


def test_shifts_leave_the_global_random_state_alone() -> None:
    before = torch.get_rng_state()
    measure_shifts(extract, photos("cat"), seed=0)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_shift_is_the_statistics_after_less_those_before() -> None:
    pixels = photos("cat", "temple")
    found = measure_shifts(extract, pixels, seed=0)
    brighter = np.clip(np.round(pixels + 0.25 * 127.5), 0, 255).astype(np.uint8)
    expected = extract(brighter).statistics - extract(pixels).statistics
    assert np.array_equal(found["brighter"], expected)
    assert all(each.shape == expected.shape for each in found.values())


def test_every_change_moves_a_colour_photo() -> None:
    for name, by in measure_shifts(extract, photos("cat"), seed=0).items():
        assert np.abs(by).max() > 1e-3, name


def test_changed_images_have_8_bits() -> None:
    given: list[Pixels] = []

    def spy(pixels: Pixels) -> Features:
        given.append(pixels)
        return extract(pixels)

    measure_shifts(spy, photos("cat"), seed=0)
    assert len(given) == 1 + len(PROBES)
    assert all(each.dtype == np.uint8 and each.shape == (2, 64, 64, 3) for each in given)


def test_stronger_colours_move_nothing_on_grey_images() -> None:
    grey = photos("camera")
    assert (grey == grey[..., :1]).all(), "a grey photo"
    found = measure_shifts(extract, grey, seed=0)
    assert not found["colour"].any()
    assert found["warmer"].any()


def level(images: Tensor) -> float:
    return float(images.mean())


def contrast(images: Tensor) -> float:
    return float(images.std((1, 2, 3)).mean())


def detail(images: Tensor) -> float:
    return float(images.diff(dim=3).abs().mean())


def warmth(images: Tensor) -> float:
    return float((images[:, 0] - images[:, 2]).mean())


@pytest.mark.parametrize(
    ("name", "measure", "sign"),
    [
        ("blur", detail, -1),
        ("sharpening", detail, 1),
        ("noise", detail, 1),
        ("haze", level, 1),
        ("brighter", level, 1),
        ("darker", level, -1),
        ("more_contrast", contrast, 1),
        ("less_contrast", contrast, -1),
        ("warmer", warmth, 1),
        ("colder", warmth, -1),
    ],
)
def test_a_probe_does_what_its_id_says(name, measure, sign) -> None:
    pixels = photos("cat", "astronaut", "coffee")
    before = to_unit(torch.from_numpy(pixels)).permute(0, 3, 1, 2)
    assert sign * (measure(changed(name, pixels)) - measure(before)) > 0.005


QUIET = {"blur": 0.5, "noise": -1.0, "darker": 2.9, "haze": 0.0}


@pytest.mark.parametrize(
    ("image", "regions", "expected"),
    [
        (QUIET, QUIET, []),
        ({}, QUIET, []),
        ({**QUIET, "noise": 8.0, "haze": 12.0}, QUIET, ["haze", "noise"]),
        ({**QUIET, "noise": 20.0, "haze": 9.9, "darker": 10.0}, QUIET, ["noise", "darker"]),
        ({**QUIET, "noise": MIN_Z}, QUIET, ["noise"]),
        ({**QUIET, "noise": MIN_Z - 1e-9}, QUIET, []),
        (QUIET, {**QUIET, "noise": 6.0}, ["noise"]),
        ({**QUIET, "noise": 4.0, "haze": 7.0}, {**QUIET, "noise": 9.0, "haze": 1.0}, ["noise", "haze"]),
        ({}, {**QUIET, "haze": 5.0}, ["haze"]),
    ],
    ids=["usual", "no image probes", "two", "below half", "at the limit", "below it", "corner", "both", "regions only"],
)
def test_the_probes_that_stand_out_are_named_the_largest_first(image, regions, expected) -> None:
    found = notable_probes(image, regions)
    assert list(found) == expected
    assert all(z == max(image.get(name, 0.0), regions[name]) for name, z in found.items())


def test_no_more_than_a_few_probes_are_named() -> None:
    loud = {f"probe-{number}": 10.0 + number for number in range(6)}
    assert list(notable_probes(loud, dict.fromkeys(loud, 0.0))) == ["probe-5", "probe-4", "probe-3"]
    assert MAX_REASONS == 3
