"""Pixels as tensors: bytes as floats in the range of a network, and `Transform.resize` for many images at once."""

from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from discopatch.images.transform import IGNORED, PixelRange, Resample, Span, Transform, read_mask

MOST_PIXELS = 2**26  # converted to floats at a time, 12 bytes each
SUPPORT: dict[Resample, float] = {"bilinear": 1, "bicubic": 2, "lanczos": 3}  # pixels of the coarser grid


def to_unit(pixels: Tensor) -> Tensor:
    """uint8 pixels as float32 in [-1, 1], the range of the decoder's tanh."""
    return pixels.float() / 127.5 - 1


def to_range(pixels: Tensor, pixel_range: PixelRange) -> Tensor:
    """uint8 pixels as float32 in the range that a network takes: `symmetric` is [-1, 1], `unit` is [0, 1]."""
    return to_unit(pixels) if pixel_range == "symmetric" else pixels.float() / 255


def to_pixels(values: Tensor) -> Tensor:
    """Floats in [-1, 1], rounded and clipped, as uint8 pixels: the inverse of `to_unit`."""
    return ((values.float() + 1) * 127.5).round().clamp(0, 255).to(torch.uint8)


def resize_batch(images: Tensor, transform: Transform) -> Tensor:
    """(B, H, W, C) in uint8, each as `Transform.resize` gives it.

    The filter is a product with a matrix for each side, columns first and rounded in between as Pillow has it: float32
    holds the sums of 8-bit pixels closely enough that only ties may round otherwise.
    """
    count, height, width, channels = images.shape
    shape = transform.shape_of(height, width)
    images = without_ignored(images, transform)
    if (height, width) == shape:
        return images
    rows, columns = transform.spans(height, width)
    top, vertical = matrix(rows, height, shape[0], transform.resample, images.device)
    left, horizontal = matrix(columns, width, shape[1], transform.resample, images.device)
    part = images[:, top : top + vertical.shape[1], left : left + horizontal.shape[1]]
    found = images.new_empty((count, *shape, channels))
    step = max(1, MOST_PIXELS // (part.shape[1] * part.shape[2]))
    for start in range(0, count, step):
        planes = part[start : start + step].permute(0, 3, 1, 2).to(torch.float32, memory_format=torch.contiguous_format)
        narrow = rounded(planes @ horizontal.T)
        found[start : start + step] = rounded(vertical @ narrow).permute(0, 2, 3, 1)
    return without_ignored(found, transform)


def without_ignored(images: Tensor, transform: Transform) -> Tensor:
    """The images (B, H, W, C), grey where the transform ignores pixels."""
    if transform.ignore is None:
        return images
    mask = torch.from_numpy(read_mask(transform.ignore, (images.shape[1], images.shape[2])))
    return images.masked_fill(mask[..., None].to(images.device), IGNORED)


def rounded(values: Tensor) -> Tensor:
    """To whole levels from 0 to 255, halves up, in place."""
    return values.add_(0.5).floor_().clamp_(0, 255)


@lru_cache(256)
def matrix(span: Span, length: int, size: int, resample: Resample, device: torch.device) -> tuple[int, Tensor]:
    """The first pixel of a side that is needed to fill the span, and (size, pixels): how much each of them counts."""
    scale = (span[1] - span[0]) / size
    stretch = max(1.0, scale)
    reach = SUPPORT[resample] * stretch
    centres = span[0] + (np.arange(size) + 0.5) * scale
    first = np.maximum(np.floor(centres - reach + 0.5), 0)
    last = np.minimum(np.floor(centres + reach + 0.5), length)
    start, end = int(first[0]), int(last[-1])
    pixels = np.arange(start, end)
    weights = kernel((pixels - centres[:, None] + 0.5) / stretch, resample)
    weights *= (pixels >= first[:, None]) & (pixels < last[:, None])
    weights /= weights.sum(1, keepdims=True)
    return start, torch.from_numpy(weights.astype(np.float32)).to(device)


def kernel(x: NDArray[np.float64], resample: Resample) -> NDArray[np.float64]:
    """How much a pixel counts at a distance, in pixels of the coarser grid."""
    x = np.abs(x)
    if resample == "bilinear":
        return np.maximum(1 - x, 0)
    if resample == "lanczos":
        return np.where(x < 3, np.sinc(x) * np.sinc(x / 3), 0)
    near, far = (1.5 * x - 2.5) * x * x + 1, ((-0.5 * x + 2.5) * x - 4) * x + 2
    return np.where(x < 1, near, np.where(x < 2, far, 0))
