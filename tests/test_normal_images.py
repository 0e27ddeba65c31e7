"""Normal images are looked at before they are trusted: their order, copies, and images that are used twice."""

import re
from types import SimpleNamespace

import numpy as np
import pytest

from discopatch import normal_images
from discopatch.encoders import Features
from discopatch.heads import get_head
from discopatch.normal_images import count_near_copies, find_drift
from tests.samples import made_up_features


def drifting(images: int, *, by: float, seed: int) -> Features:
    """Every statistic moves by so many of its standard deviations from the first image to the last."""
    features = made_up_features(images, seed=seed)
    ramp = np.linspace(0, by, images)[:, None] * features.statistics.std(0)
    return features._replace(statistics=(features.statistics + ramp).astype(np.float32))


def test_a_random_order_is_seldom_taken_for_drift() -> None:
    told = [
        find_drift(made_up_features(60, seed=seed), get_head("combined"), np.arange(60), seed=seed)
        for seed in range(100)
    ]
    assert sum(each is not None for each in told) <= 4


@pytest.mark.parametrize("head", ["combined", "statistics"])
def test_images_that_drift_are_told_with_how_much_it_matters(head: str) -> None:
    for seed in range(5):
        found = find_drift(drifting(90, by=3, seed=seed), get_head(head), np.arange(90), seed=seed)
        assert found is not None
        assert re.search(r"last third.*AUROC (0\.9\d|1\.00)", found)


def test_scenes_in_the_order_of_their_frames_are_no_drift() -> None:
    """Any two scenes differ: what counts is whether the last ones differ more than any others."""
    groups = np.repeat(np.arange(15), 8)
    told = []
    for seed in range(60):
        scenes = made_up_features(15, seed=seed)
        together = scenes.select(groups)
        found = find_drift(together, get_head("statistics"), groups, seed=seed)
        alone = find_drift(together, get_head("statistics"), np.arange(120), seed=seed)
        told.append((found is not None, alone is not None))
    by_scene, by_image = np.array(told).sum(0)
    assert by_scene <= 4
    assert by_image > 30, "what it would be if frames counted one by one"


def test_near_copies_of_fitted_images_are_counted_and_other_images_are_not() -> None:
    for seed in range(20):
        known, new = np.split(made_up_features(80, seed=seed).statistics, [50])
        rng = np.random.default_rng(seed)
        again = known[:30] + rng.normal(0, 0.02, known[:30].shape)
        assert count_near_copies(new, known) == 0
        assert count_near_copies(again, known) == 30
        assert count_near_copies(np.concatenate([new, again[:10]]), known) >= 8


@pytest.mark.parametrize(("free", "kept"), [(0, 2), (2**34, 4), (2**40, 8)])
def test_pixels_are_kept_in_a_quarter_of_the_free_space(free: int, kept: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(normal_images, "disk_usage", lambda _: SimpleNamespace(free=free))
    file = normal_images.PixelFile(0, 2**30)
    for index in range(20):
        file.offer(index, np.full((2, 2, 3), index, np.uint8))
    rows = file.among(np.arange(20))
    assert len(rows) == kept
    assert [int(pixels[0, 0, 0]) for pixels in file.read(rows)] == rows.tolist()


@pytest.mark.parametrize(("total", "images", "kept"), [(4, 4, True), (5, 1, False), (None, 4, True), (None, 5, False)])
def test_maps_are_kept_of_all_images_or_of_none(
    total: int | None, images: int, kept: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(normal_images, "MAX_MAP_BYTES", 4 * 40)
    file = normal_images.MapFile(total)
    for index in range(images):
        file.add(np.full((1, 1, 10), index, np.float32))
    assert file.are_kept == kept
    if kept:
        assert [each.tolist() for each in file.read([3, 0])] == [[[3.0] * 10], [[0.0] * 10]]


def test_images_without_maps_keep_none() -> None:
    file = normal_images.MapFile(2)
    file.add(np.empty((1, 0, 0), np.float32))
    assert not file.are_kept
