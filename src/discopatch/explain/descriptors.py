"""Descriptors of acquisition, measured in pixels: level, contrast, colours, detail, noise, blocks.

Each is on a scale on which a change adds about the same to all images. A small network recognises known changes of
photos by them.
"""

from functools import cache
from math import ceil
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray
from safetensors.torch import load_file

from discopatch.heads.base import Array, Fitted, Shapes
from discopatch.images import Pixels

Floats = NDArray[np.float32]
Plane = NDArray[np.uint8]  # (B, H, W)

LUMINANCE = np.array([0.299, 0.587, 0.114], np.float32)
LEVELS = 256
DARK, LIGHT = 2, 253  # 8-bit values that count as clipped
BLOCK = 8
SCALES, SMALLEST = 5, 4  # scales at which detail is measured, and the smallest side in pixels
LITTLE = 0.3  # of an 8-bit level, an offset of logarithms
BANDS = ((3, 5), (6, 9), (10, 14))  # sums of the two frequencies of a block's coefficients
NO_COEFFICIENT = 0.7  # of a level, below which a block lacks a frequency
LINEAR = 3.0  # standard deviations, beyond which descriptors are compressed
LEARNT = Path(__file__).with_name("learnt.safetensors")


def descriptors(pixels: Pixels) -> Floats:
    """(B, H, W, 3) in uint8 to (B, numbers), the same number for all images of one size of at least 16 pixels."""
    red, green, blue = (np.ascontiguousarray(pixels[..., channel]) for channel in range(3))
    largest, smallest = (extreme(extreme(red, green), blue) for extreme in (np.maximum, np.minimum))
    luminance: Floats = LUMINANCE[0] * red + LUMINANCE[1] * green + LUMINANCE[2] * blue
    differences = [channel - luminance for channel in (red, blue)]
    colour = red.astype(np.int32) << 16 | green.astype(np.int32) << 8 | blue
    equal_neighbours = colour[:, :, 1:] == colour[:, :, :-1], colour[:, 1:] == colour[:, :-1]
    found = [
        *levels_and_contrast(luminance, largest, smallest),
        *colours(differences, largest, smallest),
        log(red.mean((1, 2), dtype=np.float32), 2.5) - log(blue.mean((1, 2), dtype=np.float32), 2.5),
        *detail(luminance),
        *colour_detail(differences),
        *(each.mean((1, 2), dtype=np.float32) for each in equal_neighbours),
        *blocks(luminance),
        *local_contrast(luminance, largest, smallest),
    ]
    return np.stack(found, axis=1).astype(np.float32)


def levels_and_contrast(luminance: Floats, largest: Plane, smallest: Plane) -> list[Floats]:
    """The level, its spread and its quantiles, and how much is clipped."""
    flat = luminance.reshape(len(luminance), -1)
    largest, smallest = (each.reshape(len(each), -1) for each in (largest, smallest))
    found = [flat.mean(1) / LEVELS, log(flat.std(1), 1)]
    found += list(quantiles(flat, (0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99), LEVELS) / LEVELS)
    for edge in (largest, smallest):
        low, below, above, high = quantiles(edge, (0.002, 0.02, 0.98, 0.998), LEVELS)
        found += [log(low, 4), log(below, 4), log(LEVELS - 1 - above, 4), log(LEVELS - 1 - high, 4)]
    found += [share(largest >= LIGHT), share(smallest >= LIGHT), share(smallest <= DARK), share(largest <= DARK)]
    found += [share((smallest <= DARK) & (largest > 40))]
    return found


def colours(differences: list[Floats], largest: Plane, smallest: Plane) -> list[Floats]:
    """Saturation, chroma, and the mean colour."""
    count = len(largest)
    chroma = (largest - smallest).reshape(count, -1)
    saturation = chroma / (largest.reshape(count, -1) + np.float32(1))
    found = [saturation.mean(1), saturation.std(1), log(chroma.mean(1, dtype=np.float32), 0.5)]
    found += list(quantiles(saturation * LEVELS, (0.1, 0.5, 0.9, 0.98), LEVELS) / LEVELS)
    found += [log(each, 1) for each in quantiles(chroma, (0.5, 0.95), LEVELS)]
    for difference in differences:
        flat = difference.reshape(count, -1)
        found += [flat.mean(1) / LEVELS, log(flat.std(1), 0.5)]
    return found


def detail(luminance: Floats) -> list[Floats]:
    """Differences between neighbouring pixels at each scale: their size, and its concentration in few places."""
    found, count = [], len(luminance)
    for scale in range(SCALES):
        along, down = np.diff(luminance, axis=2), np.diff(luminance, axis=1)
        curvature = np.abs(np.diff(along, axis=2)[:, 1:-1] + np.diff(down, axis=1)[:, :, 1:-1]).reshape(count, -1)
        found += [log(root_mean_square(each), LITTLE) for each in (along, down, curvature)]
        found.append(log(curvature.mean(1), LITTLE))
        if scale < 2:
            found += [log(each / 4, LITTLE) for each in quantiles(4 * curvature, (0.1, 0.5, 0.9), 8 * LEVELS)]
        luminance = halved(luminance)
        if min(luminance.shape[1:]) < SMALLEST:
            break
    return found


def colour_detail(differences: list[Floats]) -> list[Floats]:
    """Differences between the colours of neighbouring pixels, at the finest scales."""
    found = []
    for difference in differences:
        for _ in range(3):
            along, down = np.diff(difference, axis=2), np.diff(difference, axis=1)
            found.append(log(np.hypot(root_mean_square(along), root_mean_square(down)), LITTLE))
            difference = halved(difference)
    return found


def blocks(luminance: Floats) -> list[Floats]:
    """The excess of differences at the borders of blocks of 8 pixels, and the frequencies that blocks lack."""
    found = []
    for profile in (np.abs(np.diff(luminance, axis=2)).mean(1), np.abs(np.diff(luminance, axis=1)).mean(2)):
        whole = profile.shape[1] // BLOCK * BLOCK
        by_place = profile[:, :whole].reshape(len(profile), -1, BLOCK).mean(1)
        found.append(log(by_place[:, BLOCK - 1], 0.05) - log(by_place[:, 1:6].mean(1), 0.05))
    half = BLOCK // 2
    aligned, shifted = (frequency_sizes(part) for part in (luminance, luminance[:, half:-half, half:-half]))
    order = np.add.outer(np.arange(BLOCK), np.arange(BLOCK))
    for low, high in BANDS:
        band = (order >= low) & (order <= high)
        (size, lacking), (other, other_lacking) = (
            (each[:, band].mean(1) for each in found_there) for found_there in (aligned, shifted)
        )
        found += [lacking, lacking - other_lacking, log(size, LITTLE) - log(other, LITTLE)]
    return found


def local_contrast(luminance: Floats, largest: Plane, smallest: Plane) -> list[Floats]:
    """The contrast inside blocks, and the extremes of blocks."""
    mean, square = (over_blocks(each, np.add) / BLOCK**2 for each in (luminance, luminance**2))
    spread = np.sqrt(np.maximum(square - mean**2, 0))
    found = [log(each, 0.5) for each in np.quantile(spread, (0.05, 0.25, 0.5, 0.75, 0.95), axis=1)]
    darkest = over_blocks(smallest, np.minimum).astype(np.float32) / LEVELS
    brightest = over_blocks(largest, np.maximum).astype(np.float32) / LEVELS
    return [*found, darkest.mean(1), *np.quantile(darkest, (0.05, 0.5), axis=1), np.median(brightest, axis=1)]


def log(values: Floats, offset: float) -> Floats:
    """log(values + offset), of values at or above 0."""
    result: Floats = np.log(values + np.float32(offset))
    return result


def share(mask: NDArray[np.bool_]) -> Floats:
    """The share of each row that is true, as a logarithm."""
    return log(mask.mean(1, dtype=np.float32), 0.003)


def root_mean_square(values: Floats) -> Floats:
    result: Floats = np.sqrt(np.square(values).reshape(len(values), -1).mean(1))
    return result


def quantiles(values: NDArray[np.number], shares: tuple[float, ...], top: int) -> Floats:
    """(shares, rows): quantiles of each row of values in [0, top), to a whole number.

    Short integers are sorted by counting, several times faster than a histogram.
    """
    whole = np.minimum(values, top - 1).astype(np.min_scalar_type(top - 1))
    whole.sort(axis=1, kind="stable")
    places = [max(ceil(part * values.shape[1]) - 1, 0) for part in shares]
    result: Floats = whole[:, places].T.astype(np.float32)
    return result


def halved(values: Floats) -> Floats:
    """The means of 2 x 2 pixels; an odd row or column at the end is left out."""
    height, width = (side // 2 * 2 for side in values.shape[1:])
    rows = values[:, :height:2, :width] + values[:, 1:height:2, :width]
    return ((rows[:, :, ::2] + rows[:, :, 1::2]) / 4).astype(np.float32)


def over_blocks(values: NDArray[Any], function: np.ufunc) -> NDArray[Any]:
    """(B, H, W) to (B, blocks): the function over every block."""
    height, width = (side // BLOCK * BLOCK for side in values.shape[1:])
    rows = function.reduce(values[:, :height, :width].reshape(len(values), -1, BLOCK, width), axis=2)
    result: NDArray[Any] = function.reduce(rows.reshape(*rows.shape[:2], -1, BLOCK), axis=3)
    return result.reshape(len(values), -1)


def frequency_sizes(luminance: Floats) -> tuple[Floats, Floats]:
    """(B, H, W) to the mean size of each frequency over all blocks, (B, 8, 8), and the share of blocks without it."""
    places = np.arange(BLOCK, dtype=np.float32)
    basis = np.cos(np.pi / BLOCK * (places + 0.5) * places[:, None]).astype(np.float32) / 2
    basis[0] /= np.float32(np.sqrt(2))
    count, (height, width) = len(luminance), (side // BLOCK * BLOCK for side in luminance.shape[1:])
    down = basis @ luminance[:, :height, :width].reshape(count, -1, BLOCK, width)
    # Row by row of blocks: one large product would start threads inside the threads that call this.
    along = down.reshape(-1, width, BLOCK) @ basis.T
    sizes = np.abs(along.reshape(count, -1, BLOCK, width // BLOCK, BLOCK))  # of each block, in the places of its pixels
    return sizes.mean(1).mean(2), (sizes < NO_COEFFICIENT).mean(1, dtype=np.float32).mean(2)


class LearntChanges(Fitted):
    """A network of three layers that gives the log-odds of each known change against none, from descriptors.

    The log-odds are calibrated for photos only. They serve as descriptors for other images too, since a fit on normal
    images standardises them.
    """

    shapes: ClassVar[Shapes] = {
        "centre": ("descriptors",),
        "scale": ("descriptors",),
        "weight0": ("descriptors", "first"),
        "bias0": ("first",),
        "weight1": ("first", "second"),
        "bias1": ("second",),
        "weight2": ("second", "outputs"),
        "bias2": ("outputs",),
    }
    positive = ("scale",)

    @classmethod
    @cache
    def load(cls) -> Self:
        """The network that comes with the package."""
        return cls.from_tensors(load_file(LEARNT))

    def describe(self, found: NDArray[np.floating]) -> Array:
        """Descriptors (B, descriptors), followed by the log-odds of the changes if no descriptor is missing.

        Images that are too small for all descriptors have no log-odds.
        """
        values = found.astype(np.float64)
        known = values.shape[1] == len(self.centre)
        return np.concatenate([values, self.log_odds(values)], 1) if known else values

    def log_odds(self, found: Array) -> Array:
        """(B, descriptors) to (B, changes)."""
        given = {name: value.numpy() for name, value in self.named_buffers()}
        values = drawn_in((found - given["centre"]) / given["scale"]) @ given["weight0"] + given["bias0"]
        for layer in ("1", "2"):
            values = np.maximum(values, 0) @ given["weight" + layer] + given["bias" + layer]
        odds: Array = values[:, 1:] - values[:, :1]
        return odds


def drawn_in(values: Array) -> Array:
    """The values, compressed to about their logarithms beyond LINEAR."""
    return LINEAR * np.arcsinh(values / LINEAR)
