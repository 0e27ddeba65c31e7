"""A Gaussian that stays sound with fewer images than dimensions."""

from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from discopatch.errors import ParameterError
from discopatch.heads.base import STATISTICS, Array, Fitted, Size, Stored, declare, declare_derived

MAX_AXES = 512
AXES = Size("axes", MAX_AXES)
GRID = 2.0**26


class ShrunkGaussian(Fitted):
    """Mean and covariance of standardised values, the covariance shrunk towards the identity as Ledoit and Wolf do.

    C = (1 - a) S + a I, held as the principal axes of S and one variance for all directions orthogonal to them: with n
    images there are at most n - 1 such axes, so that thousands of dimensions cost no more than the images do.
    """

    mean: Tensor  # (d,)
    scale: Tensor  # (d,), the standard deviation that values are divided by
    axes: Tensor  # (r, d), rows that are orthonormal but for rounding, see `on_grid`
    variances: Tensor  # (r,) of the shrunk covariance along the axes
    rest: Tensor  # (), the variance along any direction orthogonal to them
    shrinkage: Tensor  # ()
    overlap: Tensor  # (r, r), what that rounding adds to the products of the axes
    many_rows: bool = False  # whether very many rows are to pass, for which time counts more than the last digits

    def __init__(self, size: Size = STATISTICS) -> None:
        super().__init__()
        declare(
            self,
            mean=Stored(size),
            scale=Stored(size, positive=True),
            axes=Stored(AXES, size),
            variances=Stored(AXES, positive=True),
            rest=Stored(positive=True),
            shrinkage=Stored(),
        )
        declare_derived(self, "overlap")

    @classmethod
    def fit(cls, x: NDArray[np.floating], *, smallest_scale: float, size: Size = STATISTICS) -> Self:
        """The Gaussian of (n, d) values; no standard deviation is taken for smaller than `smallest_scale`.

        `size` is that of d, where it is not all statistics of an image.
        """
        values = np.asarray(x, np.float64)
        mean = values.mean(0)
        scale = np.sqrt(values.var(0) + smallest_scale**2)
        standard = (values - mean) / scale
        product = smaller_product(standard)
        shrinkage = ledoit_wolf(standard, product)
        explained, axes = principal_axes(standard, product)
        return cls._of(mean, scale, explained, axes, float(standard.var(0).sum()), shrinkage, size)

    @classmethod
    def from_moments(
        cls,
        count: int,
        mean: Array,
        covariance: Array,
        fourth: float,
        *,
        smallest_scale: float,
        size: Size = STATISTICS,
    ) -> Self:
        """The same from the moments of so many values: `fourth` is the mean fourth power of the standardised lengths.

        It agrees with `fit` but for rounding, and takes no more memory for more values.
        """
        scale = np.sqrt(np.maximum(np.diagonal(covariance), 0) + smallest_scale**2)
        product = covariance / np.outer(scale, scale)
        total = float(np.trace(product))
        shrinkage = shrinkage_of(count, len(mean), total, float(np.square(product).sum()), fourth)
        variances, columns = np.linalg.eigh(product)
        kept = largest_first(variances)[: max(count - 1, 0)]
        return cls._of(mean, scale, variances[kept], columns[:, kept].T, total, shrinkage, size)

    @classmethod
    def _of(
        cls, mean: Array, scale: Array, explained: Array, axes: Array, total: float, shrinkage: float, size: Size
    ) -> Self:
        rest = max(total - explained.sum(), 0.0) / max(len(mean) - len(explained), 1)
        gaussian = cls(size).hold(
            mean=mean,
            scale=scale,
            axes=on_grid(axes),
            variances=(1 - shrinkage) * explained + shrinkage,
            rest=(1 - shrinkage) * rest + shrinkage,
            shrinkage=shrinkage,
        )
        gaussian.derive()
        return gaussian

    @classmethod
    def empty(cls, size: Size) -> Self:
        """One of no values at all, to be stored where there is nothing to fit."""
        none = np.empty(0)
        gaussian = cls(size).hold(mean=none, scale=none, axes=np.empty((0, 0)), variances=none, rest=1, shrinkage=1)
        gaussian.derive()
        return gaussian

    def derive(self) -> None:
        self.overlap = self.axes @ self.axes.T - torch.eye(len(self.axes), dtype=self.axes.dtype)

    def forward(self, x: Tensor) -> Tensor:
        """The squared Mahalanobis distance a dimension, (n, d) to (n,) in float64: about 1 for the fitted values.

        The part orthogonal to the axes is |standard|^2 - |along|^2, but computed itself: where a runtime has no float64
        the difference would lose its digits. The overlap makes both the same.
        """
        if x.shape[1] != len(self.mean):
            raise ParameterError(
                f"{x.shape[1]} features an image, and the head was fitted on {len(self.mean)}: take the same encoder"
            )
        standard, axes = (x.double() - self.mean) / self.scale, self.axes.double()
        if self.many_rows:
            return self._of_many(standard)
        along = standard @ axes.T
        residual = standard - along @ axes
        orthogonal = (residual * residual).sum(1) - ((along @ self.overlap.double()) * along).sum(1)
        return ((along * along) @ (1 / self.variances) + orthogonal / self.rest) / len(self.mean)

    def _of_many(self, standard: Tensor) -> Tensor:
        """The same by a quarter of the work: one product, in float32, and the difference itself, in float64."""
        along = (standard.float() @ self.axes.float().T).double()
        lengths = (standard * standard).sum(1)
        return (lengths / self.rest + (along * along) @ (1 / self.variances - 1 / self.rest)) / len(self.mean)

    @torch.inference_mode()
    def gradient(self, deviation: Array) -> Array:
        """C^-1 (x - mean) / d for one deviation x - mean, (d,): the direction in which the distance grows."""
        standard = torch.from_numpy(deviation) / self.scale
        along = standard @ self.axes.T
        whitened = along * (1 / self.variances - 1 / self.rest) @ self.axes + standard / self.rest
        return (whitened / self.scale / len(self.mean)).numpy()


def smaller_product(standard: Array) -> Array:
    """(n, n) or (d, d), the smaller, of n centred rows: either has the spectrum of their covariance that counts."""
    count, size = standard.shape
    product: Array = (standard @ standard.T if count <= size else standard.T @ standard) / count
    return product


def ledoit_wolf(standard: Array, product: Array | None = None) -> float:
    """The weight of the identity that comes closest to the true covariance, from n centred rows; near 1 for small n.

    `product` is their `smaller_product`, where it is known.
    """
    count, size = standard.shape
    product = smaller_product(standard) if product is None else product
    lengths = np.square(standard).sum(1)
    total, squares = float(lengths.sum() / count), float(np.square(product).sum())
    return shrinkage_of(count, size, total, squares, float(np.square(lengths).mean()))


def shrinkage_of(count: int, size: int, total: float, squares: float, fourth: float) -> float:
    """The same from the trace of S, the sum of the squares in it, and the mean fourth power of the rows' lengths."""
    spread = squares - total**2 / size  # squared distance of S from the scaled identity
    noise = (fourth - squares) / count
    return float(np.clip(noise / max(spread, 1e-300), 1e-3, 1.0))


def principal_axes(standard: Array, product: Array) -> tuple[Array, Array]:
    """Variances (r,) and orthonormal axes (r, d) along which n centred rows vary most, the largest first.

    `product` is their `smaller_product`.
    """
    count, size = standard.shape
    variances, columns = np.linalg.eigh(product)
    kept = largest_first(variances)
    axes = columns[:, kept].T
    if count <= size:
        axes = (axes / np.sqrt(variances[kept] * count)[:, None]) @ standard
    return variances[kept], np.ascontiguousarray(axes)


def on_grid(axes: Array) -> NDArray[np.float32]:
    """Rows of length 1 rounded to float32, so that files need half the bytes, and to multiples of 1 / GRID.

    Their products in float64 are then exact, in whichever order they are summed: every sum is a multiple of 1 / GRID^2
    below 2, and has at most 53 bits. So what is derived from axes that were read from a file is the same to the bit as
    after the fit, whatever the processor and the number of threads.
    """
    return (np.rint(axes * GRID) / GRID).astype(np.float32)


def largest_first(variances: Array) -> NDArray[np.intp]:
    """The indices to keep, the largest variance first: none that is only rounding, and no more than `MAX_AXES`."""
    order = np.argsort(variances)[::-1][:MAX_AXES]
    kept: NDArray[np.intp] = order[variances[order] > 1e-9 * max(variances.max(), 1e-300)]
    return kept
