"""What the corruptions are built from: convolutions, zoom, clouds, displacements and edges."""

import math
from functools import lru_cache
from typing import Literal, TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy import fft, ndimage

from discopatch.images import Pixels

Floats = NDArray[np.float64]
Singles = NDArray[np.float32]
Float = TypeVar("Float", np.float32, np.float64)

REACH = 4  # standard deviations after which a Gaussian is cut off
HAIR = 1e-3  # of a grey level, above all rounding errors: what should be a whole level must not fall below it
ELASTIC_REACH = 3  # standard deviations after which the smoothing of elastic is cut off
DEEPEST = 20  # pixels from the edge of a drop after which its shade no longer changes
SLOPES = (50, 150)  # of edges, and of at least one pixel of each edge, in grey levels
TAN_22, TAN_67 = np.tan(np.pi / 8), np.tan(3 * np.pi / 8)
EMBOSS = np.array([[-2.0, -1, 0], [-1, 1, 1], [0, 1, 2]])


def to_bytes(x: Floats) -> Pixels:
    """Floats in [0, 1], clipped and cut off to whole levels as ImageNet-C does, not rounded, as uint8."""
    levels = x.clip(0, 1)
    levels *= 255
    levels += HAIR
    return levels.astype(np.uint8)


def stored(x: Floats) -> Floats:
    """The image after it was stored in 8 bits, in [0, 1]."""
    return to_bytes(x) / 255


def blur_with_gaussian(x: Floats, sigma: float) -> Floats:
    """Gaussian over height and width; beyond its border the image goes on as its border."""
    sigmas = (sigma, sigma, 0)[: x.ndim]
    blurred: Floats = ndimage.gaussian_filter(x, sigmas, mode="nearest", truncate=REACH)
    return blurred


def convolve(x: Floats, kernel: Floats, *, border: Literal["edge", "reflect"]) -> Floats:
    """Convolution over height and width with a kernel of odd sides, by Fourier transform."""
    tall, wide = (side // 2 for side in kernel.shape)
    padded = np.pad(x, [(tall, tall), (wide, wide), (0, 0)][: x.ndim], mode=border)
    height, width = shape = [fft.next_fast_len(side, real=True) for side in padded.shape[:2]]
    # Single precision errs by far less than a grey level and halves the time.
    spectrum = fft.rfft2(padded.astype(np.float32), shape, axes=(0, 1))
    weights = fft.rfft2(kernel.astype(np.float32), shape, axes=(0, 1))
    spectrum *= weights if x.ndim == 2 else weights[..., None]
    result = fft.irfft2(spectrum, (height, width), axes=(0, 1))
    inner: Floats = result[2 * tall :, 2 * wide :][: x.shape[0], : x.shape[1]].astype(np.float64)
    return inner


def disk(radius: int, sigma: float) -> Floats:
    """A disk that sums to 1, its rim smoothed by a Gaussian of 3 pixels, or 5 for a radius above 8.

    As in ImageNet-C, a disk that fills its kernel is mirrored where that ends, and gains about 1 % of light by it.
    """
    half = max(radius, 8)
    along = np.arange(-half, half + 1)
    filled = (along**2 + along[:, None] ** 2 <= radius**2).astype(np.float64)
    filled /= filled.sum()
    smooth: Floats = ndimage.gaussian_filter(filled, sigma, mode="mirror", radius=1 if radius <= 8 else 2)
    return smooth


def one_sided_line(radius: int, sigma: float, degrees: float) -> Floats:
    """Half a Gaussian, along a ray from the middle, on the 2 radius + 1 pixels that ImageMagick gives this radius."""
    reach = 2 * radius
    distance = np.arange(reach + 1)
    angle = np.deg2rad(degrees)
    rows, columns = (np.ceil(distance * along - 0.5).astype(int) for along in (np.sin(angle), np.cos(angle)))
    line = np.zeros((2 * reach + 1, 2 * reach + 1))
    np.add.at(line, (reach - rows, reach - columns), np.exp(-0.5 * (distance / sigma) ** 2))
    line /= line.sum()
    return line


def zoom_centre(x: NDArray[Float], factor: float) -> NDArray[Float]:
    """Magnifies about the middle, bilinearly; what leaves the frame is cut off."""
    height, width, *channels = x.shape
    depth = math.prod(channels)
    rows, down = zoomed_places(height, factor)
    columns, right = zoomed_places(width, factor)
    values = (columns[:, None] * depth + np.arange(depth)).ravel()
    flat = x.reshape(height, -1)
    flat = interpolate(flat[rows], flat[rows + 1], down[:, None].astype(x.dtype))
    beside = np.take(flat, values + depth, axis=1)
    flat = interpolate(np.take(flat, values, axis=1), beside, np.repeat(right, depth).astype(x.dtype))
    return flat.reshape(x.shape)


def zoomed_places(side: int, factor: float) -> tuple[NDArray[np.intp], Floats]:
    """For every pixel of a line the one it is taken from, and its share of the one after that.

    The middle of the line, in whole pixels, is stretched from its first pixel to its last, and trimmed to the line.
    """
    kept = math.ceil(side / factor)
    stretched = round(kept * factor)
    place = (side - kept) // 2 + (np.arange(side) + (stretched - side) // 2) * ((kept - 1) / (stretched - 1))
    before = place.astype(np.intp).clip(0, side - 2)
    return before, place - before


def interpolate(low: NDArray[Float], high: NDArray[Float], share: NDArray[Float]) -> NDArray[Float]:
    """low + share (high - low), written over `high`."""
    high -= low
    high *= share
    high += low
    return high


def clouds(height: int, width: int, decay: float, rng: np.random.Generator) -> Floats:
    """Clouds in [0, 1] by the diamond-square algorithm, cut from a square whose side is a power of two.

    Every halving of the grid puts its new points at the mean of their four neighbours, plus a uniform offset. The
    offset shrinks by the decay squared from grid to grid: the decay is that of a wobble that ImageNet-C multiplies by
    noise of its own size. Borders are joined, like those of a torus.
    """
    size = step = 1 << (max(height, width) - 1).bit_length()
    heights, wobble = np.zeros((size, size)), 1.0
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
    heights -= heights.min()
    heights /= heights.max()
    return heights[:height, :width]


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
    return (
        folded(rows * back[0, 0] + columns * back[1, 0] + back[2, 0], height - 1),
        folded(rows * back[0, 1] + columns * back[1, 1] + back[2, 1], width - 1),
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


def water_shine(liquid: NDArray[np.uint8]) -> Floats:
    """The liquid, lit from one side by the relief of the distance to its edges; at most 1."""
    edges = canny_edges(liquid.astype(np.int32))
    if not edges.any():
        return np.zeros(liquid.shape)
    depth = ndimage.distance_transform_edt(~edges).clip(0, DEEPEST)
    relief = equalised((ndimage.uniform_filter(depth, 3, mode="mirror") + HAIR).astype(int))
    lit = ndimage.correlate(relief, EMBOSS, mode="mirror").clip(0, 1)
    shine: Floats = liquid * ndimage.uniform_filter(lit, 3, mode="mirror")
    shine /= max(shine.max(), np.finfo(float).tiny)
    return shine


def canny_edges(levels: NDArray[np.int32]) -> NDArray[np.bool_]:
    """Canny's edges (H, W), not blurred before: ridges of the slope |dx| + |dy| that touch a steep one.

    Of two equally steep neighbours along a row or a column the first is the ridge; across, there is none.
    """
    right, down = (ndimage.sobel(levels, axis, mode="nearest") for axis in (1, 0))
    slope = np.abs(right) + np.abs(down)
    around = np.pad(slope, 1)

    def beside(rows: int, columns: int) -> NDArray[np.int32]:
        return around[1 + rows : around.shape[0] - 1 + rows, 1 + columns : around.shape[1] - 1 + columns]

    flat, steep = np.abs(down) < TAN_22 * np.abs(right), np.abs(down) > TAN_67 * np.abs(right)
    falling = (right < 0) == (down < 0)
    ridge = np.select(
        [flat, steep, falling],
        [
            (slope > beside(0, -1)) & (slope >= beside(0, 1)),
            (slope > beside(-1, 0)) & (slope >= beside(1, 0)),
            (slope > beside(-1, -1)) & (slope > beside(1, 1)),
        ],
        (slope > beside(-1, 1)) & (slope > beside(1, -1)),
    )
    kept, _ = ndimage.label(ridge & (slope > SLOPES[0]), np.ones((3, 3)))
    strong = np.zeros(kept.max() + 1, bool)
    strong[kept[ridge & (slope > SLOPES[1])]] = True
    edges: NDArray[np.bool_] = strong[kept]
    return edges


def equalised(levels: NDArray[np.int_]) -> Floats:
    """Levels spread over [0, 1] so that each share of the image gets its share of the range."""
    below = np.bincount(levels.ravel()).cumsum()
    lowest = below[levels.min()]
    spread: Floats = (below - lowest)[levels] / max(levels.size - lowest, 1)
    return spread
