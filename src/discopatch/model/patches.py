"""Parts of images: patches, their corners and their extraction on the device in uint8, and tiles of large images."""

from collections.abc import Iterator
from itertools import product
from math import ceil, sqrt
from types import EllipsisType
from typing import Annotated, Literal, NamedTuple, get_args

import torch
from torch import Tensor

from discopatch.errors import ParameterError
from discopatch.schema import between

Sampling = Literal["random", "grid"]

MAX_PATCHES = 4096  # of an image; bounds the memory that a detector file can demand
PatchCount = Annotated[int, between(1, MAX_PATCHES)]
ALIGNED = 32  # pixels: tiles begin at multiples of it, so that cells of all maps lie in them as in the image

Box = tuple[slice, slice]  # rows and columns


def random_corners(images: int, patches: int, *, size: int, patch_size: int, generator: torch.Generator) -> Tensor:
    """Top-left corners (images, patches, 2), uniform over every position, the last row and column included."""
    last = size - check_fits(size, patch_size)
    return torch.randint(last + 1, (images, patches, 2), generator=generator, device=generator.device)


def grid_corners(patches: int, *, size: int, patch_size: int) -> Tensor:
    """Top-left corners (patches, 2) spread evenly from border to border, row by row.

    One patch is the centre. If the number is no square, cells of the next larger grid are left out evenly.
    """
    side = ceil(sqrt(patches))
    last = size - check_fits(size, patch_size)
    steps = torch.linspace(0, last, side).round().long() if side > 1 else torch.tensor([last // 2])
    cells = torch.cartesian_prod(steps, steps).reshape(-1, 2)
    return cells[torch.linspace(0, len(cells) - 1, patches).round().long()]


def scoring_corners(sampling: Sampling, patches: int, *, size: int, patch_size: int, seed: int) -> Tensor:
    """Corners (patches, 2) for scoring: the same in every image, so that a score depends on its image alone."""
    if not 1 <= patches <= MAX_PATCHES:
        raise ParameterError(f"{patches} patches: give from 1 to {MAX_PATCHES}, or 'dense'")
    if sampling not in get_args(Sampling):
        raise ParameterError(f"unknown sampling {sampling!r}: choose random or grid")
    if sampling == "grid":
        return grid_corners(patches, size=size, patch_size=patch_size)
    generator = torch.Generator().manual_seed(seed)
    return random_corners(1, patches, size=size, patch_size=patch_size, generator=generator)[0]


def check_fits(size: int, patch_size: int) -> int:
    """The patch size, if such a patch fits into an image of that size."""
    if patch_size > size:
        raise ParameterError(f"a patch of {patch_size} pixels does not fit an image of {size}: use smaller patches")
    return patch_size


def extract_patches(images: Tensor, corners: Tensor, patch_size: int) -> Tensor:
    """(B, H, W, 3) at corners (N, 2) or (B, N, 2) to (B * N, 3, S, S) of the same type, an image's patches together.

    One gather; its result is in channels_last memory, as the convolutions need it.
    """
    offsets = torch.arange(patch_size, device=images.device)
    rows, columns = corners[..., 0, None] + offsets, corners[..., 1, None] + offsets
    places = (rows[..., :, None] * images.shape[2] + columns[..., None, :]).flatten(corners.ndim - 2)
    flat = images.flatten(1, 2)
    each = slice(None) if corners.ndim == 2 else torch.arange(len(images), device=images.device)[:, None]
    pixels = flat[each, places]
    return pixels.reshape(-1, patch_size, patch_size, 3).permute(0, 3, 1, 2)


class Tile(NamedTuple):
    """A tile of an image, in pixels."""

    core: Box  # belongs to no other tile
    read: Box  # the core and a halo; it may end beyond the image
    inner: Box  # the core in what is read


def tiles(height: int, width: int, *, side: int, halo: int) -> Iterator[Tile]:
    """Tiles whose cores cover the image, about equal and of about `side` pixels along a side at most."""
    spans = []
    for length in (height, width):
        step = ALIGNED * ceil(length / ceil(length / side) / ALIGNED)
        starts = range(0, max(length - ALIGNED, 0) + 1, step)  # a rest that may be no cell goes to the last tile
        ends = ((a, length if a == starts[-1] else a + step, max(a - halo, 0)) for a in starts)
        spans.append([(slice(a, b), slice(first, b + halo), slice(a - first, b - first)) for a, b, first in ends])
    return (Tile(*zip(rows, columns, strict=True)) for rows, columns in product(*spans))


def cells(box: Box, stride: int) -> tuple[EllipsisType, slice, slice]:
    """The index of these pixels in a map (B, C, H, W) with that stride."""
    rows, columns = (slice(each.start // stride, each.stop // stride) for each in box)
    return ..., rows, columns
