"""Neighbours: the distance from the k-th nearest of the normal images, in pooled features of length 1."""

from math import sqrt

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from discopatch.errors import ParameterError
from discopatch.heads import neighbours
from discopatch.heads.neighbours import Neighbours


def pooled(images: int, *, channels: int = 7, seed: int = 0) -> NDArray[np.float32]:
    return np.random.default_rng(seed).normal(1, 1, (images, channels)).astype(np.float32)


def by_loops(normal: NDArray[np.float32], new: NDArray[np.float32], k: int) -> list[float]:
    def unit(row: NDArray[np.float32]) -> list[float]:
        length = sqrt(sum(float(value) ** 2 for value in row))
        return [float(value) / length for value in row]

    known = [unit(row) for row in normal]
    return [
        sorted(sqrt(sum((a - b) ** 2 for a, b in zip(unit(row), other, strict=True))) for other in known)[k - 1]
        for row in new
    ]


@pytest.mark.parametrize("images", [3, 5, 40])
def test_it_is_the_distance_that_loops_over_all_images_find(images: int) -> None:
    normal, new = pooled(images), pooled(9, seed=1)
    found = Neighbours.fit(normal)(torch.from_numpy(new)).numpy()
    np.testing.assert_allclose(found, by_loops(normal, new, min(5, images)), rtol=1e-5)


def test_the_length_of_features_does_not_count() -> None:
    fitted, new = Neighbours.fit(pooled(30)), torch.from_numpy(pooled(5, seed=1))
    torch.testing.assert_close(fitted(100 * new), fitted(new))
    assert torch.isfinite(fitted(torch.zeros(1, 7))).all()


def test_no_more_images_are_stored_than_the_bound_and_the_seed_draws_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(neighbours, "MAX_BANK", 20)
    one, again, other = (Neighbours.fit(pooled(50), seed=seed).bank for seed in (0, 0, 1))
    assert one.shape == (20, 7)
    assert torch.equal(one, again)
    assert not torch.equal(one, other)


def test_features_of_another_network_are_refused() -> None:
    with pytest.raises(ParameterError, match="same encoder"):
        Neighbours.fit(pooled(30))(torch.zeros(1, 8))
