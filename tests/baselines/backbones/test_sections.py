"""Rank 1 is what the SVD says it is, statistics are numpy's."""

import numpy as np
import pytest
import torch
from torch import Tensor

from discopatch.baselines.backbones.sections import (
    channel_statistics,
    mean_of_positions,
    top_by_squaring,
    without_rank_one,
)
from discopatch.model.discriminator import SMALLEST_VARIANCE


def by_full_svd(maps: Tensor) -> Tensor:
    """As the authors of RankFeat do it."""
    u, s, v = torch.linalg.svd(maps.flatten(2), full_matrices=False)
    s[:, 0] = 0
    result: Tensor = (u @ torch.diag_embed(s) @ v).reshape(maps.shape)
    return result


@pytest.mark.parametrize("shape", [(3, 64, 7, 7), (2, 20, 14, 14), (1, 49, 7, 7), (2, 1, 3, 3), (1, 5, 1, 1)])
def test_rank_one_is_removed_as_by_a_full_svd(shape: tuple[int, ...]) -> None:
    maps = torch.rand(shape, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(without_rank_one(maps), by_full_svd(maps.double()).float(), atol=1e-6, rtol=1e-5)


def test_a_map_whose_channels_sum_to_zero_loses_its_rank_one_too() -> None:
    maps = torch.randn((2, 12, 5, 5), generator=torch.Generator().manual_seed(4))
    maps -= maps.mean((2, 3), keepdim=True)
    torch.testing.assert_close(without_rank_one(maps), by_full_svd(maps.double()).float(), atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("centred", [False, True])
def test_squaring_finds_what_the_decomposition_finds(centred: bool) -> None:
    """The way of a GPU, on the processor."""
    matrix = torch.rand((3, 30, 12), generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    matrix -= matrix.mean(1, keepdim=True) if centred else 0
    gram = matrix.mT @ matrix
    found, expected = top_by_squaring(gram), torch.linalg.eigh(gram).eigenvectors[..., -1:]
    torch.testing.assert_close(found @ found.mT, expected @ expected.mT, atol=1e-9, rtol=0)
    assert torch.equal(
        top_by_squaring(torch.zeros(1, 4, 4, dtype=torch.float64)), torch.zeros(1, 4, 1, dtype=torch.float64)
    )


def test_each_map_loses_its_own_rank_one() -> None:
    maps = torch.rand((4, 6, 5, 5), generator=torch.Generator().manual_seed(1))
    together = without_rank_one(maps)
    for place in range(4):
        torch.testing.assert_close(together[place], without_rank_one(maps[place : place + 1])[0])


def test_a_map_of_rank_one_vanishes_and_an_empty_one_stays() -> None:
    once = torch.rand(1, 8, 1, generator=torch.Generator().manual_seed(2)) @ torch.rand(1, 1, 25)
    assert without_rank_one(once.reshape(1, 8, 5, 5)).abs().max() < 1e-6
    assert torch.equal(without_rank_one(torch.zeros(1, 8, 5, 5)), torch.zeros(1, 8, 5, 5))


def test_the_memory_order_of_a_map_does_not_matter() -> None:
    maps = torch.rand((2, 6, 5, 5), generator=torch.Generator().manual_seed(3))
    turned = maps.contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(without_rank_one(turned), without_rank_one(maps))
    torch.testing.assert_close(channel_statistics([turned]), channel_statistics([maps]))


def test_statistics_are_numpys_map_by_map_means_then_log_variances() -> None:
    random = np.random.default_rng(0)
    first, second = random.normal(2, 3, (2, 4, 6, 6)), random.normal(-1, 0.1, (2, 3, 10))
    found = channel_statistics([torch.from_numpy(first).float(), torch.from_numpy(second).float()])
    expected = [
        first.mean(axis=(2, 3)),
        np.log(first.var(axis=(2, 3)) + SMALLEST_VARIANCE),
        second.mean(axis=2),
        np.log(second.var(axis=2) + SMALLEST_VARIANCE),
    ]
    np.testing.assert_allclose(found.numpy(), np.concatenate(expected, axis=1), rtol=1e-4, atol=1e-5)


def test_a_flat_channel_has_finite_statistics() -> None:
    found = channel_statistics([torch.full((1, 2, 4, 4), 3.0)])
    np.testing.assert_allclose(found.numpy(), [[3, 3, np.log(SMALLEST_VARIANCE), np.log(SMALLEST_VARIANCE)]])


def test_pooling_is_the_mean() -> None:
    maps = torch.rand(2, 3, 4, 5)
    np.testing.assert_allclose(mean_of_positions(maps).numpy(), maps.numpy().mean(axis=(2, 3)), rtol=1e-5)
