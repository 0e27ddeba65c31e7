"""Made-up changes of one place in an image, with masks: what a damaged part or a foreign object may look like."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import gaussian_filter, maximum_filter

from discopatch.images import Pixels

SIZES = (0.1, 0.2, 0.4)  # of the place, as shares of the image's shorter side
SMALLEST_PLACE = 6  # pixels along its side
SMALLEST_DIFFERENCE = 24.0  # of the 256 levels, by which a shade differs from what it covers

Values = NDArray[np.float64]
Mask = NDArray[np.bool_]


class PlaceChange(NamedTuple):
    """An image that was changed in one place, and where."""

    pixels: Pixels  # (H, W, 3)
    mask: Mask  # (H, W); all pixels outside of it are as they were


# The place (side, side, 3), an equal place of another image, and the image's mean colour (3,) -> the colour (3,) or
# colours (side, side, 3) that the place gets, and their weights (side, side), 0 where nothing changes.
Draw = Callable[[Values, Values, Values, np.random.Generator], tuple[Values, Values]]


def paste(place: Values, other: Values, mean: Values, rng: np.random.Generator) -> tuple[Values, Values]:
    """What stands somewhere in another image, cut out as a box or a disk."""
    side = len(place)
    rows, columns = np.indices((side, side)) - (side - 1) / 2
    width, height = (side / 2 * rng.uniform(0.5, 1.0) for _ in range(2))
    boxed = (abs(rows) <= height) & (abs(columns) <= width)
    round_ = (rows / height) ** 2 + (columns / width) ** 2 <= 1
    return other, (boxed if rng.random() < 0.5 else round_).astype(np.float64)


def scratch(place: Values, other: Values, mean: Values, rng: np.random.Generator) -> tuple[Values, Values]:
    """A thin curved line across the place, brighter or darker than what it crosses."""
    side = len(place)
    along = np.linspace(0, 1, 4 * side)[:, None]
    start, middle, end = rng.uniform(0, side - 1, (3, 2))
    if rng.random() < 0.5:
        start[0], end[0] = 0, side - 1
    else:
        start[1], end[1] = 0, side - 1
    curve = (1 - along) ** 2 * start + 2 * along * (1 - along) * middle + along**2 * end
    line = np.zeros((side, side))
    line[tuple(curve.round().astype(int).T)] = 1
    width = int(rng.integers(1, max(2, side // 16) + 1))
    return other_shade(place.mean((0, 1)), rng), maximum_filter(line, width)


def stain(place: Values, other: Values, mean: Values, rng: np.random.Generator) -> tuple[Values, Values]:
    """A spot of an uneven outline and one shade, through which what it covers can be seen."""
    side = len(place)
    rows, columns = (np.indices((side, side)) - (side - 1) / 2) / (side / 2)
    uneven = gaussian_filter(rng.normal(size=(side, side)), side / 8, mode="wrap")
    outline = 0.7 + 0.15 * uneven / max(float(uneven.std()), 1e-9)
    inside = np.clip((outline - np.hypot(rows, columns)) * side / rng.uniform(2, 8), 0, 1)
    inside[side // 2, side // 2] = 1
    return other_shade(place.mean((0, 1)), rng), inside * rng.uniform(0.4, 0.9)


def missing(place: Values, other: Values, mean: Values, rng: np.random.Generator) -> tuple[Values, Values]:
    """Nothing but what is around: the place is filled from its own border."""
    side = len(place)
    border = np.concatenate([place[0], place[-1], place[:, 0], place[:, -1]]).mean(0)
    weights = np.zeros((side, side))
    weights[1:-1, 1:-1] = 1
    nothing_there = abs(place - border).max() < SMALLEST_DIFFERENCE / 2
    return other_shade(mean, rng) if nothing_there else border, weights


def other_shade(shade: Values, rng: np.random.Generator) -> Values:
    """A shade (3,) that is plainly brighter or darker, towards the side where there is room."""
    level = float(shade.mean())
    up = rng.random() < 0.5 if 2 * SMALLEST_DIFFERENCE < level < 255 - 2 * SMALLEST_DIFFERENCE else level < 128
    target = 255.0 if up else 0.0
    least = SMALLEST_DIFFERENCE / max(abs(target - level), SMALLEST_DIFFERENCE)
    return shade + (target - shade) * rng.uniform(max(least, 0.3), max(least, 0.9))


PLACE_CHANGES: dict[str, Draw] = {each.__name__: each for each in (paste, scratch, stain, missing)}


def change_place(name: str, pixels: Pixels, other: Pixels, *, size: float, rng: np.random.Generator) -> PlaceChange:
    """The image (H, W, 3) with one place changed, of that share of its shorter side; `other` is another such image."""
    side = max(SMALLEST_PLACE, round(size * min(*pixels.shape[:2], *other.shape[:2])))
    here, there = (random_square(each, side, rng) for each in (pixels, other))
    before = pixels[here].astype(np.float64)
    colours, weights = PLACE_CHANGES[name](before, other[there].astype(np.float64), pixels.mean((0, 1)), rng)
    result, mask = pixels.copy(), np.zeros(pixels.shape[:2], np.bool_)
    result[here] = np.clip((before + weights[..., None] * (colours - before)).round(), 0, 255).astype(np.uint8)
    mask[here] = weights > 0
    return PlaceChange(result, mask)


def random_square(pixels: Pixels, side: int, rng: np.random.Generator) -> tuple[slice, slice]:
    top, left = (int(rng.integers(length - side + 1)) for length in pixels.shape[:2])
    return slice(top, top + side), slice(left, left + side)
