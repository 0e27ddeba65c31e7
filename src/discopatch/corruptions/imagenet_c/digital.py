"""Corruptions by digital processing and storage."""

import io
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from scipy import fft

from discopatch.corruptions.imagenet_c.filters import Float, Floats, interpolate, to_bytes

Singles = NDArray[np.float32]

CONTRAST = (0.4, 0.3, 0.2, 0.1, 0.05)
# Alpha and sigma of the displacement and largest shift of the affine points: shares of the side of which 244 are 224.
ELASTIC_TRANSFORM = ((2, 0.7, 0.1), (2, 0.08, 0.2), (0.05, 0.01, 0.02), (0.07, 0.01, 0.02), (0.12, 0.01, 0.02))
ELASTIC_SIDE = 244 / 224
PIXELATE = (0.6, 0.5, 0.4, 0.3, 0.25)
JPEG_COMPRESSION = (25, 18, 15, 10, 7)
SATURATE = ((0.3, 0), (0.1, 0), (2, 0), (5, 0.1), (20, 0.2))  # factor, addition
HUE_OF_GREY = np.array([0.0, 1.0, 1.0])  # red

ELASTIC_REACH = 3  # standard deviations after which the smoothing is cut off


def contrast(x: Floats, severity: int, rng: np.random.Generator) -> Floats:
    """(x - m) c + m, with m the mean of each channel."""
    mean: Floats = x.mean(axis=(0, 1))
    return (x - mean) * CONTRAST[severity - 1] + mean


def elastic_transform(x: Floats, severity: int, rng: np.random.Generator) -> Floats:
    """A random affine warp, then a displacement by alpha times smoothed U(-1, 1): both bilinear."""
    height, width = x.shape[:2]
    alpha, sigma, shift = (share * ELASTIC_SIDE * min(height, width) for share in ELASTIC_TRANSFORM[severity - 1])
    warped = interpolated(x.astype(np.float32), *affine_places(height, width, shift, rng))
    shifts = alpha * smoothed(rng.uniform(-1, 1, (2, height, width)), sigma)
    return displaced(warped, shifts).astype(np.float64)


def affine_places(height: int, width: int, shift: float, rng: np.random.Generator) -> tuple[Floats, Floats]:
    """Rows and columns (H, W) to take the pixels from, after three points near the corners moved by up to `shift`.

    The image goes on beyond its border as its mirror image, whose first line is not doubled.
    """
    reach = min(height, width) // 3
    middle = np.array([height // 2, width // 2])
    points = middle + reach * np.array([[1, 1], [-1, 1], [-1, -1]])
    moved = points + rng.uniform(-shift, shift, points.shape)
    back = np.linalg.solve(np.column_stack([moved, np.ones(3)]), points)  # (3, 2): from moved points to points
    rows, columns = np.arange(height)[:, None], np.arange(width)
    return tuple(  # type: ignore[return-value]
        folded(rows * back[0, axis] + columns * back[1, axis] + back[2, axis], side - 1)
        for axis, side in enumerate((height, width))
    )


def smoothed(rough: Floats, sigma: float) -> Singles:
    """Fields (N, H, W) after a Gaussian over height and width, mirrored at borders with the first line doubled.

    Cosines pass any such filter but for their size: in their transform the widest filter takes no longer than others.
    """
    waves: Singles = fft.dctn(rough.astype(np.float32), axes=(1, 2))
    waves *= passed_share(rough.shape[1], sigma)[:, None]
    waves *= passed_share(rough.shape[2], sigma)
    smooth: Singles = fft.idctn(waves, axes=(1, 2))
    return smooth


@lru_cache(maxsize=64)
def passed_share(side: int, sigma: float) -> Singles:
    """The share of each cosine on a line, the slowest first, that a Gaussian leaves."""
    reach = int(ELASTIC_REACH * sigma + 0.5)
    distance = np.arange(-reach, reach + 1)
    weights = np.exp(-0.5 * (distance / sigma) ** 2)
    share = np.cos(np.pi / side * np.outer(np.arange(side), distance)) @ (weights / weights.sum())
    return share.astype(np.float32)  # type: ignore[no-any-return]


def displaced(x: Singles, shifts: Singles) -> Singles:
    """Takes every pixel from so far down and right of it, (2, H, W), bilinearly; mirrors double the first line."""
    places: Singles = np.indices(x.shape[:2], np.float32)
    places += shifts
    rows, columns = (
        (folded(place + 0.5, side) - 0.5).clip(0, side - 1) for place, side in zip(places, x.shape, strict=False)
    )
    return interpolated(x, rows, columns)


def folded(place: NDArray[Float], end: float) -> NDArray[Float]:
    """Places on a line, mirrored at 0 and at its end until they lie between them."""
    turns = place / (2 * end)
    turns -= np.rint(turns)
    turns *= 2 * end
    np.abs(turns, out=turns)
    return turns


def interpolated(x: Singles, rows: Floats | Singles, columns: Floats | Singles) -> Singles:
    """The image at those rows and columns (H, W), between its pixels, bilinearly."""
    height, width, depth = x.shape
    top, left = np.minimum(rows.astype(np.intp), height - 2), np.minimum(columns.astype(np.intp), width - 2)
    low, far = ((place - whole).astype(np.float32) for place, whole in ((rows, top), (columns, left)))
    place = top * width + left
    result = np.empty_like(x)
    corners = np.empty((3, height, width), np.float32)  # written again and again: new memory costs more than the sums
    for channel in range(depth):
        values = x[..., channel].ravel()
        for lower in (0, 1):
            # Every corner is inside; by clipping, numpy saves itself a copy.
            for corner, further in ((corners[0], 0), (corners[1 + lower], 1)):
                np.take(values[lower * width + further :], place, out=corner, mode="clip")
            interpolate(corners[0], corners[1 + lower], far)
        result[..., channel] = interpolate(corners[1], corners[2], low)
    return result


def pixelate(x: Floats, severity: int, rng: np.random.Generator) -> Floats:
    """Down to the share c of each side by the mean of boxes, and up again."""
    height, width = x.shape[:2]
    share = PIXELATE[severity - 1]
    small = Image.fromarray(to_bytes(x)).resize((int(width * share), int(height * share)), Image.Resampling.BOX)
    return np.asarray(small.resize((width, height), Image.Resampling.BOX)) / 255


def jpeg_compression(x: Floats, severity: int, rng: np.random.Generator) -> Floats:
    """Encodes and decodes as JPEG of quality c."""
    file = io.BytesIO()
    Image.fromarray(to_bytes(x)).save(file, "JPEG", quality=JPEG_COMPRESSION[severity - 1])
    return np.asarray(Image.open(file)) / 255


def saturate(x: Floats, severity: int, rng: np.random.Generator) -> Floats:
    """S a + b in HSV; grey, of no hue, turns red where b is not 0.

    A colour is V (1 - S k), where k is 0 for the largest channel, 1 for the smallest, and depends on the hue alone. So
    a new S scales the distance from the largest channel.
    """
    factor, amount = SATURATE[severity - 1]
    value = x.max(axis=2, keepdims=True)
    spread = value - x.min(axis=2, keepdims=True)
    coloured = spread > 0
    saturation = spread / np.where(value > 0, value, 1)
    new_spread = value * (saturation * factor + amount).clip(0, 1)
    hue = np.where(coloured, (value - x) / np.where(coloured, spread, 1), HUE_OF_GREY)
    recoloured: Floats = value - new_spread * hue
    return recoloured
