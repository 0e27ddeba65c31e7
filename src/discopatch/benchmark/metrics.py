"""How well scores tell two sets of images apart."""

import numpy as np
from numpy.typing import ArrayLike


def auroc(normal: ArrayLike, shifted: ArrayLike) -> float:
    """Probability that a shifted image scores higher than a normal one; a tie counts one half."""
    normal, shifted = np.sort(np.asarray(normal, float)), np.asarray(shifted, float)
    if not normal.size or not shifted.size:
        raise ValueError("AUROC needs at least one normal and one shifted score")
    if np.isnan(normal).any() or np.isnan(shifted).any():
        raise ValueError("AUROC of scores that are not numbers: find out which images gave NaN")
    below = np.searchsorted(normal, shifted, side="left")
    not_above = np.searchsorted(normal, shifted, side="right")
    return float((below + not_above).sum() / (2 * normal.size * shifted.size))
