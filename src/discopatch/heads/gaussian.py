"""A Gaussian that is well-conditioned with fewer images than dimensions."""

from typing import ClassVar, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from discopatch.errors import WeightsError
from discopatch.heads.base import Array, Fitted, ProbeShifts, Shapes

MAX_AXES = 512
GRID = 2.0**26
SMALLEST_SCALE = 0.01  # standard deviation of a mean or a log-variance: one percent
SMALLEST_DISTANCE = 1e-9  # of values at the mean, so that the logarithm is finite


class ShrunkGaussian(Fitted):
    """Mean and covariance of standardised values, the covariance shrunk towards the identity (Ledoit and Wolf, 2004).

    C = (1 - a) S + a I is held as the principal axes of S and one variance for all directions orthogonal to them. From
    n images there are at most n - 1 axes, so that the cost grows with the images and not with the dimensions.
    """

    shapes: ClassVar[Shapes] = {
        "mean": ("dimensions",),
        "scale": ("dimensions",),  # standard deviations
        "axes": ("axes", "dimensions"),  # rows that are orthonormal except for rounding, see `on_grid`
        "variances": ("axes",),  # of the shrunk covariance along the axes
        "rest": (),  # the variance along any direction orthogonal to them
        "shrinkage": (),
    }
    positive = ("scale", "variances", "rest")
    derived = ("overlap",)  # (axes, axes), the error of orthonormality

    @classmethod
    def fit(cls, x: NDArray[np.floating], *, smallest_scale: float = SMALLEST_SCALE, least: float = 0.0) -> Self:
        """The Gaussian of (n, d) values.

        smallest_scale: added to standard deviations, in squares.
        least: the smallest shrinkage.
        """
        values = np.asarray(x, np.float64)
        mean = values.mean(0)
        scale = np.sqrt(values.var(0) + smallest_scale**2)
        standard = (values - mean) / scale
        product = smaller_product(standard)
        shrinkage = max(ledoit_wolf(standard, product), least)
        explained, axes = principal_axes(standard, product)
        rest = max(float(standard.var(0).sum()) - explained.sum(), 0.0) / max(len(mean) - len(explained), 1)
        return cls.of(
            mean=mean,
            scale=scale,
            axes=on_grid(axes),
            variances=(1 - shrinkage) * explained + shrinkage,
            rest=(1 - shrinkage) * rest + shrinkage,
            shrinkage=shrinkage,
        )

    def derive(self) -> None:
        if len(self.axes) > MAX_AXES:
            raise WeightsError(f"it has a Gaussian of {len(self.axes)} axes, more than {MAX_AXES}")
        self.overlap = self.axes @ self.axes.T - torch.eye(len(self.axes), dtype=self.axes.dtype)

    def forward(self, x: Tensor) -> Tensor:
        """The squared Mahalanobis distance per dimension, (n, d) to (n,) in float64: about 1 for the fitted values.

        The part orthogonal to the axes equals |standard|^2 - |along|^2 but is computed from the residual: a runtime
        without float64 would lose the digits of the difference. The overlap makes both equal.
        """
        standard, axes = (x.double() - self.mean) / self.scale, self.axes.double()
        along = standard @ axes.T
        residual = standard - along @ axes
        orthogonal = (residual * residual).sum(1) - ((along @ self.overlap.double()) * along).sum(1)
        return ((along * along) @ (1 / self.variances) + orthogonal / self.rest) / len(self.mean)

    def log_distance(self, x: Tensor) -> Tensor:
        """The logarithm of the distance, (n, d) to (n,)."""
        return self.forward(x).clamp(min=SMALLEST_DISTANCE).log()

    @torch.inference_mode()
    def gradient(self, deviation: Array) -> Array:
        """C^-1 (x - mean) / d for one deviation x - mean, (d,): the direction in which the distance grows."""
        standard = torch.from_numpy(deviation) / self.scale
        along = standard @ self.axes.T
        whitened = along * (1 / self.variances - 1 / self.rest) @ self.axes + standard / self.rest
        return (whitened / self.scale / len(self.mean)).numpy()

    def matched_filters(self, shifts: ProbeShifts) -> Array:
        """(probes, d): the linear function that separates each change from the fitted values best, by its shifts.

        Every image has the same weight. A change that moves nothing, such as saturation of grey images, has a filter of
        zeros.
        """
        scale = self.scale.numpy()
        filters = np.zeros((len(shifts), len(scale)))
        for row, moved in enumerate(shifts.values()):
            standard = moved / scale
            length = np.linalg.norm(standard, axis=1, keepdims=True)
            direction = (standard / np.maximum(length, 1e-9)).mean(0) * scale
            gradient = self.gradient(direction)
            if (strength := gradient @ direction) > 1e-12:
                filters[row] = gradient / np.sqrt(strength)
        return filters


def smaller_product(standard: Array) -> Array:
    """(n, n) or (d, d), whichever is smaller, of n centred rows; both have the nonzero spectrum of the covariance."""
    count, size = standard.shape
    product: Array = (standard @ standard.T if count <= size else standard.T @ standard) / count
    return product


def ledoit_wolf(standard: Array, product: Array) -> float:
    """The weight of the identity that comes closest to the true covariance, from n centred rows; near 1 for small n.

    `product` is their `smaller_product`.
    """
    count, size = standard.shape
    lengths = np.square(standard).sum(1)
    total, squares = float(lengths.sum() / count), float(np.square(product).sum())
    spread = squares - total**2 / size  # squared distance of S from the scaled identity
    noise = (float(np.square(lengths).mean()) - squares) / count
    return float(np.clip(noise / max(spread, 1e-300), 1e-3, 1.0))


def principal_axes(standard: Array, product: Array) -> tuple[Array, Array]:
    """Variances (r,) and orthonormal axes (r, d) along which n centred rows vary most, the largest first.

    `product` is their `smaller_product`. Axes whose variance is only rounding are left out.
    """
    count, size = standard.shape
    variances, columns = np.linalg.eigh(product)
    order = np.argsort(variances)[::-1][:MAX_AXES]
    kept = order[variances[order] > 1e-9 * max(variances.max(), 1e-300)]
    axes = columns[:, kept].T
    if count <= size:
        axes = (axes / np.sqrt(variances[kept] * count)[:, None]) @ standard
    return variances[kept], np.ascontiguousarray(axes)


def on_grid(axes: Array) -> NDArray[np.float32]:
    """Rows of length 1 rounded to float32, which halves the bytes of files, and to multiples of 1 / GRID.

    Their products in float64 are exact in any order of summation: every sum is a multiple of 1 / GRID^2 below 2, and
    has at most 53 bits. So everything derived from axes in a file equals that of the fit to the bit, on any processor
    and with any number of threads.
    """
    return (np.rint(axes * GRID) / GRID).astype(np.float32)
