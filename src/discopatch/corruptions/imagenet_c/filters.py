"""What several corruptions are built from: convolutions, zoom and clouds."""

import math
from typing import Literal, TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy import fft, ndimage

from discopatch.images import Pixels

Floats = NDArray[np.float64]
Float = TypeVar("Float", np.float32, np.float64)

REACH = 4  # standard deviations after which a Gaussian is cut off
HAIR = 1e-3  # of a grey level, above all rounding errors: what should be a whole level must not fall below it


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


def blur_with_motion(x: Floats, radius: int, sigma: float, degrees: float) -> Floats:
    """Smears every pixel along a ray, as ImageMagick does: 0 degrees is to the left, 90 up."""
    return convolve(x, one_sided_line(radius, sigma, degrees), border="edge")


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
    """Clouds in [0, 1] by the diamond-square algorithm, cut from a square whose side is a power of two."""
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
