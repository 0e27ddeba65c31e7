"""Corruptions that blur. Pictures are floats in [0, 1], (H, W, 3)."""

import numpy as np
from numpy.typing import NDArray

GAUSSIAN_BLUR = (1, 2, 3, 4, 6)
REACH = 4  # standard deviations after which a Gaussian is cut off


def gaussian_blur(x: NDArray[np.float64], severity: int, rng: np.random.Generator) -> NDArray[np.float64]:
    """Gaussian of standard deviation c; the picture goes on beyond its border as its border."""
    return blur_with_gaussian(x, GAUSSIAN_BLUR[severity - 1])


def blur_with_gaussian(x: NDArray[np.float64], sigma: float) -> NDArray[np.float64]:
    """One axis after the other: a Gaussian in the plane is a product of two on the line."""
    radius = int(REACH * sigma + 0.5)
    weights = np.exp(-0.5 * (np.arange(-radius, radius + 1) / sigma) ** 2)
    weights /= weights.sum()
    for axis in (0, 1):
        padding = [(radius, radius) if each == axis else (0, 0) for each in range(x.ndim)]
        wide = np.pad(x, padding, mode="edge")
        length = x.shape[axis]
        shifted = (wide.swapaxes(0, axis)[place : place + length].swapaxes(0, axis) for place in range(len(weights)))
        x = sum((weight * part for weight, part in zip(weights, shifted, strict=True)), np.zeros_like(x))
    return x
