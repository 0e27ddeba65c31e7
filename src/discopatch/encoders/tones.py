"""Tones of an image: brightness, contrast and colours, measured in the pixels."""

from collections.abc import Iterator

import torch
from torch import Tensor

from discopatch.model.layers import SMALLEST_VARIANCE

LUMINANCE = (0.299, 0.587, 0.114)
EVERY = 2  # pixels of every so many rows and columns are read
DARKEST = 0.02  # of the pixel range, an offset of logarithms and ratios
N_TONES = 15


def measure_tones(pixels: Tensor) -> Tensor:
    """(B, H, W, 3) from 0 to 255 to (B, N_TONES): means and log-variances of six maps, and three log-means.

    The maps are luminance, red and blue relative to it, the largest and smallest colour, and saturation; the log-means
    are those of the colours. A network sees them too, mixed with what is in the image.
    """
    x = pixels[:, ::EVERY, ::EVERY].permute(0, 3, 1, 2).contiguous().float() / 255
    means, variances = [], []
    for one in tone_maps(x):
        mean = one.mean((2, 3), keepdim=True)
        means.append(mean.flatten(1))
        centred = one - mean
        # Two plain means: torch.var_mean takes several times as long on a CPU.
        variances.append((centred * centred).mean((2, 3)))
    return torch.cat((*means, (torch.cat(variances, 1) + SMALLEST_VARIANCE).log(), (x.mean((2, 3)) + DARKEST).log()), 1)


def tone_maps(x: Tensor) -> Iterator[Tensor]:
    """(B, 3, H, W) from 0 to 1 to maps (B, 1, H, W), one after another: those of a large image take much memory."""
    red, green, blue = x.split(1, 1)
    luminance = LUMINANCE[0] * red + LUMINANCE[1] * green + LUMINANCE[2] * blue
    yield luminance
    yield red - luminance
    yield blue - luminance
    largest, smallest = x.amax(1, keepdim=True), x.amin(1, keepdim=True)
    yield largest
    yield smallest
    yield (largest - smallest) / (largest + DARKEST)
