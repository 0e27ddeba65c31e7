"""A Gaussian that stays sound with fewer images than dimensions."""

from dataclasses import dataclass
from functools import cached_property
from typing import Self

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

MOST_AXES = 512


@dataclass(frozen=True, eq=False)
class ShrunkGaussian:
    """Mean and covariance of standardised values, the covariance drawn towards the identity as Ledoit and Wolf do.

    C = (1 - a) S + a I, held as the axes along which S was seen to vary and what is left between them: with n images
    there are at most n - 1 such axes, so that thousands of dimensions cost no more than the images do.
    """

    mean: Array  # (d,)
    scale: Array  # (d,), what one unit of a standardised value is
    axes: NDArray[np.float32]  # (r, d), orthonormal rows; the bulk of what is stored, so in half the bytes
    variances: Array  # (r,) of the shrunk covariance along the axes
    rest: float  # the variance along any direction between them
    shrinkage: float

    @classmethod
    def fit(cls, x: NDArray[np.floating], *, smallest_scale: float) -> Self:
        """(n, d) -> the Gaussian; no standard deviation is taken for smaller than `smallest_scale`."""
        values = np.asarray(x, np.float64)
        mean = values.mean(0)
        scale = np.sqrt(values.var(0) + smallest_scale**2)
        standard = (values - mean) / scale
        shrinkage = ledoit_wolf(standard)
        seen, axes = principal_axes(standard)
        total = standard.var(0).sum()
        left = max(total - seen.sum(), 0.0) / max(values.shape[1] - len(seen), 1)
        variances, rest = (1 - shrinkage) * seen + shrinkage, (1 - shrinkage) * left + shrinkage
        return cls(mean, scale, axes.astype(np.float32), variances, float(rest), shrinkage)

    @cached_property
    def _axes(self) -> Array:
        """As they are multiplied: to convert them for every image takes longer than the product."""
        return self.axes.astype(np.float64)

    def distance(self, x: NDArray[np.floating]) -> Array:
        """(n, d) -> squared Mahalanobis distance a dimension, (n,): about 1 for what it was fitted on."""
        standard = (x - self.mean) / self.scale
        along = standard @ self._axes.T
        between = np.square(standard).sum(1) - np.square(along).sum(1)
        result: Array = (np.square(along) @ (1 / self.variances) + between / self.rest) / len(self.mean)
        return result

    def pull(self, x: NDArray[np.floating]) -> Array:
        """(n, d) -> the weights (n, d) with which each deviation from the mean enters: (x - mean) . pull = distance."""
        standard = (x - self.mean) / self.scale
        along = standard @ self._axes.T
        whitened = along * (1 / self.variances - 1 / self.rest) @ self._axes + standard / self.rest
        return whitened / self.scale / len(self.mean)


def ledoit_wolf(standard: Array) -> float:
    """The share of the identity that is closest to the true covariance, from n centred rows; near 1 when n is small."""
    count, size = standard.shape
    gram = standard @ standard.T / count  # the same spectrum as the covariance, in n dimensions
    level = np.trace(gram) / size
    spread = np.square(gram).sum() - size * level**2  # squared distance of S from the scaled identity
    noise = (np.square(np.diag(gram)).sum() * count - np.square(gram).sum()) / count
    return float(np.clip(noise / max(spread, 1e-300), 1e-3, 1.0))


def principal_axes(standard: Array) -> tuple[Array, Array]:
    """Variances (r,) and orthonormal axes (r, d) along which n centred rows vary most, the largest first."""
    count, size = standard.shape
    if count <= size:
        variances, columns = np.linalg.eigh(standard @ standard.T / count)
        kept = order_of(variances)
        axes = (columns[:, kept] / np.sqrt(variances[kept] * count)).T @ standard
    else:
        variances, columns = np.linalg.eigh(standard.T @ standard / count)
        kept = order_of(variances)
        axes = columns[:, kept].T
    return variances[kept], np.ascontiguousarray(axes)


def order_of(variances: Array) -> NDArray[np.intp]:
    """Which to keep, the largest first: none that is only rounding, and no more than `MOST_AXES`."""
    largest_first = np.argsort(variances)[::-1][:MOST_AXES]
    kept: NDArray[np.intp] = largest_first[variances[largest_first] > 1e-9 * max(variances.max(), 1e-300)]
    return kept
