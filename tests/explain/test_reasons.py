"""Reasons are rare on new normal images, and right on degraded ones."""

from collections import Counter
from functools import cache

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from discopatch.corruptions import corrupt
from discopatch.encoders import BASIC_KINDS, DiscriminatorEncoder
from discopatch.errors import WeightsError
from discopatch.explain.reasons import MAX_REASONS, NORMAL_RATE, ReasonModel, usual_levels
from discopatch.images import Pixels
from discopatch.pretrained import load_pretrained
from tests.samples import camera_pixels

DEGRADED = {
    "gaussian_blur": "blur",
    "defocus_blur": "blur",
    "gaussian_noise": "noise",
    "jpeg_compression": "compression",
    "pixelate": "pixelation",
    "fog": "haze",
    "brightness": "brighter",
    "contrast": "less_contrast",
}


def images(count: int, *, seed: int) -> Pixels:
    return camera_pixels(count, size=128, seed=seed)


@cache
def model() -> ReasonModel:
    return ReasonModel.fit(images(40, seed=0), seed=0)


def first(found: ReasonModel, image: Pixels) -> str | None:
    return next(iter(found.reasons(image)), None)


def test_reasons_of_a_large_image_are_those_of_its_middle() -> None:
    large = camera_pixels(12, size=400, seed=0)
    found = ReasonModel.fit(large, images=2, seed=0)
    blurred = corrupt(large[3], "gaussian_blur", 3, seed=0)
    border = blurred.copy()
    border[:24], border[-24:], border[:, :24], border[:, -24:] = 0, 255, 0, 255
    assert found.z_scores(border) == found.z_scores(blurred)


def test_few_new_normal_images_get_a_reason() -> None:
    given = [first(model(), image) for image in images(40, seed=9)]
    assert sum(name is not None for name in given) <= 4, Counter(given)


@pytest.mark.parametrize("corruption", DEGRADED)
def test_the_first_reason_of_a_degraded_new_image_is_the_right_one(corruption: str) -> None:
    given = [
        model().reasons(corrupt(image, corruption, severity, seed=severity))
        for image in images(5, seed=9)
        for severity in (2, 3, 4)
    ]
    assert max(len(each) for each in given) <= MAX_REASONS
    assert all(list(each.values()) == sorted(each.values(), reverse=True) for each in given)
    assert all(z > model().threshold for each in given for z in each.values())
    found = Counter(next(iter(each), None) for each in given)
    pale = corruption == "brightness"  # one of the five is sky, nearly white before, and another is mostly a pale lake
    assert found[DEGRADED[corruption]] >= (10 if pale else 14), found


@pytest.mark.slow
def test_the_embedding_of_the_network_names_more_slight_changes() -> None:
    embed = DiscriminatorEncoder(load_pretrained(), kinds=BASIC_KINDS, device="cpu").embed
    pixels = images(40, seed=0).copy()
    found = ReasonModel.fit(pixels, embed=embed, seed=0)
    bright = [corrupt(image, "brightness", severity, seed=0) for image in images(5, seed=9) for severity in (1, 2, 3)]
    named = [next(iter(found.reasons(image, embed)), None) for image in bright]
    assert named.count("brighter") > [first(model(), image) for image in bright].count("brighter")
    assert sum(bool(found.reasons(image, embed)) for image in images(40, seed=9)) <= 4


def test_known_embeddings_of_the_images_are_not_computed_again() -> None:
    seen: list[int] = []

    def colours(pixels: Pixels) -> NDArray[np.float32]:
        seen.append(len(pixels))
        return np.asarray(pixels.mean((1, 2)), np.float32)

    pixels, tensors = images(20, seed=0), []
    for known in (None, colours(pixels)):
        seen.clear()
        tensors.append(ReasonModel.fit(pixels, images=2, embed=colours, embedded=known, seed=0).to_tensors())
        assert (20 in seen) == (known is None)
    one, other = tensors
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_a_change_of_a_corner_is_named_too() -> None:
    for row in range(2):
        image = images(1, seed=9)[0].copy()
        corner = slice(64 * row, 64 * row + 64), slice(64)
        image[corner] = corrupt(image, "gaussian_noise", 4, seed=0)[corner]
        assert first(model(), image) in ("noise", "grain")


def test_the_same_images_and_seed_give_the_same_reasons() -> None:
    pixels, new = images(20, seed=0), images(1, seed=9)[0]
    one, again, other = (ReasonModel.fit(pixels, images=2, seed=seed).z_scores(new) for seed in (1, 1, 2))
    assert one == again != other
    assert ReasonModel.fit(pixels, images=1, seed=0).z_scores(new).keys() == one.keys()


def test_a_model_survives_as_tensors_to_the_bit() -> None:
    again = ReasonModel.from_tensors(model().to_tensors(), model().probes)
    for image in images(3, seed=9):
        assert again.z_scores(image) == model().z_scores(image)
    tensors = model().to_tensors()
    for name in ("image.owners", "regions.owners", "level"):
        with pytest.raises(WeightsError, match=name.rpartition(".")[2]):
            ReasonModel.from_tensors({**tensors, name: -tensors[name]}, model().probes)


def exceed(values: NDArray[np.float64], new: NDArray[np.float64], groups: NDArray[np.intp] | None = None) -> float:
    """The share of new images above the levels of others, one draw of those for each."""
    levels = np.array([usual_levels(each, groups) for each in values])
    return float((new > levels).any(1).mean())


@pytest.mark.parametrize("count", [19, 39, 300])
def test_few_exceed_the_levels_of_others_like_them(count: int) -> None:
    rng = np.random.default_rng(0)
    above = exceed(rng.normal(size=(2000, count, 2)), rng.normal(size=(2000, 2)))
    allowed = int(NORMAL_RATE * (count + 1)) / (count + 1)
    assert allowed - 0.015 < above < allowed + 0.01


def test_an_image_of_a_group_counts_for_all_of_it() -> None:
    rng = np.random.default_rng(0)
    frames = np.repeat(rng.normal(size=(2000, 25, 2)), 8, axis=1) + 0.01 * rng.normal(size=(2000, 200, 2))
    above = exceed(frames, rng.normal(size=(2000, 2)), np.repeat(np.arange(25), 8))
    assert above == pytest.approx(1 / 26, abs=0.015)
