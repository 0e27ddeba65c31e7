"""Corruptions that add noise. Pictures are floats in [0, 1], (H, W, 3)."""

import numpy as np
from numpy.typing import NDArray

GAUSSIAN_NOISE = (0.08, 0.12, 0.18, 0.26, 0.38)


def gaussian_noise(x: NDArray[np.float64], severity: int, rng: np.random.Generator) -> NDArray[np.float64]:
    """Adds N(0, c) to every value."""
    return x + rng.normal(scale=GAUSSIAN_NOISE[severity - 1], size=x.shape)
