"""Corruptions by digital processing and storage."""

import io
import math

import numpy as np
from PIL import Image
from scipy import ndimage

from discopatch.corruptions.imagenet_c.filters import Floats, change_saturation, interpolate, to_bytes

CONTRAST = (0.4, 0.3, 0.2, 0.1, 0.05)
ELASTIC_TRANSFORM = (12.5, 16.25, 21.25, 25, 30)
PIXELATE = (0.6, 0.5, 0.4, 0.3, 0.25)
JPEG_COMPRESSION = (25, 18, 15, 10, 7)
SATURATE = ((0.3, 0), (0.1, 0), (2, 0), (5, 0.1), (20, 0.2))  # factor, addition

ELASTIC_SHARE = 0.005  # of the height: the largest displacement before smoothing
ELASTIC_SIGMA = 0.01  # of each side


def contrast(x: Floats, severity: int, rng: np.random.Generator) -> Floats:
    """(x - m) c + m, with m the mean of each channel."""
    mean: Floats = x.mean(axis=(0, 1))
    return (x - mean) * CONTRAST[severity - 1] + mean


def elastic_transform(x: Floats, severity: int, rng: np.random.Generator) -> Floats:
    """Moves pixels by alpha times U(-0.005 H, 0.005 H) smoothed with sigma 0.01 side: bilinear, mirrored at borders."""
    alpha = ELASTIC_TRANSFORM[severity - 1]
    down, right = (alpha * smooth_displacement(x.shape[0], x.shape[1], rng) for _ in range(2))
    return displaced(x, down, right)


def smooth_displacement(height: int, width: int, rng: np.random.Generator) -> Floats:
    """How many pixels to move each pixel by, (H, W), before alpha."""
    largest = ELASTIC_SHARE * height
    rough = rng.uniform(-largest, largest, (height, width))
    sigmas = (ELASTIC_SIGMA * height, ELASTIC_SIGMA * width)
    smooth: Floats = ndimage.gaussian_filter(rough, sigmas, mode="reflect", truncate=3)
    return smooth


def displaced(x: Floats, down: Floats, right: Floats) -> Floats:
    """Takes every pixel from so far down and right of it, bilinearly."""
    margin = math.ceil(max(np.abs(down).max(), np.abs(right).max())) + 1
    wide = np.pad(x, ((margin, margin), (margin, margin), (0, 0)), mode="symmetric")
    rows, columns = (np.indices(down.shape) + margin) + (down, right)
    top, left = rows.astype(np.intp), columns.astype(np.intp)
    place = top * wide.shape[1] + left
    colours = wide.reshape(-1, x.shape[2])
    low, far = (rows - top)[..., None], (columns - left)[..., None]
    # np.take gathers whole colours several times faster than indexing does.
    above, below = (
        interpolate(np.take(colours, row, axis=0), np.take(colours, row + 1, axis=0), far)
        for row in (place, place + wide.shape[1])
    )
    return interpolate(above, below, low)


def pixelate(x: Floats, severity: int, rng: np.random.Generator) -> Floats:
    """Down to the share c of each side by the mean of boxes, up again by the nearest pixel."""
    height, width = x.shape[:2]
    share = PIXELATE[severity - 1]
    small = Image.fromarray(to_bytes(x)).resize((int(width * share), int(height * share)), Image.Resampling.BOX)
    return np.asarray(small.resize((width, height), Image.Resampling.NEAREST)) / 255


def jpeg_compression(x: Floats, severity: int, rng: np.random.Generator) -> Floats:
    """Encodes and decodes as JPEG of quality c."""
    file = io.BytesIO()
    Image.fromarray(to_bytes(x)).save(file, "JPEG", quality=JPEG_COMPRESSION[severity - 1])
    return np.asarray(Image.open(file)) / 255


def saturate(x: Floats, severity: int, rng: np.random.Generator) -> Floats:
    """S a + b in HSV; grey, of no hue, turns red where b is not 0."""
    return change_saturation(x, *SATURATE[severity - 1])
