"""Snow, frost, fog, light and spatter follow their formulas."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from scipy import ndimage
from skimage.color import hsv2rgb, rgb2hsv

from discopatch.corruptions import describe_corruption, frost_source
from discopatch.corruptions.imagenet_c.frost import (
    PHOTOGRAPHS,
    frost_crop,
    frost_texture,
    photograph_folder,
)
from discopatch.corruptions.imagenet_c.weather import brightness, canny_edges, fog, frost

from ..images.samples import noise, photo
from .samples import every_severity, rng

FROST = {1: (1, 0.4), 2: (0.8, 0.6), 3: (0.7, 0.7), 4: (0.65, 0.7), 5: (0.6, 0.75)}
FOG = {1: (1.5, 2), 2: (2, 2), 3: (2.5, 1.7), 4: (2.5, 1.5), 5: (3, 1.4)}
LIGHT = {1: 0.1, 2: 0.2, 3: 0.3, 4: 0.4, 5: 0.5}


@every_severity
def test_frost_is_an_image_and_some_ice(severity: int) -> None:
    height, width = 33, 100
    own, ice = FROST[severity]
    x = photo(height, width) / 255.0
    texture = frost_crop(height, width, rng())
    assert 0 <= texture.min() < texture.max() <= 1
    np.testing.assert_allclose(frost(x, severity, rng()), own * x + ice * texture, rtol=0, atol=1e-12)


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A package imagecorruptions that cannot be imported; its photographs are of one grey each."""
    folder = tmp_path / "imagecorruptions" / "frost"
    folder.mkdir(parents=True)
    (folder.parent / "__init__.py").write_text("raise ImportError('setuptools')")
    for number, name in enumerate(PHOTOGRAPHS):
        mode, colour = ("RGBA", (number,) * 3 + (0,)) if name.endswith("png") else ("RGB", (number,) * 3)
        Image.new(mode, (60, 40), colour).save(folder / name)
    monkeypatch.syspath_prepend(tmp_path)
    photograph_folder.cache_clear()
    frost_texture.cache_clear()
    yield folder
    photograph_folder.cache_clear()
    frost_texture.cache_clear()


def test_photographs_are_taken_where_their_package_is_installed(package: Path) -> None:
    assert frost_source() == "photographs"
    assert describe_corruption("frost", 1)["texture"] == "photographs"
    drawn = [np.rint(frost_crop(32, 50, rng(seed)) * 255) for seed in range(60)]
    assert all(np.ptp(crop) == 0 for crop in drawn)
    assert {int(crop[0, 0, 0]) for crop in drawn} == set(range(5)), "the sixth photograph is never drawn"
    assert frost_crop(100, 130, rng()).shape == (100, 130, 3), "larger than the photograph"


@every_severity
@pytest.mark.parametrize("brightest", [1.0, 0.6])
def test_fog_is_rescaled_by_the_brightest(severity: int, brightest: float) -> None:
    thickness, _ = FOG[severity]
    x = photo(64, 64) / 255.0
    x *= brightest / x.max()
    clouds = (fog(x, severity, rng()) * (brightest + thickness) / brightest - x) / thickness
    assert np.ptp(clouds, axis=2).max() < 1e-12, "the fog is grey"
    assert clouds.min() == pytest.approx(0, abs=1e-12)
    assert clouds.max() == pytest.approx(1, abs=1e-12)
    other = (fog(x / 2, severity, rng()) * (brightest / 2 + thickness) / (brightest / 2) - x / 2) / thickness
    np.testing.assert_allclose(other, clouds, rtol=0, atol=1e-12, err_msg="the same clouds before any image")


@every_severity
def test_brightness_adds_to_the_value_of_hsv(severity: int) -> None:
    for x in (photo(40, 50) / 255.0, noise(33, 40) / 255.0, np.zeros((32, 32, 3))):
        hsv = rgb2hsv(x)
        hsv[..., 2] = np.minimum(hsv[..., 2] + LIGHT[severity], 1)
        np.testing.assert_allclose(brightness(x, severity, rng()), hsv2rgb(hsv), rtol=0, atol=1e-9)


def test_edges_are_those_of_canny() -> None:
    levels = (ndimage.gaussian_filter(rng().normal(0.65, 0.3, (120, 90)), 3) * 255).astype(np.int32)
    levels[levels < 173] = 0
    edges = canny_edges(levels)
    wet = levels > 0
    away = ndimage.distance_transform_cdt(~(wet ^ ndimage.binary_erosion(wet, border_value=1)), "chessboard")
    assert away[edges].max() <= 1, "edges lie on the rim of a drop"
    assert ndimage.distance_transform_cdt(~edges, "chessboard")[away == 0].max() <= 2, "and every rim has them"
    assert 0.7 < edges.sum() / (away == 0).sum() < 1.3, "one pixel wide"
