"""The anomaly map is high where an image is unusual, and mostly 0 on new normal images."""

import numpy as np
import pytest
from scipy.interpolate import RegularGridInterpolator

from discopatch.corruptions import corrupt
from discopatch.encoders import DiscriminatorEncoder, Encoder, Features
from discopatch.explain.anomaly_map import ANOMALY_MAP_SIZE, GRID, USUAL_SHARE, RegionModel, interpolation_matrix
from discopatch.heads.base import GroupNumbers
from discopatch.images import Pixels
from discopatch.pretrained import DEFAULT_WEIGHTS
from tests.samples import natural_detector, one_camera, tiny_weights

QUADRANTS = [(0, 0), (0, 1), (1, 0), (1, 1)]


def normal_images(count: int, *, size: int, seed: int) -> Pixels:
    return np.stack([each.pixels for each in one_camera(count, size=size, seed=seed)])


def corrupted_in(image: Pixels, quadrant: tuple[int, int], corruption: str) -> Pixels:
    half = len(image) // 2
    rows, columns = (slice(half * side, half * (side + 1)) for side in quadrant)
    result = image.copy()
    result[rows, columns] = corrupt(image, corruption, 4, seed=0)[rows, columns]
    return result


def grid_features(encoder: Encoder, image: Pixels) -> Features:
    return encoder.extract_regions(image, GRID**2)


def fitted(encoder: Encoder, pixels: Pixels, *, groups: GroupNumbers = None, seed: int = 0) -> RegionModel:
    return RegionModel.fit_images(encoder, pixels, {}, groups=groups, usual=USUAL_SHARE, seed=seed)


@pytest.fixture(scope="module")
def tiny() -> tuple[DiscriminatorEncoder, RegionModel]:
    encoder = DiscriminatorEncoder(tiny_weights(), patches="dense")
    return encoder, fitted(encoder, normal_images(24, size=64, seed=0))


@pytest.mark.parametrize("count", [21, 64])
def test_about_one_in_ten_regions_of_new_normal_images_is_anomalous(count: int) -> None:
    encoder = DiscriminatorEncoder(tiny_weights(), patches="dense")
    anomalous = []
    for draw in range(3):
        pixels = normal_images(count + 24, size=64, seed=draw)
        found = fitted(encoder, pixels[:count], seed=draw)
        anomalous += [(found.excess(grid_features(encoder, image)) > 0).mean() for image in pixels[count:]]
    assert 0.5 * (1 - USUAL_SHARE) <= np.mean(anomalous) <= 1.5 * (1 - USUAL_SHARE)


def test_near_copies_in_one_group_do_not_vouch_for_each_other() -> None:
    """Five noisy frames of each scene: unless scenes are kept together, the regions of a new one are all unusual."""
    encoder = DiscriminatorEncoder(tiny_weights(), patches="dense")
    scenes, rng = normal_images(8, size=64, seed=0), np.random.default_rng(0)
    frames = np.repeat(scenes, 5, axis=0)
    frames = np.clip(frames + rng.normal(0, 1, frames.shape), 0, 255).round().astype(np.uint8)
    alone = fitted(encoder, frames)
    together = fitted(encoder, frames, groups=np.repeat(np.arange(8), 5))
    new = [grid_features(encoder, image) for image in normal_images(12, size=64, seed=1)]
    kept_apart, kept_together = (np.mean([(each.excess(one) > 0).mean() for one in new]) for each in (alone, together))
    assert kept_together < 0.35 < kept_apart


def test_the_excess_is_reproducible_and_survives_as_tensors_to_the_bit(
    tiny: tuple[DiscriminatorEncoder, RegionModel],
) -> None:
    encoder, regions = tiny
    features = grid_features(encoder, corrupted_in(normal_images(1, size=64, seed=1)[0], (0, 0), "gaussian_noise"))
    scores, excess = regions.score(features), regions.excess(features)
    assert scores.shape == (GRID**2,)
    assert excess.tolist() == [max(score - float(regions.threshold), 0) for score in scores]
    assert excess.max() > 0
    for again in (
        RegionModel.from_tensors(regions.to_tensors(), regions.probes),
        fitted(encoder, normal_images(24, size=64, seed=0)),
    ):
        assert np.array_equal(again.excess(features), excess)


@pytest.mark.parametrize(("size", "patch_size"), [(256, 64), (100, 16)])
def test_the_map_is_interpolated_between_the_middles_of_the_regions(size: int, patch_size: int) -> None:
    values = np.random.default_rng(0).random(GRID**2)
    rows = interpolation_matrix(size, patch_size)
    found = rows @ values.reshape(GRID, GRID) @ rows.T
    assert found.shape == (ANOMALY_MAP_SIZE, ANOMALY_MAP_SIZE)
    corners = np.linspace(0, size - patch_size, GRID)
    middles = corners + patch_size / 2
    cells = np.clip((np.arange(ANOMALY_MAP_SIZE) + 0.5) * size / ANOMALY_MAP_SIZE, middles[0], middles[-1])
    reference = RegularGridInterpolator((middles, middles), values.reshape(GRID, GRID))
    expected = reference(np.stack(np.meshgrid(cells, cells, indexing="ij"), axis=-1))
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("corruption", ["gaussian_noise", "jpeg_compression"])
def test_most_of_the_anomaly_lies_in_the_corrupted_quadrant(corruption: str) -> None:
    detector, image = natural_detector(DEFAULT_WEIGHTS), normal_images(1, size=256, seed=6)[0]
    for quadrant in QUADRANTS:
        features = grid_features(detector.encoder_, corrupted_in(image, quadrant, corruption))
        values = detector.regions_.anomaly_map(features, size=256, patch_size=64)
        halves = {(row, column): values[32 * row :, 32 * column :][:32, :32].sum() for row, column in QUADRANTS}
        assert halves[quadrant] > 0.6 * values.sum(), halves
