"""The heat lies where an image is strange, and the words say what is strange there."""

import numpy as np
import pytest
from scipy.interpolate import RegularGridInterpolator

from discopatch.images import Pixels
from discopatch.images.corrupt import corrupt
from discopatch.scoring import Scorer
from discopatch.scoring.changes import CHANGES
from discopatch.scoring.regions import CELLS, OVERLAPPING, STILL_USUAL, Regions, look_at_regions, over_the_image

from .samples import natural_detector, of_one_camera, tiny_weights

QUADRANTS = [(0, 0), (0, 1), (1, 0), (1, 1)]


def normal_pictures(count: int, *, size: int, seed: int) -> Pixels:
    return np.stack([each.pixels for each in of_one_camera(count, size=size, seed=seed)])


def spoiled_in(picture: Pixels, quadrant: tuple[int, int], corruption: str) -> Pixels:
    half = len(picture) // 2
    rows, columns = (slice(half * side, half * (side + 1)) for side in quadrant)
    result = picture.copy()
    result[rows, columns] = corrupt(picture, corruption, 4, seed=0)[rows, columns]
    return result


@pytest.fixture(scope="module")
def tiny() -> tuple[Scorer, Regions]:
    scorer = Scorer(tiny_weights(), sampling="dense")
    return scorer, Regions.fit(scorer, normal_pictures(8, size=64, seed=0), seed=0)


def test_most_regions_of_normal_images_have_no_heat(tiny: tuple[Scorer, Regions]) -> None:
    scorer, regions = tiny
    normal = np.concatenate(
        [regions.heat(scorer.inspect_patches(picture, 16)) for picture in normal_pictures(8, size=64, seed=0)]
    )
    assert normal.min() == 0
    assert (normal == 0).mean() == pytest.approx(STILL_USUAL, abs=0.02)


def test_heat_is_the_score_beyond_the_usual(tiny: tuple[Scorer, Regions]) -> None:
    scorer, regions = tiny
    seen = look_at_regions(scorer, spoiled_in(normal_pictures(1, size=64, seed=1)[0], (0, 0), "gaussian_noise"))
    scores = regions.head.score(seen)
    assert scores.shape == (OVERLAPPING**2,)
    assert regions.heat(seen).tolist() == [max(score - regions.usual, 0) for score in scores]
    assert regions.heat(seen).max() > 0


def test_strange_regions_are_heard_as_loudly_as_they_are_hot(tiny: tuple[Scorer, Regions]) -> None:
    scorer, regions = tiny
    seen = look_at_regions(scorer, spoiled_in(normal_pictures(1, size=64, seed=1)[0], (0, 0), "gaussian_noise"))
    found = regions.surprises(seen)
    assert list(found) == list(CHANGES)
    expected = np.average(regions.head.changes(seen), axis=0, weights=regions.heat(seen))
    np.testing.assert_allclose(list(found.values()), expected, rtol=1e-5, atol=1e-6)


def test_an_image_without_heat_has_small_surprises_and_no_error(tiny: tuple[Scorer, Regions]) -> None:
    scorer, regions = tiny
    quiet = Regions(regions.head, usual=1e9)
    seen = look_at_regions(scorer, normal_pictures(1, size=64, seed=0)[0])
    assert not quiet.heat(seen).any()
    expected = regions.head.changes(seen).mean(0)
    np.testing.assert_allclose(list(quiet.surprises(seen).values()), expected, rtol=1e-9)


def test_the_same_pictures_and_seed_give_the_same_regions(tiny: tuple[Scorer, Regions]) -> None:
    scorer, regions = tiny
    again = Regions.fit(scorer, normal_pictures(8, size=64, seed=0), seed=0)
    seen = look_at_regions(scorer, normal_pictures(1, size=64, seed=1)[0])
    assert np.array_equal(again.heat(seen), regions.heat(seen))


def test_regions_survive_as_arrays_to_the_bit(tiny: tuple[Scorer, Regions]) -> None:
    scorer, regions = tiny
    again = Regions.from_arrays(regions.arrays())
    seen = look_at_regions(scorer, normal_pictures(1, size=64, seed=1)[0])
    assert again.usual == regions.usual
    assert np.array_equal(again.heat(seen), regions.heat(seen))
    assert again.surprises(seen) == regions.surprises(seen)


@pytest.mark.parametrize(("size", "patch_size"), [(256, 64), (64, 32), (100, 16)])
def test_heat_over_the_image_is_interpolated_between_the_middles_of_the_regions(size: int, patch_size: int) -> None:
    heat = np.random.default_rng(0).random(OVERLAPPING**2)
    found = over_the_image(heat, size=size, patch_size=patch_size)
    assert found.shape == (CELLS, CELLS)
    assert found.dtype == np.float32
    corners = np.linspace(0, size - patch_size, OVERLAPPING)
    middles = corners + patch_size / 2
    cells = np.clip((np.arange(CELLS) + 0.5) * size / CELLS, middles[0], middles[-1])
    reference = RegularGridInterpolator((middles, middles), heat.reshape(OVERLAPPING, OVERLAPPING))
    expected = reference(np.stack(np.meshgrid(cells, cells, indexing="ij"), axis=-1))
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("row", "column"), [(0, 0), (0, 6), (6, 0), (3, 3), (1, 5)])
def test_one_hot_region_is_hot_where_it_lies(row: int, column: int) -> None:
    heat = np.zeros((OVERLAPPING, OVERLAPPING))
    heat[row, column] = 1
    found = over_the_image(heat.ravel(), size=256, patch_size=64)
    warm_rows, warm_columns = np.nonzero(found > 0.5)
    for warm, place in ((warm_rows, row), (warm_columns, column)):
        top = 32 * place  # of the region, in pixels
        assert warm.min() * 4 >= top
        assert (warm.max() + 1) * 4 <= top + 64


def test_even_heat_is_even_everywhere() -> None:
    found = over_the_image(np.full(OVERLAPPING**2, 2.5), size=256, patch_size=64)
    np.testing.assert_allclose(found, 2.5, rtol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("corruption", "words"), [("gaussian_noise", "noise"), ("jpeg_compression", "blocks, as after strong compression")]
)
def test_most_of_the_heat_lies_in_the_quadrant_that_was_spoiled_and_the_words_say_how(corruption, words) -> None:
    detector, picture = natural_detector(), normal_pictures(1, size=256, seed=6)[0]
    for quadrant in QUADRANTS:
        seen = look_at_regions(detector.scorer, spoiled_in(picture, quadrant, corruption))
        heat = over_the_image(detector.fitted.regions.heat(seen), size=256, patch_size=64)
        halves = {(row, column): heat[32 * row :, 32 * column :][:32, :32].sum() for row, column in QUADRANTS}
        assert halves[quadrant] > 0.6 * heat.sum(), halves
        found = detector.fitted.regions.surprises(seen)
        loudest = max(found, key=lambda name: found[name])
        assert words in loudest, found
        assert found[loudest] > 3
