"""Hue, saturation and value, changed without leaving RGB.

A colour is V (1 - S k), where k is 0 for the largest channel, 1 for the smallest, and depends on the hue alone. So a
new V scales the colour, and a new S scales its distance from the largest channel.
"""

import numpy as np

from discopatch.images.corrupt.filters import Floats

RED = np.array([0.0, 1.0, 1.0])  # k of hue 0, which is what grey has


def add_to_value(x: Floats, amount: float) -> Floats:
    """Value plus the amount, at most 1; hue and saturation stay."""
    value = x.max(axis=2, keepdims=True)
    brighter = (value + amount).clip(0, 1)
    scaled: Floats = np.where(value > 0, x * (brighter / np.where(value > 0, value, 1)), brighter)
    return scaled


def change_saturation(x: Floats, factor: float, amount: float) -> Floats:
    """Saturation times the factor plus the amount, in [0, 1]; hue and value stay, and grey has the hue red."""
    value = x.max(axis=2, keepdims=True)
    spread = value - x.min(axis=2, keepdims=True)
    coloured = spread > 0
    saturation = spread / np.where(value > 0, value, 1)
    new_spread = value * (saturation * factor + amount).clip(0, 1)
    hue = np.where(coloured, (value - x) / np.where(coloured, spread, 1), RED)
    recoloured: Floats = value - new_spread * hue
    return recoloured
