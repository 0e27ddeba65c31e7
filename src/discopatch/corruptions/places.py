"""Made-up changes of one place in an image, with masks: what a damaged part or a foreign object may look like."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import gaussian_filter
from scipy.spatial import KDTree

from discopatch.images import Pixels

SIZES = (0.1, 0.2, 0.4)  # of the place, as shares of the image's shorter side
SCRATCH_LENGTH = 16  # in widths
SMALLEST_DIFFERENCE = 24.0  # of the 256 levels, by which a shade differs from what it covers

Values = NDArray[np.float64]
Mask = NDArray[np.bool_]


class PlaceChange(NamedTuple):
    """An image that was changed in one place, and where."""

    pixels: Pixels  # (H, W, 3)
    mask: Mask  # (H, W); all pixels outside of it are as they were


# The place (side, side, 3), another image, the image's mean colour (3,), and the size in pixels -> the colour (3,) or
# colours (side, side, 3) that the place gets, and their weights (side, side), 0 where nothing changes.
Draw = Callable[[Values, Pixels, Values, int, np.random.Generator], tuple[Values, Values]]


def paste(place: Values, other: Pixels, mean: Values, size: int, rng: np.random.Generator) -> tuple[Values, Values]:
    """What stands somewhere in another image, cut out as a box or a disk."""
    rows, columns = np.indices((size, size)) - (size - 1) / 2
    height, width = np.maximum(size / 2 * rng.permutation([1.0, rng.uniform(0.5, 1.0)]), 1)
    boxed = (abs(rows) <= height) & (abs(columns) <= width)
    round_ = (rows / height) ** 2 + (columns / width) ** 2 <= 1
    weights = (boxed if rng.random() < 0.5 else round_).astype(np.float64)
    return other[random_square(other, size, rng)].astype(np.float64), weights


def scratch(place: Values, other: Pixels, mean: Values, size: int, rng: np.random.Generator) -> tuple[Values, Values]:
    """A curved line of that width across the place, brighter or darker than what it crosses."""
    side = len(place)
    along = np.linspace(0, 1, 8 * side)[:, None]
    start, middle, end = rng.uniform(0, side - 1, (3, 2))
    if rng.random() < 0.5:
        start[0], end[0] = 0, side - 1
    else:
        start[1], end[1] = 0, side - 1
    curve = (1 - along) ** 2 * start + 2 * along * (1 - along) * middle + along**2 * end
    places = np.indices((side, side)).transpose(1, 2, 0)
    distance, _ = KDTree(curve).query(places, distance_upper_bound=size / 2)  # infinite beyond
    return other_shade(place.mean((0, 1)), rng), np.isfinite(distance).astype(np.float64)


def stain(place: Values, other: Pixels, mean: Values, size: int, rng: np.random.Generator) -> tuple[Values, Values]:
    """A spot of an uneven outline and one shade, fainter at its edge, through which what it covers can be seen."""
    rows, columns = np.indices((size, size)) - (size - 1) / 2
    uneven = gaussian_filter(rng.normal(size=(size, size)), size / 8, mode="wrap")
    outline = np.clip(1 + 0.2 * uneven / max(float(uneven.std()), 1e-9), 0.5, 1.5)
    distance = np.hypot(rows, columns) / outline
    # The smallest spot that reaches from the first row to the last, or from the first column to the last.
    edge = min(max(each[0].min(), each[-1].min()) for each in (distance, distance.T))
    inside = np.where(distance <= edge, np.clip(0.5 + (edge - distance) / rng.uniform(1, 4), 0, 1), 0)
    return other_shade(place.mean((0, 1)), rng), inside * rng.uniform(0.4, 0.9)


def missing(place: Values, other: Pixels, mean: Values, size: int, rng: np.random.Generator) -> tuple[Values, Values]:
    """Nothing but what is around: a square that is filled from the border of its place."""
    border = np.concatenate([place[0], place[-1], place[:, 0], place[:, -1]]).mean(0)
    weights = np.pad(np.ones((size, size)), 1)
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


def change_place(name: str, pixels: Pixels, other: Pixels, *, size: int, rng: np.random.Generator) -> PlaceChange:
    """The image (H, W, 3) with one place changed; `paste` copies from the other image.

    The size is in pixels and exact: the width of a scratch, and the longer side of any other change.
    """
    side = {"scratch": min(SCRATCH_LENGTH * size, *pixels.shape[:2]), "missing": size + 2}.get(name, size)
    here = random_square(pixels, side, rng)
    before = pixels[here].astype(np.float64)
    colours, weights = PLACE_CHANGES[name](before, other, pixels.mean((0, 1)), size, rng)
    result, mask = pixels.copy(), np.zeros(pixels.shape[:2], np.bool_)
    result[here] = np.clip((before + weights[..., None] * (colours - before)).round(), 0, 255).astype(np.uint8)
    mask[here] = weights > 0
    return PlaceChange(result, mask)


def size_of_share(name: str, share: float, *images: Pixels) -> int:
    """The size in pixels of a change whose place is that share of the shortest side: of a scratch the length."""
    side = min(min(each.shape[:2]) for each in images)
    return max(1, int(share * side / (SCRATCH_LENGTH if name == "scratch" else 1)))


def random_square(pixels: Pixels, side: int, rng: np.random.Generator) -> tuple[slice, slice]:
    top, left = (int(rng.integers(length - side + 1)) for length in pixels.shape[:2])
    return slice(top, top + side), slice(left, left + side)
