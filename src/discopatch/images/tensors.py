"""Pixels as the networks take them: between bytes and floats in [-1, 1], or in [0, 1]."""

import torch
from torch import Tensor

from discopatch.images.transform import PixelRange


def to_unit(pixels: Tensor) -> Tensor:
    """uint8 pixels as float32 in [-1, 1], the range of the decoder's tanh."""
    return pixels.float() / 127.5 - 1


def to_range(pixels: Tensor, pixel_range: PixelRange) -> Tensor:
    """uint8 pixels as float32 in the range that a network takes: `symmetric` is [-1, 1], `unit` is [0, 1]."""
    return to_unit(pixels) if pixel_range == "symmetric" else pixels.float() / 255


def to_pixels(values: Tensor) -> Tensor:
    """Floats in [-1, 1], rounded and clipped, as uint8 pixels: the inverse of `to_unit`."""
    return ((values.float() + 1) * 127.5).round().clamp(0, 255).to(torch.uint8)
