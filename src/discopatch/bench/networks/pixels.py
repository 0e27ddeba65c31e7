"""`pixels`: no network, but statistics of natural scenes, read off the pixels as NIQE does."""

from collections.abc import Collection

import numpy as np
import torch
from PIL import Image
from scipy.ndimage import gaussian_filter
from scipy.special import gamma

from discopatch.bench.networks.base import PENULTIMATE, SCENE, Array, Backbone, FeatureDict
from discopatch.images import Pixels

BLOCK = 96  # pixels a side
WINDOW, RADIUS = 7 / 6, 3  # standard deviation and radius of the Gaussian window
SHIFTS = ((0, 1), (1, 0), (1, 1), (1, -1))  # to the neighbours with which values are multiplied
SHAPES = np.arange(0.2, 10.001, 0.001)  # of the generalised Gaussian
RATIOS = gamma(2 / SHAPES) ** 2 / (gamma(1 / SHAPES) * gamma(3 / SHAPES))
TINY = 1e-12


class PixelStatistics(Backbone):
    """The 36 statistics of NIQE of each whole block of 96 pixels; as PENULTIMATE, their mean over the image.

    18 at full size and 18 at half size: generalised Gaussians fitted to the brightness less its local mean over its
    local standard deviation plus 1, and to the products of neighbours. The sharpness of a block comes last.
    """

    name, digest, parameters = "pixels", "0000000000000001", None
    kinds = (SCENE, PENULTIMATE)
    device, layer_sizes = torch.device("cpu"), ()

    def extract(self, pixels: Pixels, kinds: Collection[str]) -> FeatureDict:
        scenes = np.stack([block_statistics(each) for each in pixels])
        found = {SCENE: scenes, PENULTIMATE: scenes[..., :-1].mean(1)}
        return {kind: found[kind].astype(np.float32) for kind in kinds}


def block_statistics(image: Pixels) -> Array:
    """(H, W, 3) uint8 -> (blocks, 37)."""
    grey = np.asarray(Image.fromarray(image).convert("L"), np.float32)
    rows, columns = (side // BLOCK for side in grey.shape)
    grey = grey[: rows * BLOCK, : columns * BLOCK]
    half = np.asarray(Image.fromarray(grey).resize((columns * BLOCK // 2, rows * BLOCK // 2), Image.Resampling.BICUBIC))
    found, sharpness = [], []
    for scaled in (grey, half):
        values = scaled.astype(np.float64)
        mean, square = (gaussian_filter(x, WINDOW, radius=RADIUS, mode="nearest") for x in (values, values**2))
        deviation = np.sqrt(np.abs(square - mean**2))
        normal, sharp = (split_blocks(x, rows, columns) for x in ((values - mean) / (deviation + 1), deviation))
        shape, left, right = fit_gaussian(normal)
        found += [shape, (left + right) / 2]
        for shift in SHIFTS:
            shape, left, right = fit_gaussian(normal * np.roll(normal, shift, axis=(1, 2)))
            found += [shape, (right - left) * gamma(2 / shape) / gamma(1 / shape), left, right]
        sharpness.append(sharp.mean((1, 2)))
    return np.column_stack([*found, sharpness[0]])


def split_blocks(values: Array, rows: int, columns: int) -> Array:
    """(H, W) -> (rows x columns, block, block)."""
    height, width = values.shape[0] // rows, values.shape[1] // columns
    return values.reshape(rows, height, columns, width).swapaxes(1, 2).reshape(-1, height, width)


def fit_gaussian(values: Array) -> tuple[Array, Array, Array]:
    """The shape and the left and right scale of an asymmetric generalised Gaussian, by moments, of each block."""
    flat = values.reshape(len(values), -1)
    squares = flat**2
    left, right = (
        np.sqrt(np.where(side, squares, 0).sum(1) / np.maximum(side.sum(1), 1)) for side in (flat < 0, flat > 0)
    )
    ratio = np.abs(flat).mean(1) ** 2 / np.maximum(squares.mean(1), TINY)
    ratio *= (left**3 + right**3) * (left + right) / np.maximum((left**2 + right**2) ** 2, TINY)
    shape = np.interp(ratio, RATIOS, SHAPES)
    scale = np.sqrt(gamma(1 / shape) / gamma(3 / shape))
    return shape, left * scale, right * scale
