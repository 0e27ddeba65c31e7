"""Distances from normal images: local memory over places, and neighbours over pooled features."""

from collections.abc import Callable
from functools import partial
from math import sqrt

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from discopatch.encoders import local_features
from discopatch.encoders import places as encoder_places
from discopatch.encoders.places import project, rounded
from discopatch.heads import LocalMemory, memory
from discopatch.heads.base import Fitted
from discopatch.heads.memory import MAX_BANK, MAX_VECTORS, Neighbours

Array = NDArray[np.float64]


def places(images: int, *, positions: int = 36, dimensions: int = 6, seed: int = 0) -> NDArray[np.float16]:
    """Positions that lie near a curve, as those of images of one kind do; dimensions have scales of their own."""
    rng = np.random.default_rng(seed)
    turn = rng.uniform(0, 6, (images, positions, 1))
    curve = np.sin(turn * np.arange(1, dimensions + 1) / 3 + np.arange(dimensions))
    return ((curve + 0.1 * rng.normal(size=curve.shape)) * 2.0 ** np.arange(dimensions) + 5).astype(np.float16)


def pooled(images: int, *, channels: int = 7, seed: int = 0) -> NDArray[np.float32]:
    return np.random.default_rng(seed).normal(1, 1, (images, channels)).astype(np.float32)


def farthest_first(vectors: Array, count: int) -> list[int]:
    chosen = [0]
    while len(chosen) < count:
        gaps = [min(sum((a - b) ** 2) for b in vectors[chosen]) for a in vectors]
        chosen.append(int(np.argmax(gaps)))
    return chosen


def by_loops(normal: NDArray[np.float16], new: NDArray[np.float16], *, candidates: int, block: int, kept: int) -> Array:
    """The scores of the new images, one position and one stored vector after the other."""
    rows = normal.reshape(-1, normal.shape[-1]).astype(np.float64)
    rows = rows[np.random.default_rng([0, 11]).permutation(len(rows))[:candidates]]
    mean, variance = rows.mean(0), rows.var(0)
    scale = np.sqrt(variance + variance.mean() / 1e4 + 1e-12)
    rows = (rows - mean) / scale
    stored = list(rows)
    if len(rows) > kept:
        count = -(-len(rows) // block)
        blocks = [rows[number * (len(rows) // count) :][: len(rows) // count] for number in range(count)]
        stored = [one[number] for one in blocks for number in farthest_first(one, kept // len(blocks))]
    scores = []
    for image in new.astype(np.float64):
        gaps = [
            min(sqrt(sum((position - vector) ** 2) / len(vector)) for vector in stored)
            for position in (image - mean) / scale
        ]
        scores.append(sum(sorted(gaps)[-8:]) / 8)
    return np.array(scores)


@pytest.mark.parametrize("kept", [40, 1000])
def test_a_score_is_what_loops_over_positions_and_vectors_find(kept: int, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = {"MAX_CANDIDATES": 200, "MAX_BLOCK": 70, "MAX_VECTORS": kept}
    for name, value in sizes.items():
        monkeypatch.setattr(memory, name, value)
    normal, new = places(8), places(5, seed=1)
    found = LocalMemory.fit(normal).score(new)
    expected = by_loops(normal, new, candidates=200, block=70, kept=kept)
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_maps_are_averaged_to_the_grid_of_the_smallest_and_stand_side_by_side() -> None:
    rng = np.random.default_rng(0)
    fine, coarse = (rng.normal(size=(2, channels, side, side)) for channels, side in ((5, 12), (3, 6)))
    found = local_features([torch.tensor(fine).float(), torch.tensor(coarse).float()])
    assert (found.dtype, found.shape) == (torch.float16, (2, 36, 8))
    for image in range(2):
        for row in range(6):
            for column in range(6):
                block = fine[image, :, 2 * row : 2 * row + 2, 2 * column : 2 * column + 2].mean((1, 2))
                expected = np.concatenate([block, coarse[image, :, row, column]])
                np.testing.assert_allclose(found[image, 6 * row + column], expected, atol=2e-3)


def test_a_projection_keeps_distances_and_is_always_the_same() -> None:
    values = torch.randn(40, 1024, generator=torch.Generator().manual_seed(0))
    before, after = torch.pdist(values), torch.pdist(project(values, 64))
    ratio = after / before
    assert float(ratio.std() / ratio.mean()) < 0.12
    encoder_places.projection.cache_clear()
    assert torch.equal(torch.pdist(project(values, 64)), after)
    assert project(values, 1024) is values, "few channels stay as they are"


@given(st.floats(-65472, 65472, width=32))
def test_values_are_rounded_to_float16_before_they_are_converted(value: float) -> None:
    """So that a runtime which leaves the conversion out has the same; numpy's conversion is the reference."""
    found = rounded(torch.tensor([value], dtype=torch.float32)).numpy()
    expected, gap = np.float16(value), float(np.spacing(np.float16(abs(value))))
    if abs(value) >= np.finfo(np.float16).smallest_normal:
        assert found[0] == np.float16(found[0])
    assert abs(float(found[0]) - value) <= gap / 2
    assert abs(float(np.float16(found[0])) - float(expected)) in (0, gap), "apart from ties, the same"


@pytest.mark.parametrize(
    ("fit", "buffer", "most"),
    [
        (partial(LocalMemory.fit, places(150, positions=100)), "vectors", MAX_VECTORS),
        (partial(Neighbours.fit, pooled(MAX_BANK + 50)), "bank", MAX_BANK),
    ],
)
def test_the_seed_decides_what_is_stored_and_never_more_than_the_limit(
    fit: Callable[..., Fitted], buffer: str, most: int
) -> None:
    one, again, other = (fit(seed=seed).get_buffer(buffer) for seed in (0, 0, 1))
    assert 0.99 * most < len(one) <= most
    assert torch.equal(one, again)
    assert not torch.equal(one, other)


def test_images_that_never_vary_still_give_numbers() -> None:
    same = np.full((3, 9, 6), 7, np.float16)
    fitted = LocalMemory.fit(same)
    assert fitted.score(same).tolist() == [0, 0, 0]
    assert np.isfinite(fitted.score(same + 1)).all()


@pytest.mark.parametrize("images", [3, 40])
def test_the_distance_from_the_fifth_neighbour_is_that_of_loops(images: int) -> None:
    def unit(row: NDArray[np.float32]) -> Array:
        return row.astype(np.float64) / sqrt(sum(float(value) ** 2 for value in row))

    normal, new = pooled(images), pooled(9, seed=1)
    expected = [sorted(np.linalg.norm(unit(row) - unit(other)) for other in normal)[min(5, images) - 1] for row in new]
    fitted = Neighbours.fit(normal)
    np.testing.assert_allclose(fitted(torch.from_numpy(new)).numpy(), expected, rtol=1e-5)
    torch.testing.assert_close(fitted(100 * torch.from_numpy(new)), fitted(torch.from_numpy(new)))
    assert torch.isfinite(fitted(torch.zeros(1, 7))).all()
