"""Places of an image: features of a network's maps in every cell of a grid over it."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from discopatch.model.patches import cells, tiles

N_LOCAL = 3  # maps of local features: the last of those whose statistics are taken
AVERAGED = 3  # cells along a side over which a map is averaged
MAX_PIXELS = 2**21  # of an image that passes at once, with 200 bytes each; larger ones pass in tiles, one by one
SIDE, REACH = 128, 2  # cells along a side of a tile of places, and coarse ones that averages and interpolation reach

# Averaged maps (B, C, H, W) of several layers -> one value of each place, (B, rows, columns)
Compare = Callable[[Sequence[Tensor]], Tensor]


def is_large(height: int, width: int) -> bool:
    """Whether an image of that size is too large to pass at once."""
    return height * width > MAX_PIXELS


def find_places(maps: Sequence[Tensor], compare: Compare | None) -> Tensor:
    """The local features of maps (B, C, H, W), the finest first, or what `compare` makes of them.

    Those of a large grid are taken tile by tile, with the same values up to rounding. Its shape must be a multiple of
    all others, and `compare` have two steps, as `PlaceModel`: `distances`, which takes each place by itself, and
    `standardise`. Otherwise, and in an exported graph, all places are taken at once.
    """
    rows, columns = maps[0].shape[2:]
    steps: Any = compare
    if (
        torch.compiler.is_compiling()
        or not is_large(8 * rows, 8 * columns)
        or not (compare is None or hasattr(compare, "distances"))
        or any(rows % one.shape[2] or rows * one.shape[3] != columns * one.shape[2] for one in maps)
    ):
        return local_features(maps) if compare is None else compare(average_maps(maps))
    found, strides = torch.empty(0), [rows // one.shape[2] for one in maps]
    for tile in tiles(rows, columns, side=SIDE, halo=REACH * max(strides)):
        read = [one[cells(tile.read, stride)] for one, stride in zip(maps, strides, strict=True)]
        part = local_features(read)[(slice(None), *tile.inner)]
        part = part if compare is None else steps.distances([part.permute(0, 3, 1, 2)])
        found = found if len(found) else part.new_empty((len(part), rows, columns, *part.shape[3:]))
        found[(slice(None), *tile.core)] = part
    return found if compare is None else steps.standardise(found)


def local_features(maps: Sequence[Tensor]) -> Tensor:
    """Maps (B, C, H, W) of several layers to places (B, rows, columns, dimensions) in float32.

    The grid is that of the finest map. Each map is averaged over neighbouring cells; coarser ones are interpolated.
    """
    return join_maps(average_maps(maps))


def average_maps(maps: Sequence[Tensor]) -> list[Tensor]:
    """Each map (B, C, H, W) averaged over neighbouring cells, in float32."""
    return [F.avg_pool2d(one.float(), AVERAGED, 1, AVERAGED // 2, count_include_pad=False) for one in maps]


def join_maps(maps: Sequence[Tensor]) -> Tensor:
    """Averaged maps to places, by interpolation of the coarser ones."""
    return torch.cat([on_grid(one, *finest_grid(maps)) for one in maps], 1).permute(0, 2, 3, 1)


def pack_maps(maps: Sequence[Tensor]) -> Tensor:
    """Averaged maps (B, C, H, W) as one tensor (B, 1, n) for `unpack_maps`: a fifth of the numbers of places.

    The order in memory is kept, because sums in another order have other last digits.
    """
    are_last = [one.is_contiguous(memory_format=torch.channels_last) for one in maps]
    shapes = [number for one, last in zip(maps, are_last, strict=True) for number in (*one.shape[1:], int(last))]
    values = [one.permute(0, 2, 3, 1) if last else one for one, last in zip(maps, are_last, strict=True)]
    header = [maps[0].new_full((len(maps[0]), 1), number) for number in (len(maps), *shapes)]
    return torch.cat((*header, *(each.flatten(1) for each in values)), 1)[:, None]


def unpack_maps(places: Tensor) -> list[Tensor]:
    """The maps (B, C, H, W) that were packed; of places (B, rows, columns, d) the one map that they are."""
    if places.ndim == 4:
        return [places.permute(0, 3, 1, 2)]
    count, flat = int(places[0, 0, 0]), places[:, 0]
    shapes = flat[0, 1 : 1 + 4 * count].view(count, 4).int().tolist()
    parts = flat[:, 1 + 4 * count :].split([math.prod(shape[:3]) for shape in shapes], 1)
    return [
        part.reshape(-1, rows, columns, size).permute(0, 3, 1, 2) if last else part.reshape(-1, size, rows, columns)
        for part, (size, rows, columns, last) in zip(parts, shapes, strict=True)
    ]


def finest_grid(maps: Sequence[Tensor]) -> tuple[int, int]:
    rows, columns = max((one.shape[2:] for one in maps), key=lambda shape: shape[0] * shape[1])
    return rows, columns


def on_grid(one: Tensor, rows: int, columns: int) -> Tensor:
    """A map (B, C, H, W), interpolated to another grid where it has another."""
    if one.shape[2:] == (rows, columns):
        return one
    return F.interpolate(one, (rows, columns), mode="bilinear", align_corners=False)
