"""Corruptions that blur."""

import math
from itertools import product

import numpy as np
from numpy.typing import NDArray

from discopatch.corruptions.imagenet_c.filters import (
    Floats,
    blur_with_gaussian,
    blur_with_motion,
    convolve,
    disk,
    zoom_centre,
)

GAUSSIAN_BLUR = (1, 2, 3, 4, 6)
DEFOCUS_BLUR = ((3, 0.1), (4, 0.5), (6, 0.5), (8, 0.5), (10, 0.5))  # radius, sigma of its rim
GLASS_BLUR = ((0.7, 1, 2), (0.9, 2, 1), (1, 2, 3), (1.1, 3, 2), (1.5, 4, 2))  # sigma, furthest swap, passes
MOTION_BLUR = ((10, 3), (15, 5), (15, 8), (15, 12), (20, 15))  # radius, sigma
ZOOM_BLUR = ((1.11, 0.01), (1.16, 0.01), (1.21, 0.02), (1.26, 0.02), (1.31, 0.03))  # largest zoom, step


def gaussian_blur(x: Floats, severity: int, rng: np.random.Generator) -> Floats:
    """Gaussian of standard deviation c; beyond its border the image goes on as its border."""
    return blur_with_gaussian(x, GAUSSIAN_BLUR[severity - 1])


def defocus_blur(x: Floats, severity: int, rng: np.random.Generator) -> Floats:
    """Convolves with a disk of that radius, its rim smoothed with that sigma; the image is mirrored at its border."""
    return convolve(x, disk(*DEFOCUS_BLUR[severity - 1]), border="reflect")


def glass_blur(x: Floats, severity: int, rng: np.random.Generator) -> Floats:
    """Gaussian, then swaps pixels at most so far apart, in so many passes, then the Gaussian again."""
    sigma, furthest, passes = GLASS_BLUR[severity - 1]
    blurred = blur_with_gaussian(x, sigma).reshape(-1, x.shape[2])
    taken = swapped_places(x.shape[0], x.shape[1], int(furthest), int(passes), rng)
    return blur_with_gaussian(np.take(blurred, taken, axis=0).reshape(x.shape), sigma)


def swapped_places(height: int, width: int, furthest: int, passes: int, rng: np.random.Generator) -> NDArray[np.intp]:
    """For every pixel the flat place it takes its colour from: a permutation.

    In a pass every pixel draws a partner, and they swap if neither has moved in this pass, so none moves further than
    `furthest` a pass. Pixels 2 furthest + 1 apart cannot meet, so each such grid of pixels swaps at once.
    """
    places = np.arange(height * width)
    own = places.reshape(height, width).copy()
    apart = 2 * furthest + 1
    for _ in range(passes):
        down, right = rng.integers(-furthest, furthest, (2, height, width), endpoint=True, dtype=np.int8)
        rows = (np.arange(height)[:, None] + down).clip(0, height - 1)
        columns = (np.arange(width) + right).clip(0, width - 1)
        partners = rows * width + columns
        unmoved = np.ones(height * width, bool)
        for top, left in product(range(apart), repeat=2):
            here, there = own[top::apart, left::apart].ravel(), partners[top::apart, left::apart].ravel()
            free = unmoved[here] & unmoved[there]
            here, there = here[free], there[free]
            places[here], places[there] = places[there], places[here]
            unmoved[here] = unmoved[there] = False
    return places


def motion_blur(x: Floats, severity: int, rng: np.random.Generator) -> Floats:
    """Convolves with half a Gaussian of that sigma along a ray at a random angle of -45 to 45 degrees."""
    radius, sigma = MOTION_BLUR[severity - 1]
    return blur_with_motion(x, radius, sigma, rng.uniform(-45, 45))


def zoom_blur(x: Floats, severity: int, rng: np.random.Generator) -> Floats:
    """Mean of the image and its zooms about the middle by 1, 1 + step, ... up to the largest."""
    largest, step = ZOOM_BLUR[severity - 1]
    last = math.floor((largest - 1) / step + 1e-9)
    single = x.astype(np.float32)  # errs by far less than a grey level, in half the time
    total = 2 * single  # the image, and its zoom by 1
    for number in range(1, last + 1):
        total += zoom_centre(single, 1 + step * number)
    return total.astype(np.float64) / (last + 2)
