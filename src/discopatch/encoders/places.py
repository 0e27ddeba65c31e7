"""Places of an image: features of a network's middle layers in each cell of a grid over it."""

from collections.abc import Sequence
from functools import cache
from typing import NamedTuple, Self

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

MAX_SIDE = 16  # positions along a side of an image
MAX_DIMENSIONS = 128  # of a position, of all layers together
N_LOCAL = 2  # layers of local features: the last of those whose statistics are taken
LARGEST_HALF = 65504.0  # in float16
SPLIT = 2.0**13 + 1  # float32 has 13 more digits than float16


class PlaceSample(NamedTuple):
    """The places of some of the images."""

    rows: NDArray[np.intp]  # the numbers of these images among all
    values: NDArray[np.floating]  # (rows, positions, d), in float16

    @classmethod
    def evenly(cls, places: NDArray[np.floating], *, most: int) -> Self:
        """At most so many of the places of all images (images, positions, d), at even steps."""
        rows = evenly_taken(len(places), most)
        return cls(rows, places[rows])

    def select(self, index: NDArray[np.intp] | NDArray[np.bool_]) -> "PlaceSample":
        return PlaceSample(self.rows[index], self.values[index])


def evenly_taken(count: int, most: int) -> NDArray[np.intp]:
    """The numbers below `count`, or `most` of them at even steps where there are more."""
    return np.arange(count) if count <= most else np.linspace(0, count - 1, most).astype(np.intp)


def local_features(maps: Sequence[Tensor], matrices: Sequence[Tensor | None] | None = None) -> Tensor:
    """Maps (B, C, H, W) of layers of square images to places (B, positions, dimensions) in float16.

    All maps are averaged to the grid of the smallest. A layer with more channels than its share of the dimensions is
    projected, by `matrices` where they are given: a CUDA graph cannot copy them from the CPU.
    """
    side = min(MAX_SIDE, *(one.shape[-1] for one in maps))
    pooled = [F.adaptive_avg_pool2d(one, side).flatten(2).mT.float() for one in maps]
    share, known = MAX_DIMENSIONS // len(maps), matrices or [None] * len(maps)
    found = torch.cat([project(one, share, matrix) for one, matrix in zip(pooled, known, strict=True)], 2)
    return rounded(found.float().clamp(-LARGEST_HALF, LARGEST_HALF)).half()


def rounded(values: Tensor) -> Tensor:
    """Values in float32, rounded to those of float16 (the split of Dekker, 1971).

    A runtime without float16, such as OpenVINO on a CPU, skips the conversion, which then changes nothing.
    """
    large = values * SPLIT
    return large - (large - values)


def place_size(channels: Sequence[int]) -> int:
    """The dimensions of a place from maps of so many channels."""
    return sum(min(each, MAX_DIMENSIONS // len(channels)) for each in channels)


def projections(channels: Sequence[int], device: torch.device) -> list[Tensor | None]:
    """The projection of each layer, on the device, or None for a layer that is not projected."""
    share = MAX_DIMENSIONS // len(channels)
    return [torch.from_numpy(projection(each, share)).to(device) if each > share else None for each in channels]


def project(values: Tensor, dimensions: int, matrix: Tensor | None = None) -> Tensor:
    """(..., channels) to (..., dimensions), which nearly preserves ratios of distances; fewer channels stay."""
    channels = values.shape[-1]
    if channels <= dimensions:
        return values
    return values @ (torch.from_numpy(projection(channels, dimensions)) if matrix is None else matrix).to(values)


@cache
def projection(channels: int, dimensions: int) -> NDArray[np.float32]:
    """(channels, dimensions): a random projection with a fixed seed."""
    rng = np.random.default_rng([channels, dimensions])
    found: NDArray[np.float64] = rng.normal(size=(channels, dimensions)) / channels**0.5
    return found.astype(np.float32)
