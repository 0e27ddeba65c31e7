"""Gaussians of rows that pass in parts are those of all rows at once."""

import numpy as np
import pytest
import torch

from discopatch.heads.base import STATISTICS
from discopatch.heads.gaussian import ShrunkGaussian
from discopatch.heads.moments import StreamedGaussians
from tests.heads.test_gaussian import some_values


@pytest.mark.parametrize("shape", [(400, 30), (2000, 60), (61, 60), (40, 60)])
@pytest.mark.parametrize("left_out", [None, 0, 3])
def test_it_is_the_gaussian_of_the_rows_at_once(shape: tuple[int, int], left_out: int | None) -> None:
    """Distances agree to 1e-6: what is left of rounding after the axes are stored in float32."""
    values, new = some_values(*shape), some_values(20, shape[1], seed=1)
    fold = np.arange(len(values)) % 5
    streamed = StreamedGaussians(folds=5, smallest_scale=0.01)
    for pass_over in (streamed.add, streamed.add_lengths):
        for part in np.array_split(np.arange(len(values)), 7):
            pass_over(values[part], fold[part])
    found = streamed.fit(left_out, size=STATISTICS)
    expected = ShrunkGaussian.fit(values[fold != left_out], smallest_scale=0.01)
    for name in ("mean", "scale", "variances"):
        np.testing.assert_allclose(getattr(found, name), getattr(expected, name), rtol=1e-8)
    np.testing.assert_allclose([found.rest, found.shrinkage], [expected.rest, expected.shrinkage], rtol=1e-8)
    with torch.inference_mode():
        np.testing.assert_allclose(found(torch.from_numpy(new)), expected(torch.from_numpy(new)), rtol=1e-6)


def test_a_mean_far_from_zero_costs_no_digits() -> None:
    values = some_values(3000, 20) + 1e6
    streamed = StreamedGaussians(folds=1, smallest_scale=1e-9)
    for pass_over in (streamed.add, streamed.add_lengths):
        for part in np.array_split(values, 30):
            pass_over(part, np.zeros(len(part), np.intp))
    found, expected = streamed.fit(size=STATISTICS), ShrunkGaussian.fit(values, smallest_scale=1e-9)
    np.testing.assert_allclose(found.scale, expected.scale, rtol=1e-6)
    np.testing.assert_allclose(found.shrinkage, expected.shrinkage, rtol=1e-5)
