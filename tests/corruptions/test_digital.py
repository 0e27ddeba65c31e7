"""Contrast, elastic, pixels, JPEG and saturation follow their formulas."""

import io
from itertools import pairwise

import numpy as np
import pytest
from PIL import Image
from scipy import ndimage
from skimage.color import hsv2rgb, rgb2hsv

from discopatch.corruptions import corrupt
from discopatch.corruptions.imagenet_c.digital import (
    contrast,
    displaced,
    elastic_transform,
    pixelate,
    saturate,
    smooth_displacement,
)

from ..images.samples import encoded, noise, photo
from .samples import every_severity, rng

CONTRAST = {1: 0.4, 2: 0.3, 3: 0.2, 4: 0.1, 5: 0.05}
ALPHA = {1: 12.5, 2: 16.25, 3: 21.25, 4: 25, 5: 30}
SHARE = {1: 0.6, 2: 0.5, 3: 0.4, 4: 0.3, 5: 0.25}
QUALITY = {1: 25, 2: 18, 3: 15, 4: 10, 5: 7}
SATURATION = {1: (0.3, 0), 2: (0.1, 0), 3: (2, 0), 4: (5, 0.1), 5: (20, 0.2)}


@every_severity
def test_contrast_shrinks_about_the_mean_of_each_channel(severity: int) -> None:
    x = photo(40, 50) / 255.0
    flatter = contrast(x, severity, rng())
    for channel in range(3):
        before, after = x[..., channel], flatter[..., channel]
        mean = before.sum() / before.size
        np.testing.assert_allclose(after, CONTRAST[severity] * before + (1 - CONTRAST[severity]) * mean, atol=1e-12)
        assert after.std() == pytest.approx(CONTRAST[severity] * before.std())


@every_severity
@pytest.mark.parametrize(("height", "width"), [(100, 100), (64, 200)])
def test_elastic_displacement_is_smoothed_uniform_noise(severity: int, height: int, width: int) -> None:
    rows, columns = np.indices((height, width)) / 1.0
    ramps = np.stack([rows, columns, np.ones_like(rows)], axis=2)
    moved = elastic_transform(ramps, severity, rng(1)) - ramps
    drawn = rng(1)
    margin = int(np.ceil(0.005 * height * ALPHA[severity])) + 1
    inside = (slice(margin, -margin), slice(margin, -margin))  # a ramp shows where it comes from, but for its mirror
    for axis in (0, 1):
        uniform = drawn.uniform(-0.005 * height, 0.005 * height, (height, width))
        smooth = ndimage.gaussian_filter(uniform, (0.01 * height, 0.01 * width), mode="reflect", truncate=3)
        np.testing.assert_allclose(moved[..., axis][inside], ALPHA[severity] * smooth[inside], rtol=0, atol=1e-9)
    assert np.abs(moved[..., 2]).max() < 1e-12


def test_displacements_have_the_size_that_theory_gives() -> None:
    down = smooth_displacement(256, 256, rng())
    sigma = 2.56
    expected = 0.005 * 256 / np.sqrt(3) / (2 * np.sqrt(np.pi) * sigma)
    assert down.std() == pytest.approx(expected, rel=0.05)
    assert abs(down.mean()) < expected / 5


@pytest.mark.parametrize(("height", "width"), [(40, 50), (33, 32)])
def test_displaced_is_scipys_bilinear_with_mirrored_borders(height: int, width: int) -> None:
    x = noise(height, width) / 255.0
    down, right = rng().uniform(-12, 12, (2, height, width))
    places = np.indices((height, width)) + np.stack([down, right])
    expected = np.stack(
        [ndimage.map_coordinates(x[..., each], places, order=1, mode="reflect") for each in range(3)], axis=2
    )
    np.testing.assert_allclose(displaced(x, down, right), expected, rtol=0, atol=1e-9)


@every_severity
@pytest.mark.parametrize(("height", "width"), [(64, 80), (33, 100)])
def test_pixelate_makes_blocks(severity: int, height: int, width: int) -> None:
    blocky = pixelate(noise(height, width) / 255.0, severity, rng())
    for axis, side in enumerate((height, width)):
        lines = np.moveaxis(blocky, axis, 0)
        runs = 1 + sum(not np.array_equal(one, other) for one, other in pairwise(lines))
        assert runs == int(side * SHARE[severity])


@pytest.mark.parametrize(("severity", "block"), [(2, 2), (5, 4)])
def test_blocks_have_the_mean_of_their_pixels(severity: int, block: int) -> None:
    x = photo(48, 64) / 255.0
    mean = x.reshape(48 // block, block, 64 // block, block, 3).mean(axis=(1, 3))
    expected = mean.repeat(block, 0).repeat(block, 1)
    # Pillow rounds after each direction.
    np.testing.assert_allclose(pixelate(x, severity, rng()), expected, rtol=0, atol=1.01 / 255)


@every_severity
@pytest.mark.parametrize(("height", "width"), [(48, 64), (33, 47)])
def test_jpeg_is_what_pillow_writes_at_that_quality(severity: int, height: int, width: int) -> None:
    image = photo(height, width)
    file = encoded(image, "JPEG", quality=QUALITY[severity])
    assert np.array_equal(corrupt(image, "jpeg_compression", severity, seed=0), np.array(Image.open(io.BytesIO(file))))


@every_severity
def test_saturation_is_changed_in_hsv(severity: int) -> None:
    factor, addition = SATURATION[severity]
    for x in (photo(40, 50) / 255.0, noise(33, 40) / 255.0):
        hsv = rgb2hsv(x)
        hsv[..., 1] = (hsv[..., 1] * factor + addition).clip(0, 1)
        np.testing.assert_allclose(saturate(x, severity, rng()), hsv2rgb(hsv), rtol=0, atol=1e-9)


@every_severity
def test_saturated_grey_is_grey_until_it_turns_red(severity: int) -> None:
    _, addition = SATURATION[severity]
    grey = np.repeat(photo(40, 50)[..., :1] / 255.0, 3, axis=2)
    expected = grey * np.array([1, 1 - addition, 1 - addition])
    np.testing.assert_allclose(saturate(grey, severity, rng()), expected, rtol=0, atol=1e-12)
