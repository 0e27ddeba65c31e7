"""Each corruption follows its formula at every severity, checked against scipy, Pillow and scikit-image."""

import io
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from scipy import ndimage
from skimage.color import hsv2rgb, rgb2hsv

from discopatch.corruptions import CORRUPTIONS, SEVERITIES, corrupt, describe_corruption
from discopatch.corruptions.filters import Floats, scanned_places
from discopatch.corruptions.frost import PHOTOGRAPHS, frost_crop, frost_texture, photograph_folder

from ..images.samples import encoded, noise, photo

GAUSSIAN = {1: 1, 2: 2, 3: 3, 4: 4, 5: 6}
GLASS = {1: (0.7, 1, 2), 2: (0.9, 2, 1), 3: (1, 2, 3), 4: (1.1, 3, 2), 5: (1.5, 4, 2)}
ZOOMS = {1: (1.11, 0.01), 2: (1.16, 0.01), 3: (1.21, 0.02), 4: (1.26, 0.02), 5: (1.31, 0.03)}
LAYERS = {1: 12, 2: 16, 3: 11, 4: 13, 5: 11}
NOISE = {1: 0.08, 2: 0.12, 3: 0.18, 4: 0.26, 5: 0.38}
PHOTONS = {1: 60, 2: 25, 3: 12, 4: 5, 5: 3}
SPECKLES = {1: 0.15, 2: 0.2, 3: 0.35, 4: 0.45, 5: 0.6}
ELASTIC = {1: (2, 0.7, 0.1), 2: (2, 0.08, 0.2), 3: (0.05, 0.01, 0.02), 4: (0.07, 0.01, 0.02), 5: (0.12, 0.01, 0.02)}
QUALITY = {1: 25, 2: 18, 3: 15, 4: 10, 5: 7}
SATURATION = {1: (0.3, 0), 2: (0.1, 0), 3: (2, 0), 4: (5, 0.1), 5: (20, 0.2)}
FROST = {1: (1, 0.4), 2: (0.8, 0.6), 3: (0.7, 0.7), 4: (0.65, 0.7), 5: (0.6, 0.75)}
FOG = {1: (1.5, 2), 2: (2, 2), 3: (2.5, 1.7), 4: (2.5, 1.5), 5: (3, 1.4)}
LIGHT = {1: 0.1, 2: 0.2, 3: 0.3, 4: 0.4, 5: 0.5}
SINGLE_PRECISION = 2e-6
FAR_PLACES = 1e-4  # single precision of places far from the first pixel

every_severity = pytest.mark.parametrize("severity", SEVERITIES)


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def corrupted(name: str, x: Floats, severity: int, seed: int = 0) -> Floats:
    return CORRUPTIONS[name](x, severity, rng(seed))


def flat(level: float) -> Floats:
    return np.full((128, 128, 3), level)


@every_severity
def test_noises_have_their_distributions(severity: int) -> None:
    added = corrupted("gaussian_noise", flat(0.5), severity) - 0.5
    assert added.std() == pytest.approx(NOISE[severity], rel=0.02)
    assert abs(added.mean()) < 4 * NOISE[severity] / np.sqrt(added.size)
    kurtosis = ((added / added.std()) ** 4).mean()
    assert kurtosis == pytest.approx(3, abs=0.15), "normally distributed"
    for level in (0.1, 0.9):
        photons = corrupted("shot_noise", flat(level), severity) * PHOTONS[severity]
        np.testing.assert_allclose(photons, np.rint(photons), rtol=0, atol=1e-9)
        expected = level * PHOTONS[severity]
        assert photons.mean() == pytest.approx(expected, abs=4 * np.sqrt(expected / photons.size))
        assert photons.var() == pytest.approx(expected, rel=0.06), "a Poisson variable's variance is its mean"
        added = corrupted("speckle_noise", flat(level), severity) - level
        assert added.std() == pytest.approx(level * SPECKLES[severity], rel=0.02), "it grows with the light"


@every_severity
def test_gaussian_and_glass_blur_are_scipys_gaussian_of_moved_pixels(severity: int) -> None:
    x = photo(48, 37) / 255.0
    sigma = GAUSSIAN[severity]
    expected = ndimage.gaussian_filter(x, (sigma, sigma, 0), mode="nearest", truncate=4)
    np.testing.assert_allclose(corrupted("gaussian_blur", x, severity), expected, rtol=0, atol=1e-12)
    smaller, furthest, passes = GLASS[severity]
    blurred = np.floor(ndimage.gaussian_filter(x, (smaller, smaller, 0), mode="nearest") * 255 + 0.001) / 255
    drawn, taken = rng(5), np.arange(48 * 37)
    for _ in range(passes):
        down, right = drawn.integers(-furthest, furthest, (2, 48, 37))
        taken = taken[scanned_places(down, right, furthest)]
    moved = blurred.reshape(-1, 3)[taken].reshape(x.shape)
    expected = ndimage.gaussian_filter(moved, (smaller, smaller, 0), mode="nearest")
    np.testing.assert_allclose(corrupted("glass_blur", x, severity, 5), expected, rtol=0, atol=1e-12)


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
    np.testing.assert_allclose(corrupted("zoom_blur", x, severity), expected, rtol=0, atol=SINGLE_PRECISION)


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
    found = corrupted("elastic_transform", x, severity, 2)
    np.testing.assert_allclose(found, np.stack(expected, axis=2), rtol=0, atol=FAR_PLACES)


@every_severity
def test_jpeg_is_what_pillow_writes_at_that_quality(severity: int) -> None:
    image = photo(33, 47)
    file = encoded(image, "JPEG", quality=QUALITY[severity])
    assert np.array_equal(corrupt(image, "jpeg_compression", severity, seed=0), np.array(Image.open(io.BytesIO(file))))


@every_severity
def test_saturation_and_brightness_are_changed_in_hsv(severity: int) -> None:
    factor, addition = SATURATION[severity]
    for x in (photo(40, 50) / 255.0, noise(33, 40) / 255.0, np.zeros((32, 32, 3))):
        coloured, brighter = rgb2hsv(x), rgb2hsv(x)
        coloured[..., 1] = (coloured[..., 1] * factor + addition).clip(0, 1)
        brighter[..., 2] = np.minimum(brighter[..., 2] + LIGHT[severity], 1)
        np.testing.assert_allclose(corrupted("saturate", x, severity), hsv2rgb(coloured), rtol=0, atol=1e-9)
        np.testing.assert_allclose(corrupted("brightness", x, severity), hsv2rgb(brighter), rtol=0, atol=1e-9)


@every_severity
@pytest.mark.parametrize("brightest", [1.0, 0.6])
def test_fog_is_rescaled_by_the_brightest(severity: int, brightest: float) -> None:
    thickness, _ = FOG[severity]
    x = photo(64, 64) / 255.0
    x *= brightest / x.max()
    clouds = (corrupted("fog", x, severity) * (brightest + thickness) / brightest - x) / thickness
    assert np.ptp(clouds, axis=2).max() < 1e-12, "the fog is grey"
    assert clouds.min() == pytest.approx(0, abs=1e-12)
    assert clouds.max() == pytest.approx(1, abs=1e-12)
    other = (corrupted("fog", x / 2, severity) * (brightest / 2 + thickness) / (brightest / 2) - x / 2) / thickness
    np.testing.assert_allclose(other, clouds, rtol=0, atol=1e-12, err_msg="the same clouds before any image")


@every_severity
def test_frost_is_an_image_and_some_ice(severity: int) -> None:
    own, ice = FROST[severity]
    x = photo(33, 100) / 255.0
    texture = frost_crop(33, 100, rng())
    assert 0 <= texture.min() < texture.max() <= 1
    np.testing.assert_allclose(corrupted("frost", x, severity), own * x + ice * texture, rtol=0, atol=1e-12)


@pytest.fixture
def photographs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A package imagecorruptions that cannot be imported; its photographs are of one grey each."""
    folder = tmp_path / "imagecorruptions" / "frost"
    folder.mkdir(parents=True)
    (folder.parent / "__init__.py").write_text("raise ImportError('setuptools')")
    for number, name in enumerate(PHOTOGRAPHS):
        mode, colour = ("RGBA", (number,) * 3 + (0,)) if name.endswith("png") else ("RGB", (number,) * 3)
        Image.new(mode, (60, 40), colour).save(folder / name)
    monkeypatch.syspath_prepend(tmp_path)
    for cached in (photograph_folder, frost_texture):
        cached.cache_clear()
    yield
    for cached in (photograph_folder, frost_texture):
        cached.cache_clear()


@pytest.mark.usefixtures("photographs")
def test_photographs_are_taken_where_their_package_is_installed() -> None:
    expected = {"corrupt": "frost", "severity": 1, "version": 2, "texture": "photographs"}
    assert describe_corruption("frost", 1) == expected
    drawn = [np.rint(frost_crop(32, 50, rng(seed)) * 255) for seed in range(60)]
    assert all(np.ptp(crop) == 0 for crop in drawn)
    assert {int(crop[0, 0, 0]) for crop in drawn} == set(range(5)), "the sixth photograph is never drawn"
    assert frost_crop(100, 130, rng()).shape == (100, 130, 3), "larger than the photograph"
