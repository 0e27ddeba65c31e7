"""Every blur has its kernel, checked against scipy's slow and general filters."""

import numpy as np
import pytest
from scipy import ndimage

from discopatch.corruptions.imagenet_c.blur import (
    defocus_blur,
    gaussian_blur,
    glass_blur,
    motion_blur,
    swapped_places,
    zoom_blur,
)
from discopatch.corruptions.imagenet_c.filters import Floats, convolve, disk, one_sided_line, zoom_centre

from ..images.samples import noise, photo
from .samples import every_severity, rng

GAUSSIAN = {1: 1, 2: 2, 3: 3, 4: 4, 5: 6}
DISK = {1: (3, 0.1), 2: (4, 0.5), 3: (6, 0.5), 4: (8, 0.5), 5: (10, 0.5)}
GLASS = {1: (0.7, 1, 2), 2: (0.9, 2, 1), 3: (1, 2, 3), 4: (1.1, 3, 2), 5: (1.5, 4, 2)}
MOTION = {1: (10, 3), 2: (15, 5), 3: (15, 8), 4: (15, 12), 5: (20, 15)}
ZOOMS = {
    1: [1, 1.01, 1.02, 1.03, 1.04, 1.05, 1.06, 1.07, 1.08, 1.09, 1.1, 1.11],
    2: [1, 1.01, 1.02, 1.03, 1.04, 1.05, 1.06, 1.07, 1.08, 1.09, 1.1, 1.11, 1.12, 1.13, 1.14, 1.15, 1.16],
    3: [1, 1.02, 1.04, 1.06, 1.08, 1.1, 1.12, 1.14, 1.16, 1.18, 1.2],
    4: [1, 1.02, 1.04, 1.06, 1.08, 1.1, 1.12, 1.14, 1.16, 1.18, 1.2, 1.22, 1.24, 1.26],
    5: [1, 1.03, 1.06, 1.09, 1.12, 1.15, 1.18, 1.21, 1.24, 1.27, 1.3],
}
SINGLE_PRECISION = 2e-6


def one_white_pixel(side: int = 101) -> Floats:
    x = np.zeros((side, side, 3))
    x[side // 2, side // 2] = 1
    return x


@every_severity
@pytest.mark.parametrize(("height", "width"), [(48, 64), (32, 32), (33, 100)])
def test_gaussian_blur_is_scipys(severity: int, height: int, width: int) -> None:
    x = photo(height, width) / 255.0
    sigma = GAUSSIAN[severity]
    expected = ndimage.gaussian_filter(x, (sigma, sigma, 0), mode="nearest", truncate=4)
    np.testing.assert_allclose(gaussian_blur(x, severity, rng()), expected, rtol=0, atol=1e-12)


def test_an_image_smaller_than_the_blur_is_blurred_too() -> None:
    x = noise(5, 7) / 255.0
    expected = ndimage.gaussian_filter(x, (6, 6, 0), mode="nearest", truncate=4)
    np.testing.assert_allclose(gaussian_blur(x, 5, rng()), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize(("border", "in_scipy"), [("edge", "nearest"), ("reflect", "mirror")])
@pytest.mark.parametrize(("height", "width"), [(32, 32), (33, 70)])
def test_convolution_is_scipys(border: str, in_scipy: str, height: int, width: int) -> None:
    x = noise(height, width) / 255.0
    kernel = rng().random((5, 13)) / 65
    expected = ndimage.convolve(x, kernel[..., None], mode=in_scipy)
    found = convolve(x, kernel, border=border)  # type: ignore[arg-type]
    np.testing.assert_allclose(found, expected, rtol=0, atol=SINGLE_PRECISION)
    alone = convolve(x[..., 0], kernel, border=border)  # type: ignore[arg-type]
    np.testing.assert_allclose(alone, expected[..., 0], rtol=0, atol=SINGLE_PRECISION)


@every_severity
def test_defocus_spreads_a_pixel_over_a_disk(severity: int) -> None:
    radius, sigma = DISK[severity]
    spread = defocus_blur(one_white_pixel(), severity, rng())[..., 0]
    assert spread.sum() == pytest.approx(1, abs=1e-4)
    away = np.hypot(*(np.indices(spread.shape) - 50))
    assert np.abs(spread[away > radius + 2.9]).max() < SINGLE_PRECISION
    inside = spread[away < radius - 2]
    assert np.ptp(inside) < 1e-4, "flat inside"
    assert inside.mean() == pytest.approx(1 / (np.pi * radius**2), rel=0.1)
    # A Gaussian adds its own variance, twice in the plane, to the r^2/2 of the disk.
    assert (spread * away**2).sum() == pytest.approx(radius**2 / 2 + 2 * sigma**2, rel=0.06)


@every_severity
def test_the_disk_is_smoothed_only_at_its_rim(severity: int) -> None:
    radius, sigma = DISK[severity]
    kernel = disk(radius, sigma)
    assert kernel.sum() == pytest.approx(1)
    np.testing.assert_allclose(kernel, kernel[::-1, ::-1].T, rtol=0, atol=1e-15)
    partial = (kernel > 1e-6 * kernel.max()) & (kernel < 0.99 * kernel.max())
    assert partial.any() == (sigma >= 0.5), "sigma 0.1 reaches no neighbour"


@every_severity
def test_glass_blur_is_a_blur_of_swapped_pixels_of_a_blur(severity: int) -> None:
    sigma, furthest, passes = GLASS[severity]
    x = photo(48, 37) / 255.0
    blurred = ndimage.gaussian_filter(x, (sigma, sigma, 0), mode="nearest")
    swapped = blurred.reshape(-1, 3)[swapped_places(48, 37, int(furthest), int(passes), rng(5))].reshape(x.shape)
    expected = ndimage.gaussian_filter(swapped, (sigma, sigma, 0), mode="nearest")
    np.testing.assert_allclose(glass_blur(x, severity, rng(5)), expected, rtol=0, atol=1e-12)


@every_severity
@pytest.mark.parametrize(("height", "width"), [(64, 64), (33, 100), (32, 35)])
def test_glass_loses_no_pixel_and_moves_none_too_far(severity: int, height: int, width: int) -> None:
    _, furthest, passes = GLASS[severity]
    places = swapped_places(height, width, int(furthest), int(passes), rng())
    assert np.array_equal(np.sort(places), np.arange(height * width)), "a permutation"
    rows, columns = np.divmod(places, width)
    down = rows - np.arange(height)[:, None].repeat(width, 1).ravel()
    right = columns - np.tile(np.arange(width), height)
    for moved in (down, right):
        assert np.abs(moved).max() <= furthest * passes
        assert np.abs(moved).max() >= min(furthest * passes, 2)
        assert abs(moved.mean()) < 1e-12, "swaps drift nowhere"


@pytest.mark.parametrize("furthest", [1, 2, 3, 4])
def test_one_pass_of_swaps_undoes_itself(furthest: int) -> None:
    places = swapped_places(64, 50, furthest, 1, rng())
    assert np.array_equal(places[places], np.arange(64 * 50))
    assert 0.6 < (places != np.arange(64 * 50)).mean() < 0.9, "most of the pixels move"


@every_severity
@pytest.mark.parametrize("seed", range(4))
def test_motion_smears_a_pixel_along_one_ray(severity: int, seed: int) -> None:
    radius, sigma = MOTION[severity]
    smeared = motion_blur(one_white_pixel(), severity, rng(seed))[..., 0]
    rows, columns = np.nonzero(smeared > 1e-5)
    down, right = rows - 50, columns - 50
    assert (right >= 0).all(), "to one side"
    tip = np.argmax(np.hypot(down, right))
    degrees = np.rad2deg(np.arctan2(down[tip], right[tip]))
    assert -46 < degrees < 46
    off_line = np.abs(down * right[tip] - right * down[tip]) / np.hypot(down[tip], right[tip])
    assert off_line.max() < 1.5, "on a line, but for rounding to pixels"
    assert smeared.sum() == pytest.approx(1, abs=1e-4)
    reach = min(2 * radius, 4 * sigma)
    assert np.hypot(down, right).max() == pytest.approx(reach, abs=2.5)
    expected = one_sided_line(radius, sigma, rng(seed).uniform(-45, 45))
    around = slice(50 - 2 * radius, 51 + 2 * radius)
    np.testing.assert_allclose(smeared[around, around], expected, rtol=0, atol=SINGLE_PRECISION)


@every_severity
def test_motion_fades_like_half_a_gaussian(severity: int) -> None:
    radius, sigma = MOTION[severity]
    line = one_sided_line(radius, sigma, 0)
    middle = len(line) // 2
    expected = np.exp(-(np.arange(2 * radius + 1) ** 2) / (2 * sigma**2))
    np.testing.assert_allclose(line[middle, middle:], expected / expected.sum(), rtol=1e-12)
    assert np.count_nonzero(line) == 2 * radius + 1
    np.testing.assert_allclose(one_sided_line(radius, sigma, 90), line.T, atol=1e-15)


def test_the_angles_of_motion_fill_their_range() -> None:
    found = []
    for seed in range(60):
        smeared = motion_blur(one_white_pixel(), 5, rng(seed))[..., 0]
        rows, columns = np.indices(smeared.shape) - 50
        found.append(np.rad2deg(np.arctan2((rows * smeared).sum(), (columns * smeared).sum())))
    assert -46 < min(found) < -35
    assert 35 < max(found) < 46
    assert abs(np.mean(found)) < 12


@every_severity
@pytest.mark.parametrize(("height", "width"), [(32, 48), (33, 45)])
def test_zoom_blur_is_the_mean_of_the_image_and_its_zooms(severity: int, height: int, width: int) -> None:
    x = noise(height, width) / 255.0
    total = x.copy()
    for zoom in ZOOMS[severity]:
        middle = np.array([[[height - 1]], [[width - 1]]]) / 2
        places = middle + (np.indices((height, width)) - middle) / zoom
        total += np.stack([ndimage.map_coordinates(x[..., each], places, order=1) for each in range(3)], axis=2)
    expected = total / (len(ZOOMS[severity]) + 1)
    np.testing.assert_allclose(zoom_blur(x, severity, rng()), expected, rtol=0, atol=SINGLE_PRECISION)


@every_severity
def test_zoom_blur_leaves_the_middle_pixel_and_moves_the_corner(severity: int) -> None:
    x = noise(33, 65) / 255.0
    zoomed = zoom_blur(x, severity, rng())
    np.testing.assert_allclose(zoomed[16, 32], x[16, 32], rtol=0, atol=SINGLE_PRECISION)
    assert np.abs(zoomed[0, 0] - x[0, 0]).max() > 0.01


def test_zooming_by_1_changes_nothing_and_by_2_doubles() -> None:
    x = photo(33, 45) / 255.0
    np.testing.assert_allclose(zoom_centre(x, 1), x, rtol=0, atol=1e-12)
    np.testing.assert_allclose(zoom_centre(x, 2)[::2, ::2], x[8:25, 11:34], rtol=0, atol=1e-12)
