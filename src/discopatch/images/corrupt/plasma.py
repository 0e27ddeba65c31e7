"""Clouds by the diamond-square algorithm."""

import numpy as np

from discopatch.images.corrupt.filters import Floats


def plasma(height: int, width: int, decay: float, rng: np.random.Generator) -> Floats:
    """Clouds in [0, 1], cut from a square whose side is a power of two."""
    size = 1 << (max(height, width) - 1).bit_length()
    heights = diamond_square(size, decay, rng)
    heights -= heights.min()
    heights /= heights.max()
    return heights[:height, :width]


def diamond_square(size: int, decay: float, rng: np.random.Generator) -> Floats:
    """Every halving of the grid puts its new points at the mean of their four neighbours, plus a uniform offset.

    The offset shrinks by the decay squared from grid to grid: the decay is that of a wobble that ImageNet-C multiplies
    by noise of its own size. Borders are joined, like those of a torus.
    """
    heights = np.zeros((size, size))
    step, wobble = size, 1.0
    while step > 1:
        half = step // 2
        offsets = wobble**2 * rng.uniform(-1, 1, (3, size // step, size // step))
        corners = heights[::step, ::step]
        across, below = corners + np.roll(corners, -1, 1), corners + np.roll(corners, -1, 0)
        centres = (across + np.roll(across, -1, 0)) / 4 + offsets[0]
        heights[half::step, half::step] = centres
        heights[::step, half::step] = (across + centres + np.roll(centres, 1, 0)) / 4 + offsets[1]
        heights[half::step, ::step] = (below + centres + np.roll(centres, 1, 1)) / 4 + offsets[2]
        step, wobble = half, wobble / decay
    return heights
