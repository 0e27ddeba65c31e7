"""Pixels as the networks take them: between bytes and floats in [-1, 1]."""

import torch
from torch import Tensor


def to_unit(pixels: Tensor) -> Tensor:
    """uint8 pixels as float32 in [-1, 1], the range of the decoder's tanh."""
    return pixels.float() / 127.5 - 1


def to_pixels(values: Tensor) -> Tensor:
    """Floats in [-1, 1], rounded and clipped, as uint8 pixels: the inverse of `to_unit`."""
    return ((values.float() + 1) * 127.5).round().clamp(0, 255).to(torch.uint8)
