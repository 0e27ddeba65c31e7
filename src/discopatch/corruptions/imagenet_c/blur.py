"""Corruptions that blur."""

import numpy as np
from numpy.typing import NDArray

from discopatch.corruptions.imagenet_c.filters import (
    Floats,
    blur_with_gaussian,
    blur_with_motion,
    convolve,
    disk,
    stored,
    zoom_centre,
)

GAUSSIAN_BLUR = (1, 2, 3, 4, 6)
DEFOCUS_BLUR = ((3, 0.1), (4, 0.5), (6, 0.5), (8, 0.5), (10, 0.5))  # radius, sigma of its rim
GLASS_BLUR = ((0.7, 1, 2), (0.9, 2, 1), (1, 2, 3), (1.1, 3, 2), (1.5, 4, 2))  # sigma, furthest colour, passes
MOTION_BLUR = ((10, 3), (15, 5), (15, 8), (15, 12), (20, 15))  # radius, sigma
ZOOM_BLUR = ((1.11, 0.01), (1.16, 0.01), (1.21, 0.02), (1.26, 0.02), (1.31, 0.03))  # largest zoom, step


def gaussian_blur(x: Floats, severity: int, rng: np.random.Generator) -> Floats:
    """Gaussian of standard deviation c; beyond its border the image goes on as its border."""
    return blur_with_gaussian(x, GAUSSIAN_BLUR[severity - 1])


def defocus_blur(x: Floats, severity: int, rng: np.random.Generator) -> Floats:
    """Convolves with a disk of that radius, its rim smoothed with that sigma; the image is mirrored at its border."""
    return convolve(x, disk(*DEFOCUS_BLUR[severity - 1]), border="reflect")


def glass_blur(x: Floats, severity: int, rng: np.random.Generator) -> Floats:
    """Gaussian, then pixels take the colours of others at most so far away, in so many passes; the Gaussian again."""
    sigma, furthest, passes = GLASS_BLUR[severity - 1]
    blurred = stored(blur_with_gaussian(x, sigma)).reshape(-1, x.shape[2])
    taken = taken_places(x.shape[0], x.shape[1], int(furthest), int(passes), rng)
    return blur_with_gaussian(np.take(blurred, taken, axis=0).reshape(x.shape), sigma)


def taken_places(height: int, width: int, furthest: int, passes: int, rng: np.random.Generator) -> NDArray[np.intp]:
    """For every pixel the flat place that its colour comes from, (H W,)."""
    places = np.arange(height * width)
    for _ in range(passes):
        down, right = rng.integers(-furthest, furthest, (2, height, width))
        places = places[scanned_places(down, right, furthest)]
    return places


def scanned_places(down: NDArray[np.intp], right: NDArray[np.intp], margin: int) -> NDArray[np.intp]:
    """The places (H W,) after one scan, in which each pixel takes the colour that lies so far down and right of it.

    The scan goes from the bottom right, without the margins, and ImageNet-C's swap only copies. So a pixel that takes
    from one that was scanned before it takes what that one took: such chains are followed all at once, twice as far
    in every round.
    """
    height, width = down.shape
    own = np.arange(height * width)
    inside = np.zeros((height, width), bool)
    inside[margin + 1 : height - margin + 1, margin + 1 : width - margin + 1] = True
    scanned = inside.ravel()
    source = np.where(scanned, own + (down * width + right).ravel(), own)
    last = np.where((source > own) & scanned[source], source, own)
    while not np.array_equal(further := last[last], last):
        last = further
    return source[last]


def motion_blur(x: Floats, severity: int, rng: np.random.Generator) -> Floats:
    """Convolves with half a Gaussian of that sigma along a ray at a random angle of -45 to 45 degrees."""
    radius, sigma = MOTION_BLUR[severity - 1]
    return blur_with_motion(x, radius, sigma, rng.uniform(-45, 45))


def zoom_blur(x: Floats, severity: int, rng: np.random.Generator) -> Floats:
    """Mean of the image and its zooms about the middle by 1, 1 + step, ... up to the largest."""
    zooms = np.arange(1, *ZOOM_BLUR[severity - 1])  # its rounding errors decide whether the largest is among them
    single = x.astype(np.float32)  # errs by far less than a grey level, in half the time
    total = 2 * single  # the image, and its zoom by 1
    for zoom in zooms[1:]:
        total += zoom_centre(single, float(zoom))
    return total.astype(np.float64) / (len(zooms) + 1)
