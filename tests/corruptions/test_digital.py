"""Contrast, elastic, pixels, JPEG and saturation follow their formulas."""

import io

import numpy as np
import pytest
from PIL import Image
from scipy import ndimage
from skimage.color import hsv2rgb, rgb2hsv

from discopatch.corruptions import corrupt
from discopatch.corruptions.imagenet_c.digital import (
    displaced,
    elastic_transform,
    saturate,
)

from ..images.samples import encoded, noise, photo
from .samples import every_severity, rng

ELASTIC = {1: (2, 0.7, 0.1), 2: (2, 0.08, 0.2), 3: (0.05, 0.01, 0.02), 4: (0.07, 0.01, 0.02), 5: (0.12, 0.01, 0.02)}
QUALITY = {1: 25, 2: 18, 3: 15, 4: 10, 5: 7}
SINGLE_PRECISION = 1e-4  # of places far from the first pixel
SATURATION = {1: (0.3, 0), 2: (0.1, 0), 3: (2, 0), 4: (5, 0.1), 5: (20, 0.2)}


@every_severity
def test_elastic_is_an_affine_warp_and_then_smooth_displacements(severity: int) -> None:
    side, unit = 112, 122  # 244 of 224 pixels
    alpha, sigma, shift = (share * unit for share in ELASTIC[severity])
    x = photo(side, side) / 255.0
    drawn = rng(2)
    points = np.array([[93, 93], [19, 93], [19, 19]])  # row and column: a third of the side from the middle
    moved = points + drawn.uniform(-shift, shift, (3, 2))
    matrix = np.linalg.lstsq(np.column_stack([moved, [1, 1, 1]]), points, rcond=None)[0]
    warped = np.stack(
        [ndimage.affine_transform(x[..., each], matrix[:2].T, matrix[2], order=1, mode="mirror") for each in range(3)],
        axis=2,
    )
    rough = drawn.uniform(-1, 1, (2, side, side))
    shifts = [alpha * ndimage.gaussian_filter(each, sigma, mode="reflect", truncate=3) for each in rough]
    places = np.indices((side, side)) + np.stack(shifts)
    expected = [ndimage.map_coordinates(warped[..., each], places, order=1, mode="reflect") for each in range(3)]
    np.testing.assert_allclose(
        elastic_transform(x, severity, rng(2)), np.stack(expected, axis=2), rtol=0, atol=SINGLE_PRECISION
    )


@pytest.mark.parametrize("furthest", [12, 90])
def test_displaced_is_scipys_bilinear_with_mirrored_borders(furthest: int) -> None:
    height, width = 33, 50
    x = noise(height, width) / 255.0
    shifts = rng().uniform(-furthest, furthest, (2, height, width)).astype(np.float32)
    places = np.indices((height, width)) + shifts.astype(float)
    expected = [ndimage.map_coordinates(x[..., each], places, order=1, mode="reflect") for each in range(3)]
    found = displaced(x.astype(np.float32), shifts)
    np.testing.assert_allclose(found, np.stack(expected, axis=2), rtol=0, atol=SINGLE_PRECISION)


@every_severity
def test_jpeg_is_what_pillow_writes_at_that_quality(severity: int) -> None:
    image = photo(33, 47)
    file = encoded(image, "JPEG", quality=QUALITY[severity])
    assert np.array_equal(corrupt(image, "jpeg_compression", severity, seed=0), np.array(Image.open(io.BytesIO(file))))


@every_severity
def test_saturation_is_changed_in_hsv(severity: int) -> None:
    factor, addition = SATURATION[severity]
    for x in (photo(40, 50) / 255.0, noise(33, 40) / 255.0):
        hsv = rgb2hsv(x)
        hsv[..., 1] = (hsv[..., 1] * factor + addition).clip(0, 1)
        np.testing.assert_allclose(saturate(x, severity, rng()), hsv2rgb(hsv), rtol=0, atol=1e-9)
