"""The anomaly map is high where an image is unusual, and below 1 nearly everywhere on new normal images."""

from pathlib import Path

import numpy as np
import pytest
from scipy.interpolate import RegularGridInterpolator
from scipy.ndimage import uniform_filter

from discopatch import Detector
from discopatch.explain.anomaly_map import enlarge
from tests.samples import camera_pixels, new_detector


@pytest.fixture(scope="module")
def tiny() -> Detector:
    """Fitted on images of 64 x 96 pixels."""
    return new_detector().fit(list(camera_pixels(40, size=96, seed=0)[:, :64]))


@pytest.mark.parametrize(("cells", "shape"), [((4, 6), (32, 48)), ((7, 5), (50, 41)), ((1, 3), (8, 24))])
def test_the_map_is_interpolated_between_the_middles_of_cells(cells: tuple[int, int], shape: tuple[int, int]) -> None:
    z = np.random.default_rng(0).normal(1, 2, cells)
    found = enlarge(z, 1.5, shape)
    assert found.dtype == np.float32
    assert found.shape == shape
    padded = np.pad(z, 1)
    average = uniform_filter(padded, 3, mode="constant")[1:-1, 1:-1]
    # One cell along a side has no middles to interpolate between; it is repeated.
    middles = [np.arange(max(count, 2)) + 0.5 for count in cells]
    values = np.broadcast_to(average, [len(each) for each in middles]) if 1 in cells else average
    points = [
        np.clip((np.arange(length) + 0.5) * count / length, 0.5, count - 0.5)
        for length, count in zip(shape, cells, strict=True)
    ]
    expected = RegularGridInterpolator(middles, values)(np.stack(np.meshgrid(*points, indexing="ij"), -1))
    np.testing.assert_allclose(found, np.maximum(expected / 1.5, 0), rtol=1e-5, atol=1e-6)


def test_the_map_has_the_shape_of_the_image_and_is_reproducible(tiny: Detector, tmp_path: Path) -> None:
    tiny.save(tmp_path / "tiny.safetensors")
    again = Detector.load(tmp_path / "tiny.safetensors", device="cpu")
    whole = camera_pixels(1, size=96, seed=1)[0]
    for image in (whole[:64], whole[:, :64], whole):
        found = tiny.explain(image)
        assert found.anomaly_map.shape == found.image.shape[:2]
        assert found.anomaly_map.min() >= 0
        assert np.array_equal(again.explain(image).anomaly_map, found.anomaly_map)


def test_few_pixels_of_new_normal_images_are_above_1(tiny: Detector) -> None:
    maps = [tiny.explain(image[:64]).anomaly_map for image in camera_pixels(24, size=96, seed=1)]
    assert np.mean([(each > 1).mean() for each in maps]) < 0.03


def test_the_map_is_largest_where_the_image_was_changed(detector: Detector) -> None:
    rng = np.random.default_rng(0)
    for number, image in enumerate(camera_pixels(6, size=256, seed=2)):
        top, left = 70 * (number % 3), 100 * (number % 2)
        changed = image.copy()
        changed[top : top + 48, left : left + 48] = rng.integers(0, 256, (48, 48, 3))
        found = detector.explain(changed).anomaly_map
        row, column = np.array(np.unravel_index(found.argmax(), found.shape)) * 256 / len(found)
        assert found.max() > detector.explain(image).anomaly_map.max()
        assert top <= row < top + 48
        assert left <= column < left + 48
