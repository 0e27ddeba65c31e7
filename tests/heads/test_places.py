"""Places compared with those of normal images: distances, z-scores, squares of places, and folds."""

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from discopatch.calibration import Index
from discopatch.encoders import FeatureSizes, pack_maps, unpack_maps
from discopatch.encoders.places import join_maps
from discopatch.errors import WeightsError
from discopatch.heads import PlaceModel, places
from discopatch.heads.places import (
    N_AXES,
    WINDOWS,
    PlaceFit,
    choose_vectors,
    fit_places,
    greedy_centres,
    maxima_of,
    window_maxima,
)
from tests.samples import on_grid

Floats = NDArray[np.float32]
BLOCKS = (30, 50)


def normal_places(images: int, shape: tuple[int, int] = (6, 8), *, size: int = sum(BLOCKS), seed: int = 0) -> Floats:
    """Places that lie near a curve, as those of images of one kind do; features have scales of their own."""
    rng = np.random.default_rng(seed)
    turn = rng.uniform(0, 6, (images, *shape, 1))
    curve = np.sin(turn * np.arange(1, size + 1) / 3 + np.arange(size))
    scales = np.where(np.arange(size) < BLOCKS[0], 1, 20)
    return ((curve + 0.1 * rng.normal(size=curve.shape)) * scales + 5).astype(np.float32)


def fit_on(values: list[Floats] | Floats, *, fold: Index | None = None, blocks: tuple[int, ...] = BLOCKS) -> PlaceFit:
    def vectors(chosen: Index) -> Iterator[Tensor]:
        return (torch.from_numpy(values[row]) for row in chosen)

    count = len(values)
    return fit_places(vectors, np.arange(count) if fold is None else fold, np.arange(count), blocks=blocks, seed=0)


@pytest.fixture(scope="module")
def normal() -> Floats:
    return normal_places(24)


@pytest.fixture(scope="module")
def fitted(normal: Floats) -> PlaceFit:
    return fit_on(normal)


@torch.inference_mode()
def z_scores(model: PlaceModel, values: Floats) -> Floats:
    found: Floats = model([torch.from_numpy(values).permute(0, 3, 1, 2)]).numpy()
    return found


@torch.inference_mode()
def distances(model: PlaceModel, values: Floats) -> Floats:
    found: Floats = model.distances([torch.from_numpy(values).permute(0, 3, 1, 2)]).numpy()
    return found


def test_a_distance_is_that_from_the_nearest_along_the_axes_and_from_their_plane(fitted: PlaceFit) -> None:
    mean, scale, axes, vectors = (
        fitted.model.get_buffer(name).numpy() for name in ("mean", "scale", "axes", "vectors")
    )
    assert axes.shape == (sum(BLOCKS), N_AXES)
    new = normal_places(3, (5, 4), seed=1)
    expected = np.empty(new.shape[:3])
    for position in np.ndindex(*expected.shape):
        standard = (new[position].astype(np.float64) - mean) / scale
        along = standard @ axes
        rest = standard - axes @ along
        nearest = min(float(np.square(along - vector).sum()) for vector in vectors)
        expected[position] = np.sqrt(nearest + np.square(rest).sum())
    np.testing.assert_allclose(distances(fitted.model, new), expected, rtol=1e-4)


@pytest.mark.parametrize("coarse", [(3, 4), (2, 3), (1, 1), (6, 7)])
def test_maps_of_unlike_grids_have_the_distances_of_their_places(fitted: PlaceFit, coarse: tuple[int, int]) -> None:
    maps = [
        torch.from_numpy(normal_places(2, shape, size=size, seed=1)).permute(0, 3, 1, 2)
        for shape, size in zip(((6, 8), coarse), BLOCKS, strict=True)
    ]
    with torch.inference_mode():
        found = fitted.model.distances(maps).numpy()
    np.testing.assert_allclose(found, distances(fitted.model, join_maps(maps).numpy()), rtol=1e-4)


def test_axes_are_the_principal_ones_of_layers_with_the_same_spread(normal: Floats, fitted: PlaceFit) -> None:
    mean, scale, axes = (fitted.model.get_buffer(name).numpy() for name in ("mean", "scale", "axes"))
    rows = normal.reshape(-1, sum(BLOCKS)).astype(np.float64)
    np.testing.assert_allclose(mean, rows.mean(0), rtol=1e-5)
    standard = (rows - mean) / scale
    for layer in (slice(0, BLOCKS[0]), slice(BLOCKS[0], None)):
        assert len(np.unique(scale[layer])) == 1
        assert standard[:, layer].var(0).sum() == pytest.approx(1, rel=1e-3)
    largest = np.sort(np.linalg.svd(standard, compute_uv=False) ** 2)[::-1][:N_AXES]
    np.testing.assert_allclose(np.square(standard @ axes).sum(0), largest, rtol=1e-2)


def test_z_scores_of_an_image_of_another_shape_use_the_same_relative_positions(fitted: PlaceFit) -> None:
    model = fitted.model
    grids = [model.centres.numpy(), model.spreads.numpy()]
    assert grids[0].shape == (6, 8)
    assert grids[0].std() > 0
    new = normal_places(1, (9, 5), seed=1)
    found, far = z_scores(model, new)[0], distances(model, new)[0]
    centres, spreads = (on_grid(grid, (9, 5)) for grid in grids)
    np.testing.assert_allclose(found, (far - centres) / spreads, rtol=1e-3, atol=1e-3)


def test_centres_and_spreads_of_large_images_are_stored_at_few_positions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(places, "MAX_GRID", 48)
    found = fit_on(normal_places(24, (12, 16))).model
    assert found.centres.shape == found.spreads.shape == (6, 8)
    assert abs(float(np.median(z_scores(found, normal_places(8, (12, 16), seed=1))))) < 1


@pytest.mark.parametrize("shape", [(2, 3), (7, 7), (20, 15)])
def test_window_maxima_are_the_largest_means_with_zeros_beyond_the_border(shape: tuple[int, int]) -> None:
    z = np.random.default_rng(0).normal(size=(3, *shape)).astype(np.float32)
    expected = np.empty((3, len(WINDOWS)))
    for image, values in enumerate(z):
        for column, size in enumerate(WINDOWS):
            padded = np.pad(values.astype(np.float64), size // 2)
            means = [padded[row : row + size, left : left + size].sum() / size**2 for row, left in np.ndindex(*shape)]
            expected[image, column] = max(means)
    np.testing.assert_allclose(window_maxima(torch.from_numpy(z)).numpy(), expected, rtol=1e-4, atol=1e-5)


def test_no_image_is_compared_by_a_model_that_saw_it() -> None:
    """All places are stored, so that a model has no distance from those it saw; groups of images stay together."""
    values = normal_places(24, size=40)
    fold = np.arange(24) // 2  # pairs
    found = fit_on(values, fold=fold, blocks=(40,))
    assert found.rows.tolist() != list(range(24)), "in a random order"
    assert sorted(found.rows) == list(range(24))
    for row in range(24):
        pair = values[2 * (row // 2) :][:2]
        assert distances(found.model, pair).max() < 1e-2
        assert distances(found.compare(row), pair).min() > 3e-2
        due = maxima_of(values[row : row + 1], found.compare(row))[0]
        np.testing.assert_allclose(found.maxima[found.rows.tolist().index(row)], due, rtol=1e-4, atol=1e-4)


def test_a_group_with_nearly_all_images_is_divided(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(places, "MAX_FITTED", 12)
    values, fold = normal_places(60, size=40), np.arange(60) // 59
    found = fit_on(values, fold=fold, blocks=(40,))
    assert 59 not in found.rows, "none of the other group is drawn"
    for row in found.rows:
        assert distances(found.compare(row), values[row : row + 1]).min() > 3e-2
    assert np.isfinite(z_scores(found.compare(59), values[59:])).all()


def test_z_scores_of_new_normal_images_are_usual_and_those_of_a_changed_place_are_not(normal: Floats) -> None:
    model, new = fit_on([*normal, *normal_places(6, (8, 6), seed=2)]).model, normal_places(40, seed=3)
    z = z_scores(model, new)
    assert abs(np.median(z)) < 0.5
    averaged = torch.nn.functional.avg_pool2d(torch.from_numpy(z)[:, None], 3, 1, 1)
    assert float((averaged > float(model.level)).float().mean()) < 0.03
    changed = new.copy()
    changed[:, 2, 5] += 40
    after = z_scores(model, changed)
    assert (after.reshape(40, -1).argmax(1) == 2 * 8 + 5).all()
    untouched = np.ones((6, 8), bool)
    untouched[2, 5] = False
    np.testing.assert_allclose(after[:, untouched], z[:, untouched], rtol=1e-4, atol=1e-4)


def test_places_survive_as_tensors_to_the_bit_and_do_not_depend_on_neighbours(fitted: PlaceFit) -> None:
    new, tensors = normal_places(5, seed=1), fitted.model.to_tensors()
    again = PlaceModel.from_tensors(tensors, sizes=FeatureSizes(1, 0, sum(BLOCKS)))
    found = z_scores(fitted.model, new)
    assert np.array_equal(z_scores(again, new), found)
    np.testing.assert_allclose([z_scores(again, each[None])[0] for each in new], found, rtol=1e-4, atol=1e-4)
    with pytest.raises(WeightsError):
        PlaceModel.from_tensors(tensors, sizes=FeatureSizes(1, 0, 5))
    for name, value in {"level": torch.tensor(0.0), "spreads": torch.zeros(6, 8), "vectors": torch.ones(2, 3)}.items():
        with pytest.raises(WeightsError):
            PlaceModel.from_tensors({**tensors, name: value})


def farthest_first(vectors: NDArray[np.floating], count: int) -> list[int]:
    chosen = [0]
    while len(chosen) < count:
        gaps = [min(float(np.square(a - b).sum()) for b in vectors[chosen]) for a in vectors]
        chosen.append(int(np.argmax(gaps)))
    return chosen


def test_stored_places_cover_each_block_and_are_never_more_than_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = normal_places(3, (4, 15), size=6).reshape(3, 60, 6)
    assert greedy_centres(blocks, 9).tolist() == [farthest_first(block, 9) for block in blocks]
    candidates = blocks.reshape(-1, 6)
    assert choose_vectors(candidates) is candidates, "all of few"
    monkeypatch.setattr(places, "MAX_VECTORS", 40)
    monkeypatch.setattr(places, "MAX_BLOCK", 70)
    found = choose_vectors(candidates)
    assert len(found) == 39, "13 of each of three blocks"
    assert {row.tobytes() for row in found} <= {row.tobytes() for row in candidates}
    assert np.array_equal(choose_vectors(candidates), found)


def test_images_that_never_vary_still_give_numbers() -> None:
    same = np.full((6, 3, 3, 6), 7, np.float32)
    model = fit_on(same, blocks=(6,)).model
    assert np.isfinite(z_scores(model, same)).all()
    assert np.isfinite(z_scores(model, same + 1)).all()


@pytest.mark.parametrize("order", [torch.contiguous_format, torch.channels_last])
def test_packed_maps_give_the_same_bits(order: torch.memory_format, fitted: PlaceFit) -> None:
    generator = torch.Generator().manual_seed(0)
    shapes = [(2, 30, 8, 12), (2, 50, 4, 6)]
    maps = [torch.randn(shape, generator=generator).contiguous(memory_format=order) for shape in shapes]
    found = unpack_maps(pack_maps(maps))
    assert all(torch.equal(one, other) for one, other in zip(found, maps, strict=True))
    for row in range(2):
        due = fitted.model([one[row : row + 1] for one in maps])
        assert torch.equal(fitted.model(unpack_maps(pack_maps(maps)[row : row + 1])), due)
