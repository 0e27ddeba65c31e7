"""Corruptions that add noise."""

import numpy as np

from discopatch.corruptions.imagenet_c.filters import Floats

GAUSSIAN_NOISE = (0.08, 0.12, 0.18, 0.26, 0.38)
SHOT_NOISE = (60, 25, 12, 5, 3)
IMPULSE_NOISE = (0.03, 0.06, 0.09, 0.17, 0.27)
SPECKLE_NOISE = (0.15, 0.2, 0.35, 0.45, 0.6)


def gaussian_noise(x: Floats, severity: int, rng: np.random.Generator) -> Floats:
    """Adds N(0, c) to every value."""
    return x + rng.normal(scale=GAUSSIAN_NOISE[severity - 1], size=x.shape)


def shot_noise(x: Floats, severity: int, rng: np.random.Generator) -> Floats:
    """Poisson(x c) / c: c photons make white."""
    photons = SHOT_NOISE[severity - 1]
    return rng.poisson(x * photons) / photons


def impulse_noise(x: Floats, severity: int, rng: np.random.Generator) -> Floats:
    """Every value becomes 0 with probability c / 2, and 1 with probability c / 2."""
    share = IMPULSE_NOISE[severity - 1]
    uniform = rng.random(x.shape)
    return np.where(uniform < share / 2, 0.0, np.where(uniform < share, 1.0, x))


def speckle_noise(x: Floats, severity: int, rng: np.random.Generator) -> Floats:
    """Adds x N(0, c): the brighter, the noisier."""
    return x + x * rng.normal(scale=SPECKLE_NOISE[severity - 1], size=x.shape)
