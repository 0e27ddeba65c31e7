"""Descriptors are numbers for any image, the same wherever it stands, and move as the pictures do."""

import numpy as np
import pytest

from discopatch.explain.descriptors import descriptors, quantiles
from discopatch.images import Pixels
from discopatch.images.samples import crops, sample_photos


def photos(count: int = 2, *, size: int = 128) -> Pixels:
    return np.stack([each.pixels for each in crops(sample_photos(["cat", "temple"]), count, size=size, seed=0)])


@pytest.mark.parametrize("size", [16, 32, 50, 64, 257])
@pytest.mark.parametrize("value", [0, 128, 255, None])
def test_every_image_has_finite_descriptors(size: int, value: int | None) -> None:
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (2, size, size, 3)) if value is None else np.full((2, size, size, 3), value)
    found = descriptors(pixels.astype(np.uint8))
    assert found.dtype == np.float32
    assert found.shape[0] == 2
    assert np.isfinite(found).all()


def test_descriptors_of_an_image_do_not_depend_on_the_others() -> None:
    pixels = photos()
    together = descriptors(pixels)
    alone = np.concatenate([descriptors(image[None]) for image in pixels])
    np.testing.assert_allclose(alone, together, rtol=1e-4, atol=1e-5)


def test_another_arrangement_in_memory_changes_nothing() -> None:
    pixels = photos()
    assert np.array_equal(descriptors(np.asfortranarray(pixels)), descriptors(pixels))


def test_grey_images_have_no_colour_at_all() -> None:
    grey = np.repeat(photos()[..., :1], 3, axis=3)
    other = np.repeat(photos()[::-1, ..., 1:2], 3, axis=3)
    same = np.isclose(descriptors(grey), descriptors(other), atol=1e-6).all(0)
    assert same.sum() >= 15, "the numbers that are about colours"


def test_quantiles_are_those_of_the_values_to_a_whole_number() -> None:
    values = np.random.default_rng(0).integers(0, 256, (3, 4001))
    shares = (0.002, 0.25, 0.5, 0.98)
    expected = np.quantile(values, shares, axis=1, method="inverted_cdf")
    assert np.array_equal(quantiles(values, shares, 256), expected)
