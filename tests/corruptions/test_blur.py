"""Every blur has its kernel, checked against scipy's slow and general filters."""

import numpy as np
import pytest
from scipy import ndimage

from discopatch.corruptions.imagenet_c.blur import (
    gaussian_blur,
    glass_blur,
    scanned_places,
    taken_places,
    zoom_blur,
)
from discopatch.corruptions.imagenet_c.filters import Floats, convolve

from ..images.samples import noise, photo
from .samples import every_severity, rng

GAUSSIAN = {1: 1, 2: 2, 3: 3, 4: 4, 5: 6}
GLASS = {1: (0.7, 1, 2), 2: (0.9, 2, 1), 3: (1, 2, 3), 4: (1.1, 3, 2), 5: (1.5, 4, 2)}
ZOOMS = {1: (1.11, 0.01), 2: (1.16, 0.01), 3: (1.21, 0.02), 4: (1.26, 0.02), 5: (1.31, 0.03)}
LAYERS = {1: 12, 2: 16, 3: 11, 4: 13, 5: 11}
SINGLE_PRECISION = 2e-6


@every_severity
def test_gaussian_blur_is_scipys(severity: int) -> None:
    x = photo(33, 100) / 255.0
    sigma = GAUSSIAN[severity]
    expected = ndimage.gaussian_filter(x, (sigma, sigma, 0), mode="nearest", truncate=4)
    np.testing.assert_allclose(gaussian_blur(x, severity, rng()), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize(("border", "in_scipy"), [("edge", "nearest"), ("reflect", "mirror")])
def test_convolution_is_scipys(border: str, in_scipy: str) -> None:
    x = noise(33, 70) / 255.0
    kernel = rng().random((5, 13)) / 65
    expected = ndimage.convolve(x, kernel[..., None], mode=in_scipy)
    found = convolve(x, kernel, border=border)  # type: ignore[arg-type]
    np.testing.assert_allclose(found, expected, rtol=0, atol=SINGLE_PRECISION)
    alone = convolve(x[..., 0], kernel, border=border)  # type: ignore[arg-type]
    np.testing.assert_allclose(alone, expected[..., 0], rtol=0, atol=SINGLE_PRECISION)


@every_severity
def test_glass_blur_is_a_blur_of_moved_pixels_of_a_blur(severity: int) -> None:
    sigma, furthest, passes = GLASS[severity]
    x = photo(48, 37) / 255.0
    blurred = np.floor(ndimage.gaussian_filter(x, (sigma, sigma, 0), mode="nearest") * 255 + 0.001) / 255
    moved = blurred.reshape(-1, 3)[taken_places(48, 37, int(furthest), int(passes), rng(5))].reshape(x.shape)
    expected = ndimage.gaussian_filter(moved, (sigma, sigma, 0), mode="nearest")
    np.testing.assert_allclose(glass_blur(x, severity, rng(5)), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("furthest", [1, 4])
@pytest.mark.parametrize(("height", "width"), [(33, 50), (9, 40)])
def test_the_scan_is_that_of_a_loop_over_the_pixels(furthest: int, height: int, width: int) -> None:
    down, right = rng().integers(-furthest, furthest, (2, height, width))
    colours = np.arange(height * width).reshape(height, width)
    for row in range(height - furthest, furthest, -1):
        for column in range(width - furthest, furthest, -1):
            colours[row, column] = colours[row + down[row, column], column + right[row, column]]
    assert np.array_equal(scanned_places(down, right, furthest), colours.ravel())


def zoomed(x: Floats, factor: float) -> Floats:
    """The middle of an image in whole pixels, enlarged by scipy and trimmed."""
    cuts, trims = [], []
    for side in x.shape[:2]:
        kept = int(np.ceil(side / factor))
        cuts.append(slice((side - kept) // 2, (side - kept) // 2 + kept))
        trims.append(slice((round(kept * factor) - side) // 2, (round(kept * factor) - side) // 2 + side))
    large = ndimage.zoom(x[tuple(cuts)], (factor, factor, 1), order=1)
    return np.asarray(large[tuple(trims)])


@every_severity
def test_zoom_blur_is_the_mean_of_the_image_and_its_zooms(severity: int) -> None:
    x = noise(33, 48) / 255.0
    expected = (x + sum(zoomed(x, zoom) for zoom in np.arange(1, *ZOOMS[severity]))) / (LAYERS[severity] + 1)
    np.testing.assert_allclose(zoom_blur(x, severity, rng()), expected, rtol=0, atol=SINGLE_PRECISION)
