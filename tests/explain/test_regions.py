"""Regions of anomaly maps: boxes, outlines and areas in pixels of the original image."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from PIL import Image, ImageDraw
from scipy.ndimage import gaussian_filter, label

from discopatch.corruptions.places import PLACE_CHANGES, change_place
from discopatch.explain.regions import (
    LEVEL,
    MAX_POINTS,
    MAX_REGIONS,
    UNUSUAL,
    Region,
    connected_parts,
    find_regions,
    first_touches,
)
from tests.samples import one_camera


def spots(*places: tuple[int, int, float], shape: tuple[int, int] = (40, 60)) -> np.ndarray:
    """A map with smooth spots at rows and columns, of these heights."""
    found = np.zeros(shape, np.float32)
    for row, column, height in places:
        spot = np.zeros(shape, np.float32)
        spot[row, column] = 1
        spot = gaussian_filter(spot, 3)
        found = np.maximum(found, height * spot / spot.max())
    return found


def polygon_area(region: Region) -> float:
    x, y = np.array(region.contour).T
    return float(abs(x @ np.roll(y, -1) - y @ np.roll(x, -1)) / 2)


def filled(region: Region, size: tuple[int, int]) -> np.ndarray:
    drawn = Image.new("1", size[::-1])
    ImageDraw.Draw(drawn).polygon(region.contour, fill=1)
    return np.asarray(drawn)


def test_regions_are_ordered_by_peak_and_measured_in_pixels_of_the_original() -> None:
    found = find_regions(spots((10, 15, 2.0), (30, 50, 5.0)), (400, 1200))  # 10 and 20 pixels a cell
    assert [each.peak for each in found] == [5.0, 2.0]
    for region, (row, column) in zip(found, [(30, 50), (10, 15)], strict=True):
        left, top, width, height = region.box
        assert left < 20 * column + 10 < left + width
        assert top < 10 * row + 5 < top + height
        assert 0.6 * width * height < region.area <= width * height
        assert width == pytest.approx(2 * height, rel=0.2)


@pytest.mark.parametrize("shape", [(64, 64), (96, 160), (300, 200)])
def test_the_polygon_covers_what_is_above_the_level(shape: tuple[int, int]) -> None:
    noise = np.random.default_rng(0).normal(size=shape)
    smooth = np.maximum(gaussian_filter(noise, min(shape) / 16, mode="constant"), 0)
    values = 6 * smooth / smooth.max()
    size = 5 * shape[0], 4 * shape[1]
    above = np.kron(values > LEVEL * values.max(), np.ones((5, 4), bool))
    found = find_regions(values, size)
    assert 3 < len(found) <= MAX_REGIONS
    for region in found:
        x, y = np.array(region.contour).T
        left, top, width, height = region.box
        assert left <= x.min() < x.max() <= left + width
        assert top <= y.min() < y.max() <= top + height
        assert len(region.contour) <= MAX_POINTS
        if region.area > 40 * 20:
            assert polygon_area(region) == pytest.approx(region.area, rel=0.03)
            assert above[filled(region, size)].mean() > 0.93


def test_holes_belong_to_a_region_and_faint_halos_do_not() -> None:
    ring = np.hypot(*(np.indices((50, 50)) - 25))
    values = np.where((ring > 8) & (ring < 14), 5.0, 1.1)
    (region,) = find_regions(values, (50, 50))
    assert region.area == (ring < 14).sum()
    assert region.box == (12, 12, 27, 27)


def test_there_is_no_region_in_a_usual_image_and_no_speck() -> None:
    assert find_regions(np.zeros((8, 9)), (80, 90)) == ()
    assert find_regions(np.ones((8, 9)), (80, 90)) == (), "what normal images reach"
    speck = spots((10, 15, 2.0), shape=(500, 600))
    speck[400, 400] = 2
    assert len(find_regions(speck, (500, 600))) == 1
    many = 2 * np.kron(np.indices((9, 9)).sum(0) % 2, np.ones((4, 4)))
    assert len(find_regions(many, (36, 36))) == MAX_REGIONS


@pytest.mark.parametrize("smooth", [0, 1, 3])
def test_connected_parts_are_those_of_scipy(smooth: int) -> None:
    noise = gaussian_filter(np.random.default_rng(1).normal(size=(80, 130)), smooth)
    inside = noise > 0.3 * noise.std()
    found, (expected, count) = connected_parts(inside), label(inside)
    pairs = set(zip(found.ravel().tolist(), expected.ravel().tolist(), strict=True))
    assert len(pairs) == len(np.unique(found)) == count + 1
    assert (0, 0) in pairs


@settings(max_examples=100, deadline=None)
@given(
    arrays(np.float32, st.tuples(st.integers(1, 12), st.integers(1, 12)), elements=st.sampled_from([0, 0.2, 1, 2, 9]))
)
def test_any_map_has_regions_inside_the_image(values: np.ndarray) -> None:
    for region in find_regions(values, (130, 70)):
        left, top, width, height = region.box
        assert left >= 0 <= top
        assert left + width <= 70
        assert top + height <= 130
        assert 0.6 * region.area < polygon_area(region) < region.area <= width * height
        assert max(UNUSUAL, LEVEL * values.max()) < region.peak <= values.max()


@pytest.mark.parametrize("name", PLACE_CHANGES)
def test_the_first_region_touches_the_changed_place_and_no_other(name: str) -> None:
    image, other = (each.pixels[:, :192] for each in one_camera(2, size=256))
    size = 3 if name == "scratch" else 40
    change = change_place(name, image, other, size=size, rng=np.random.default_rng(3))
    regions = find_regions(9 * gaussian_filter(change.mask.astype(np.float32), 4), change.mask.shape)
    assert first_touches(regions, change.mask)
    far = np.roll(change.mask, (128, 96), (0, 1))
    assert not first_touches(regions, far)
    assert not first_touches((), change.mask)
