"""What several corruptions are made of: convolution, Gaussian, motion and zoom."""

import math
from typing import Literal, TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy import fft, ndimage

Floats = NDArray[np.float64]
Float = TypeVar("Float", np.float32, np.float64)

REACH = 4  # standard deviations after which a Gaussian is cut off


def blur_with_gaussian(x: Floats, sigma: float) -> Floats:
    """Gaussian over height and width; the picture goes on beyond its border as its border."""
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
    """A disk that sums to 1, its rim smoothed by a Gaussian."""
    margin = int(REACH * sigma + 0.5)
    along = np.arange(-radius - margin, radius + margin + 1)
    filled = (along**2 + along[:, None] ** 2 <= radius**2).astype(np.float64)
    smooth: Floats = ndimage.gaussian_filter(filled, sigma, mode="constant", truncate=REACH)
    smooth /= smooth.sum()
    return smooth


def one_sided_line(radius: int, sigma: float, degrees: float) -> Floats:
    """Half a Gaussian, along a ray from the middle, on the 2 radius + 1 pixels that ImageMagick gives this radius."""
    reach = 2 * radius
    distance = np.arange(reach + 1)
    angle = np.deg2rad(degrees)
    rows = np.rint(distance * np.sin(angle)).astype(int)
    columns = np.rint(distance * np.cos(angle)).astype(int)
    line = np.zeros((2 * reach + 1, 2 * reach + 1))
    np.add.at(line, (reach + rows, reach + columns), np.exp(-0.5 * (distance / sigma) ** 2))
    line /= line.sum()
    return line


def motion(x: Floats, radius: int, sigma: float, degrees: float) -> Floats:
    """Smears every pixel along a ray; 0 degrees is to the right, 90 down."""
    return convolve(x, one_sided_line(radius, sigma, degrees), border="edge")


def zoom_centre(x: NDArray[Float], factor: float) -> NDArray[Float]:
    """Magnifies about the middle, bilinearly; what leaves the frame is cut off."""
    height, width, *channels = x.shape
    depth = math.prod(channels)
    rows, down = zoomed_places(height, factor)
    columns, right = zoomed_places(width, factor)
    values = (columns[:, None] * depth + np.arange(depth)).ravel()
    flat = x.reshape(height, -1)
    flat = between(flat[rows], flat[rows + 1], down[:, None].astype(x.dtype))
    beside = np.take(flat, values + depth, axis=1)
    flat = between(np.take(flat, values, axis=1), beside, np.repeat(right, depth).astype(x.dtype))
    return flat.reshape(x.shape)


def zoomed_places(side: int, factor: float) -> tuple[NDArray[np.intp], Floats]:
    """For every pixel of a line the one it is taken from, and its share of the one after that."""
    middle = (side - 1) / 2
    place = middle + (np.arange(side) - middle) / factor
    before = place.astype(np.intp).clip(0, side - 2)
    return before, place - before


def between(low: NDArray[Float], high: NDArray[Float], share: NDArray[Float]) -> NDArray[Float]:
    """low + share (high - low), written over `high`."""
    high -= low
    high *= share
    high += low
    return high
