"""Gaussians from rows that are never in memory together: what two passes over them add up to, fold by fold."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from discopatch.heads.base import Array, Size
from discopatch.heads.gaussian import ShrunkGaussian


class Moments(NamedTuple):
    """Of so many rows (d,), with the divisor n."""

    rows: int
    mean: Array  # (d,)
    covariance: Array  # (d, d)


class StreamedGaussians:
    """The Gaussian of all rows, and for each fold that of all rows but its own: what a fold has is subtracted.

    Every row is given to `add` in a first pass, and to `add_lengths` in a second, together with the fold of each.
    Sums are in float64, of differences from a row in the middle of the first ones, so that no digits are lost to a
    mean that is far from 0.
    """

    def __init__(self, *, folds: int, smallest_scale: float) -> None:
        self.folds, self.smallest_scale = folds, smallest_scale
        self._pivot: Array | None = None
        self._counts = np.zeros(folds, np.int64)
        self._sums = self._products = np.empty(0)
        self._whitening: tuple[Array, Array, Array] | None = None  # for the lengths: weights, weighted means, constants
        self._fourths = np.zeros((folds + 1, folds))  # by Gaussian and by the fold of the rows

    def add(self, values: NDArray[np.floating], fold: NDArray[np.intp]) -> None:
        """Takes rows (B, d) in the first pass."""
        if self._pivot is None:
            self._pivot = values.mean(0, dtype=np.float64)
            size = values.shape[1]
            self._sums, self._products = np.zeros((self.folds, size)), np.zeros((self.folds, size, size))
        for number in np.unique(fold):
            own = values[fold == number] - self._pivot
            self._counts[number] += len(own)
            self._sums[number] += own.sum(0)
            self._products[number] += own.T @ own

    def moments(self, left_out: int | None = None) -> Moments:
        """Those of all rows, or of all but one fold's."""
        assert self._pivot is not None
        kept = np.arange(self.folds) != left_out
        count = int(self._counts[kept].sum())
        mean = self._sums[kept].sum(0) / count
        covariance = self._products[kept].sum(0) / count - np.outer(mean, mean)
        return Moments(count, mean + self._pivot, covariance)

    @property
    def all_gaussians(self) -> tuple[int | None, ...]:
        """What each leaves out."""
        return (*range(self.folds), None) if self.folds > 1 else (None,)

    def add_lengths(self, values: NDArray[np.floating], fold: NDArray[np.intp]) -> None:
        """Takes the same rows in the second pass, for how much the lengths of standardised rows vary."""
        assert self._pivot is not None
        if self._whitening is None:
            self._whitening = self._make_whitening()
        weights, weighted, constants = self._whitening
        own = values - self._pivot
        lengths = np.square(own) @ weights - 2 * own @ weighted + constants  # (B, Gaussians), squared
        fourth = np.square(lengths)
        for number in np.unique(fold):
            self._fourths[: fourth.shape[1], number] += fourth[fold == number].sum(0)

    def _make_whitening(self) -> tuple[Array, Array, Array]:
        assert self._pivot is not None
        found = [self.moments(left_out) for left_out in self.all_gaussians]
        means = np.stack([each.mean - self._pivot for each in found], 1)
        variances = np.stack([np.maximum(np.diagonal(each.covariance), 0) for each in found], 1)
        weights = 1 / (variances + self.smallest_scale**2)
        return weights, means * weights, (np.square(means) * weights).sum(0)

    def fit(self, left_out: int | None = None, *, size: Size) -> ShrunkGaussian:
        """The Gaussian as `ShrunkGaussian.fit` has it of the same rows, but for rounding."""
        count, mean, covariance = self.moments(left_out)
        kept = np.arange(self.folds) != left_out
        fourth = float(self._fourths[self.all_gaussians.index(left_out), kept].sum()) / count
        return ShrunkGaussian.from_moments(
            count, mean, covariance, fourth, smallest_scale=self.smallest_scale, size=size
        )
