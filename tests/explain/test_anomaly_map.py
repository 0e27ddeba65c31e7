"""The anomaly map is high where an image is unusual, and below 1 nearly everywhere on new normal images."""

from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.interpolate import RegularGridInterpolator
from scipy.ndimage import uniform_filter

from discopatch import Detector
from discopatch.calibration import Index
from discopatch.corruptions import corrupt
from discopatch.encoders import DiscriminatorEncoder
from discopatch.explain.anomaly_map import enlarge
from discopatch.heads.places import fit_places
from discopatch.images import Pixels
from discopatch.pretrained import DEFAULT_WEIGHTS
from tests.samples import natural_detector, new_detector, one_camera, tiny_weights

QUADRANTS = [(0, 0), (0, 1), (1, 0), (1, 1)]


def normal_images(count: int, *, size: int, seed: int) -> Pixels:
    return np.stack([each.pixels for each in one_camera(count, size=size, seed=seed)])


def corrupted_in(image: Pixels, quadrant: tuple[int, int], corruption: str) -> Pixels:
    half = len(image) // 2
    rows, columns = (slice(half * side, half * (side + 1)) for side in quadrant)
    result = image.copy()
    result[rows, columns] = corrupt(image, corruption, 4, seed=0)[rows, columns]
    return result


@pytest.fixture(scope="module")
def tiny() -> Detector:
    """Fitted on images of 64 x 96 pixels."""
    return new_detector().fit(list(normal_images(40, size=96, seed=0)[:, :64]))


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
    whole = normal_images(1, size=96, seed=1)[0]
    for image in (whole[:64], whole[:, :64], whole):
        found = tiny.explain(image)
        assert found.anomaly_map.shape == found.image.shape[:2]
        assert found.anomaly_map.min() >= 0
        assert np.array_equal(again.explain(image).anomaly_map, found.anomaly_map)


def test_few_pixels_of_new_normal_images_are_above_1(tiny: Detector) -> None:
    maps = [tiny.explain(image[:64]).anomaly_map for image in normal_images(24, size=96, seed=1)]
    assert np.mean([(each > 1).mean() for each in maps]) < 0.03


def test_the_map_is_largest_where_the_image_was_changed(detector: Detector) -> None:
    rng = np.random.default_rng(0)
    for number, image in enumerate(normal_images(6, size=256, seed=2)):
        top, left = 70 * (number % 3), 100 * (number % 2)
        changed = image.copy()
        changed[top : top + 48, left : left + 48] = rng.integers(0, 256, (48, 48, 3))
        found = detector.explain(changed).anomaly_map
        row, column = np.array(np.unravel_index(found.argmax(), found.shape)) * 256 / len(found)
        assert found.max() > 1
        assert top <= row < top + 48
        assert left <= column < left + 48


def test_near_copies_in_one_group_do_not_vouch_for_each_other() -> None:
    """Five noisy frames of each scene: unless scenes are kept together, many places of a new one are unusual."""
    encoder = DiscriminatorEncoder(tiny_weights(), kinds=("places",))
    scenes, rng = normal_images(8, size=64, seed=0), np.random.default_rng(0)
    frames = np.repeat(scenes, 5, axis=0)
    frames = np.clip(frames + rng.normal(0, 1, frames.shape), 0, 255).round().astype(np.uint8)
    places, new = (
        torch.from_numpy(encoder.extract_pixels(each).places) for each in (frames, normal_images(12, size=64, seed=1))
    )

    def hot(fold: Index) -> float:
        fitted = fit_places(
            lambda chosen: (places[row] for row in chosen), fold, np.arange(40), blocks=encoder.place_sizes, seed=0
        )
        with torch.inference_mode():
            z: NDArray[np.float32] = fitted.model([new.permute(0, 3, 1, 2)]).numpy()
        return float(np.mean([(enlarge(each, float(fitted.model.level), (64, 64)) > 1).mean() for each in z]))

    assert hot(np.arange(40) // 5) < 0.05 < hot(np.arange(40))


@pytest.mark.slow
@pytest.mark.parametrize("corruption", ["gaussian_noise", "jpeg_compression"])
def test_most_of_the_anomaly_lies_in_the_corrupted_quadrant(corruption: str) -> None:
    detector, image = natural_detector(DEFAULT_WEIGHTS), normal_images(1, size=256, seed=6)[0]
    for quadrant in QUADRANTS:
        values = detector.explain(corrupted_in(image, quadrant, corruption)).anomaly_map
        half = len(values) // 2
        halves = {(row, column): values[half * row :, half * column :][:half, :half].sum() for row, column in QUADRANTS}
        assert halves[quadrant] > 0.6 * values.sum(), halves
