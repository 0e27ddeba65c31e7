"""Places of an image: what a network's middle layers say of each cell of a grid over it."""

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


class SomePlaces(NamedTuple):
    """The places of some images, where those of all would be too many to keep."""

    rows: NDArray[np.intp]  # of the images among all
    values: NDArray[np.floating]  # (rows, positions, d), in float16

    @classmethod
    def evenly(cls, places: NDArray[np.floating], *, most: int) -> Self:
        """Of the places of all images (images, positions, d) those of at most so many, evenly taken."""
        rows = evenly_taken(len(places), most)
        return cls(rows, places[rows])

    def of(self, images: NDArray[np.bool_]) -> "SomePlaces":
        """Those of the images with a flag, of which all images have one."""
        return self.select(images[self.rows])

    def select(self, index: NDArray[np.intp] | NDArray[np.bool_]) -> "SomePlaces":
        return SomePlaces(self.rows[index], self.values[index])


def evenly_taken(count: int, most: int) -> NDArray[np.intp]:
    """The numbers from 0 to `count`, or of more than `most` so many from the first to the last."""
    return np.arange(count) if count <= most else np.linspace(0, count - 1, most).astype(np.intp)


def local_features(maps: Sequence[Tensor], matrices: Sequence[Tensor | None] | None = None) -> Tensor:
    """Maps (B, C, H, W) of one or two layers, of square images -> (B, positions, dimensions) in float16.

    All are averaged to the grid of the smallest, and channels beyond a layer's share of the dimensions are projected.
    matrices: the projections, if they are there already: a CUDA graph cannot hold a copy from ordinary memory.
    """
    side = min(MAX_SIDE, *(one.shape[-1] for one in maps))
    pooled = [F.adaptive_avg_pool2d(one, side).flatten(2).mT.float() for one in maps]
    share, known = MAX_DIMENSIONS // len(maps), matrices or [None] * len(maps)
    found = torch.cat([project(one, share, matrix) for one, matrix in zip(pooled, known, strict=True)], 2)
    return rounded(found.float().clamp(-LARGEST_HALF, LARGEST_HALF)).half()


def rounded(values: Tensor) -> Tensor:
    """Values in float32 as float16 has them (the split of Dekker, 1971).

    A runtime without float16, such as OpenVINO on a CPU, leaves a conversion to it out: rounded so, it does not matter.
    """
    large = values * SPLIT
    return large - (large - values)


def place_size(channels: Sequence[int]) -> int:
    """How many features `local_features` gives of a place, from maps of so many channels."""
    return sum(min(each, MAX_DIMENSIONS // len(channels)) for each in channels)


def projections(channels: Sequence[int], device: torch.device) -> list[Tensor | None]:
    """The matrix of each layer, on the device; none of one that stays as it is."""
    share = MAX_DIMENSIONS // len(channels)
    return [torch.from_numpy(projection(each, share)).to(device) if each > share else None for each in channels]


def project(values: Tensor, dimensions: int, matrix: Tensor | None = None) -> Tensor:
    """(..., channels) -> (..., dimensions), nearly in proportion to all distances; fewer channels stay as they are."""
    channels = values.shape[-1]
    if channels <= dimensions:
        return values
    return values @ (torch.from_numpy(projection(channels, dimensions)) if matrix is None else matrix).to(values)


@cache
def projection(channels: int, dimensions: int) -> NDArray[np.float32]:
    """(channels, dimensions): random, and always the same."""
    rng = np.random.default_rng([channels, dimensions])
    found: NDArray[np.float64] = rng.normal(size=(channels, dimensions)) / channels**0.5
    return found.astype(np.float32)
