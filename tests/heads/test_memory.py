"""Distances of pooled features from those of normal images."""

from math import sqrt

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from discopatch.heads.memory import MAX_BANK, Neighbours

Array = NDArray[np.float64]


def pooled(images: int, *, channels: int = 7, seed: int = 0) -> NDArray[np.float32]:
    return np.random.default_rng(seed).normal(1, 1, (images, channels)).astype(np.float32)


def test_the_seed_decides_what_is_stored_and_never_more_than_the_limit() -> None:
    one, again, other = (Neighbours.fit(pooled(MAX_BANK + 50), seed=seed).bank for seed in (0, 0, 1))
    assert len(one) == MAX_BANK
    assert torch.equal(one, again)
    assert not torch.equal(one, other)


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
