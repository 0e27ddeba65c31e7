"""Drops of water and splashes of mud on the lens. Pictures are floats in [0, 1], (H, W, 3)."""

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from discopatch.images.corrupt.filters import Floats, blur_with_gaussian

# Mean and deviation of the noise, sigma of its blur, threshold, intensity of water or sigma of mud, mud.
SPATTER = (
    (0.65, 0.3, 4, 0.69, 0.6, 0),
    (0.65, 0.3, 3, 0.68, 0.6, 0),
    (0.65, 0.3, 2, 0.68, 0.5, 0),
    (0.65, 0.3, 1, 0.65, 1.5, 1),
    (0.67, 0.4, 1, 0.65, 1.5, 1),
)
WATER = np.array([175, 238, 238]) / 255
MUD = np.array([63, 42, 20]) / 255
THICK_MUD = 0.8  # of the smoothed mask; thinner mud is not there
DEEPEST = 20  # pixels from the edge of a drop after which its shade no longer changes
EMBOSS = np.array([[-2.0, -1, 0], [-1, 1, 1], [0, 1, 2]])


def spatter(x: Floats, severity: int, rng: np.random.Generator) -> Floats:
    """Where blurred N(loc, scale) passes a threshold: x + m water, m shaded by the edges; or x (1 - m) + m mud."""
    mean, deviation, sigma, threshold, strength, is_mud = SPATTER[severity - 1]
    liquid = blur_with_gaussian(rng.normal(mean, deviation, x.shape[:2]), sigma)
    wet = liquid > threshold
    if is_mud:
        cover = mud_cover(wet, strength)[..., None]
        return x * (1 - cover) + cover * MUD
    return x + strength * water_shine(np.where(wet, liquid, 0), wet)[..., None] * WATER


def mud_cover(wet: NDArray[np.bool_], sigma: float) -> Floats:
    """The wet mask smoothed, and only where it stays thick."""
    soft = blur_with_gaussian(wet.astype(np.float64), sigma)
    return np.where(soft < THICK_MUD, 0, soft)


def water_shine(liquid: Floats, wet: NDArray[np.bool_]) -> Floats:
    """The liquid, lit from one side by the relief of the distance to its edges; at most 1."""
    if not wet.any() or wet.all():
        return np.zeros_like(liquid)
    edges = wet & ~ndimage.binary_erosion(wet, border_value=1)
    depth = ndimage.distance_transform_edt(~edges).clip(0, DEEPEST)
    relief = equalised(np.rint(ndimage.uniform_filter(depth, 3)).astype(int))
    lit = ndimage.correlate(relief, EMBOSS, mode="mirror").clip(0, 1)
    shine: Floats = liquid * ndimage.uniform_filter(lit, 3)
    shine /= max(shine.max(), np.finfo(float).tiny)
    return shine


def equalised(levels: NDArray[np.int_]) -> Floats:
    """Levels spread over [0, 1] so that each share of the picture gets its share of the range."""
    below = np.bincount(levels.ravel()).cumsum()
    lowest = below[levels.min()]
    spread: Floats = (below - lowest)[levels] / max(levels.size - lowest, 1)
    return spread
