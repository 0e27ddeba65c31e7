"""Tails of parts: how rare a value is among normal images."""

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.stats import genpareto

from discopatch.heads.parts import PART_NAMES, SHAPES, TAIL, fit_tails, join_parts, rarity

Array = NDArray[np.float64]


def rare(values: Array, normal: Array) -> Array:
    """The rarities of values among normal ones, of one part."""
    tails = torch.from_numpy(fit_tails(normal[:, None]))
    return np.asarray(rarity(torch.from_numpy(np.asarray(values))[:, None], tails)[:, 0].numpy())


def samples(kind: str, count: int, *, seed: int = 0) -> Array:
    rng = np.random.default_rng(seed)
    drawn = {"normal": rng.normal(3, 2, count), "uniform": rng.uniform(-1, 1, count), "heavy": rng.pareto(2, count)}
    return drawn[kind]


@pytest.mark.parametrize("kind", ["normal", "uniform", "heavy"])
@pytest.mark.parametrize("count", [20, 500])
def test_rarity_increases_without_steps(kind: str, count: int) -> None:
    normal = samples(kind, count)
    spread = np.ptp(normal)
    values = np.linspace(normal.min() - spread, normal.max() + 10 * spread, 100_000)
    found = rare(values, normal)
    assert (np.diff(found) > 0).all()
    # The largest slope is that between quantiles; a step would be larger than it explains.
    low, median, upper = np.quantile(normal, [0.1, 0.5, 0.8])
    steepest = max(np.log(0.9 / 0.5) / (median - low), np.log(0.5 / 0.2) / (upper - median))
    tail = fit_tails(normal[:, None])[0]
    assert np.diff(found).max() <= max(steepest, 1 / tail[4]) * (values[1] - values[0]) * 1.001


@pytest.mark.parametrize("kind", ["normal", "uniform", "heavy"])
def test_rarity_at_quantiles_is_minus_the_logarithm_of_the_share_above(kind: str) -> None:
    normal = samples(kind, 5001)
    for quantile in (0.1, 0.5, 0.8):
        value = np.quantile(normal, quantile)
        share = (normal > value).mean()
        assert rare(np.array([value]), normal)[0] == pytest.approx(-np.log(share), abs=2e-3)


@pytest.mark.parametrize("shape", [0.1, 0.25, 0.4])
def test_a_generalised_pareto_tail_is_found(shape: float) -> None:
    drawn = genpareto(shape, scale=2.0)
    normal = np.asarray(drawn.rvs(50_000, random_state=np.random.default_rng(0)))
    *_, scale, found = fit_tails(normal[:, None])[0]
    assert found == pytest.approx(shape, abs=0.04)
    assert scale == pytest.approx(2.0 + shape * drawn.ppf(0.8), rel=0.05), "of what exceeds the quantile"
    far = np.asarray(drawn.ppf([0.9, 0.99, 0.999, 0.9999]))
    np.testing.assert_allclose(rare(far, normal), -drawn.logsf(far), rtol=0.05)


@pytest.mark.parametrize("kind", ["normal", "uniform", "heavy"])
@pytest.mark.parametrize("count", [8, 2000])
def test_rarity_far_beyond_the_data_grows_with_the_logarithm(kind: str, count: int) -> None:
    normal = samples(kind, count)
    far, farther = rare(np.array([1e6, 1e9]), normal)
    assert np.log(1000) / SHAPES[1] - 1e-6 <= farther - far <= np.log(1000) / SHAPES[0] + 1e-6


def test_missing_equal_and_no_values_give_numbers() -> None:
    normal = np.column_stack([samples("normal", 40), np.full(40, 7.0), np.full(40, np.nan)])
    known = normal.copy()
    normal = np.concatenate([normal, np.full((5, 3), np.nan)])
    assert np.array_equal(fit_tails(normal), fit_tails(known))
    assert fit_tails(normal[:0]).shape == (3, TAIL)
    tails = torch.from_numpy(fit_tails(normal))
    assert bool((tails[:, 2:] > 0).all())
    assert bool(rarity(torch.tensor([[0.0, 7.0, 1.0], [9.0, 8.0, -1.0]], dtype=torch.float64), tails).isfinite().all())


def test_parts_are_joined_within_components_and_components_by_weight() -> None:
    rare_parts = np.random.default_rng(0).exponential(2, (9, len(PART_NAMES)))
    score, components = join_parts(torch.from_numpy(rare_parts), PART_NAMES)
    means = np.stack([np.exp(rare_parts[:, own] / 2).mean(1) for own in ([0, 1, 2, 3, 4], [5, 6], [7])], 1)
    np.testing.assert_allclose(components.numpy(), 2 * np.log(means), rtol=1e-12)
    np.testing.assert_allclose(score.numpy(), 2 * np.log(means @ [1, 1.25, 2.5] / 4.75), rtol=1e-12)
    some, of_some = join_parts(torch.from_numpy(rare_parts[:, [0, 6]]), ("logit", "neighbours"))
    np.testing.assert_allclose(of_some.numpy(), rare_parts[:, [0, 6]])
    np.testing.assert_allclose(
        some.numpy(), 2 * np.log(np.exp(rare_parts[:, [0, 6]] / 2) @ [1 / 2.25, 1.25 / 2.25]), rtol=1e-12
    )
