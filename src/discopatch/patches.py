"""A picture becomes N patches, where it already lies: on the device, in uint8."""

from math import ceil, sqrt
from typing import Literal

import torch
from torch import Tensor

Sampling = Literal["random", "grid", "dense"]


def random_corners(images: int, patches: int, *, size: int, patch_size: int, generator: torch.Generator) -> Tensor:
    """Top-left corners (images, patches, 2), uniform over every position, the last row and column included."""
    return torch.randint(
        size - check_fits(size, patch_size) + 1,
        (images, patches, 2),
        generator=generator,
        device=generator.device,
    )


def grid_corners(patches: int, *, size: int, patch_size: int) -> Tensor:
    """Top-left corners (patches, 2) spread evenly from border to border, row by row.

    One patch is the centre; a number that is no square leaves cells of the next larger grid out, evenly.
    """
    side = ceil(sqrt(patches))
    last = size - check_fits(size, patch_size)
    steps = torch.linspace(0, last, side).round().long() if side > 1 else torch.tensor([last // 2])
    cells = torch.cartesian_prod(steps, steps).reshape(-1, 2)
    return cells[torch.linspace(0, len(cells) - 1, patches).round().long()]


def scoring_corners(sampling: Sampling, patches: int, *, size: int, patch_size: int, seed: int) -> Tensor:
    """The corners (patches, 2) that every image is scored at: the same for all, so that no score needs another."""
    if patches < 1:
        raise ValueError(f"{patches} patches: give at least 1")
    match sampling:
        case "random":
            generator = torch.Generator().manual_seed(seed)
            return random_corners(1, patches, size=size, patch_size=patch_size, generator=generator)[0]
        case "grid":
            return grid_corners(patches, size=size, patch_size=patch_size)
        case _:
            raise ValueError(f"unknown sampling {sampling!r}: choose random, grid or dense")


def check_fits(size: int, patch_size: int) -> int:
    """The patch size, if such a patch fits into the picture."""
    if patch_size > size:
        raise ValueError(f"a patch of {patch_size} pixels does not fit a picture of {size}: use smaller patches")
    return patch_size


def cut(images: Tensor, corners: Tensor, patch_size: int) -> Tensor:
    """(B, H, W, 3) at corners (B, N, 2) -> (B * N, 3, S, S) of the same type, an image's patches side by side.

    One gather; its result lies in channels_last memory, as the convolutions want it.
    """
    reach = torch.arange(patch_size, device=images.device)
    rows = (corners[..., 0, None] + reach)[..., :, None]  # (B, N, S, 1)
    columns = (corners[..., 1, None] + reach)[..., None, :]  # (B, N, 1, S)
    which = torch.arange(len(images), device=images.device)[:, None, None, None]
    return images[which, rows, columns].flatten(0, 1).permute(0, 3, 1, 2)


def to_unit(pixels: Tensor) -> Tensor:
    """uint8 -> float32 in [-1, 1], the range of the decoder's tanh."""
    return pixels.float() / 127.5 - 1


def to_pixels(values: Tensor) -> Tensor:
    """The inverse of `to_unit`."""
    return ((values.float() + 1) * 127.5).round().clamp(0, 255).to(torch.uint8)
