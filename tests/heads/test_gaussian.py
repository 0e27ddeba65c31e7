"""The Gaussian is Ledoit and Wolf's, with fewer images than dimensions as with more, and never gives nonsense."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from sklearn.covariance import LedoitWolf

from discopatch.heads.gaussian import GRID, MAX_AXES, ShrunkGaussian

Array = NDArray[np.float64]
SHAPES = [(12, 60), (60, 60), (400, 30), (61, 60), (5, 300)]
NOTHING = 1e-9  # a smallest scale that hides nothing


def some_values(count: int, size: int, *, seed: int = 0) -> Array:
    """Correlated, and each dimension with a level and a scale of its own."""
    camera, rng = np.random.default_rng([size, 7]), np.random.default_rng(seed)
    factors = rng.normal(size=(count, 4)) @ camera.normal(size=(4, size)) + rng.normal(size=(count, size))
    values: Array = factors * 10 ** camera.uniform(-2, 2, size) + camera.normal(0, 100, size)
    return values


def distance(gaussian: ShrunkGaussian, values: NDArray[np.floating]) -> Array:
    with torch.inference_mode():
        result: Array = gaussian(torch.from_numpy(values)).numpy()
    return result


def standardised(values: Array, by: Array) -> Array:
    result: Array = (values - by.mean(0)) / by.std(0)
    return result


@pytest.mark.parametrize("shape", SHAPES)
def test_the_shrinkage_is_that_of_scikit_learn(shape: tuple[int, int]) -> None:
    values = some_values(*shape)
    expected = LedoitWolf().fit(standardised(values, values)).shrinkage_
    assert 0.001 < expected < 0.999, "or this test proves nothing"
    for least in (0.0, expected / 2, 1.0):
        found = ShrunkGaussian.fit(values, smallest_scale=NOTHING, least=least).shrinkage.item()
        assert found == pytest.approx(max(expected, least), rel=1e-6)


@pytest.mark.parametrize("shape", SHAPES)
def test_the_distance_is_that_of_a_plain_inverse(shape: tuple[int, int]) -> None:
    values, new = some_values(*shape), some_values(20, shape[1], seed=1)
    gaussian = ShrunkGaussian.fit(values, smallest_scale=0.5)
    scale = np.sqrt(values.var(0) + 0.25)
    deviations = values - values.mean(0)
    share = float(gaussian.shrinkage)
    shrunk = (1 - share) * deviations.T @ deviations / shape[0] / np.outer(scale, scale) + share * np.eye(shape[1])
    away = (new - values.mean(0)) / scale
    expected = np.einsum("nd,de,ne->n", away, np.linalg.inv(shrunk), away) / shape[1]
    np.testing.assert_allclose(distance(gaussian, new), expected, rtol=1e-4)
    products = [deviation @ gaussian.gradient(deviation) for deviation in new - gaussian.mean.numpy()]
    np.testing.assert_allclose(products, distance(gaussian, new), rtol=1e-9)


def test_axes_beyond_the_most_are_taken_together() -> None:
    count, size = 560, MAX_AXES + 60
    values, new = some_values(count, size), some_values(5, size, seed=1)
    gaussian = ShrunkGaussian.fit(values, smallest_scale=NOTHING)
    assert gaussian.axes.shape == (MAX_AXES, size)
    variances, columns = np.linalg.eigh(np.cov(standardised(values, values).T, bias=True))
    variances[:-MAX_AXES] = variances[:-MAX_AXES].mean()
    spectrum = (1 - float(gaussian.shrinkage)) * variances + float(gaussian.shrinkage)
    expected = (np.square(standardised(new, values) @ columns) / spectrum).mean(1)
    np.testing.assert_allclose(distance(gaussian, new), expected, rtol=1e-4)


def test_a_dimension_that_never_varied_counts_in_units_of_the_smallest_scale() -> None:
    values = some_values(200, 10)
    values[:, 3] = 5.0
    gaussian = ShrunkGaussian.fit(values, smallest_scale=0.01)
    assert gaussian.scale[3].item() == pytest.approx(0.01)
    away = np.tile(gaussian.mean.numpy(), (3, 1))
    away[:, 3] += (0.001, 0.01, 0.1)
    distances = distance(gaussian, away)
    np.testing.assert_allclose(distances[1:] / distances[:-1], 100, rtol=1e-3)
    assert np.isfinite(distances).all()


@settings(max_examples=150, deadline=None)
@given(
    count=st.integers(2, 120),
    size=st.integers(1, 150),
    factors=st.integers(1, 5),
    noise=st.sampled_from([0.0, 1e-6, 1e-2, 1.0]),
    exponent=st.floats(-6, 6),
    level=st.floats(-1e4, 1e4),
    stretch=st.floats(0, 1e4),
    seed=st.integers(0, 1000),
)
def test_a_distance_is_a_finite_number_from_zero_up(
    count, size, factors, noise, exponent, level, stretch, seed
) -> None:
    rng = np.random.default_rng(seed)
    values = rng.normal(size=(count, factors)) @ rng.normal(size=(factors, size))
    values = ((values + noise * rng.normal(size=(count, size))) * 10**exponent + level).astype(np.float32)
    new = np.concatenate([values[:5], values[:5] * stretch, rng.normal(size=(5, size)) * 10**exponent])
    gaussian = ShrunkGaussian.fit(values, smallest_scale=0.01)
    for numbers in (distance(gaussian, new), distance(gaussian, gaussian.mean[None].numpy())):
        assert np.isfinite(numbers).all()
        assert (numbers >= 0).all()
    assert np.isfinite(gaussian.gradient(new[0] - gaussian.mean.numpy())).all()


@pytest.mark.parametrize("shape", [*SHAPES, (100, 333), (30, 1000), (700, 600)])
def test_products_of_the_axes_are_exact_in_whichever_order_they_are_summed(shape: tuple[int, int]) -> None:
    """Or a detector that was read where there are more cores would differ in the last digit from the fitted one."""
    gaussian = ShrunkGaussian.fit(some_values(*shape), smallest_scale=NOTHING)
    assert torch.equal(gaussian.axes, gaussian.axes.float().double()), "a file holds them in float32"
    whole = (gaussian.axes * GRID).to(torch.int64)
    one = torch.eye(len(whole), dtype=torch.int64) * int(GRID) ** 2
    assert torch.equal(gaussian.overlap, (whole @ whole.T - one).double() / GRID**2)
