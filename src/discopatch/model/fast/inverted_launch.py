"""The launches of the kernels of inverted residual networks; see `network.Stages`."""

from typing import NamedTuple

import torch
from torch import Tensor

from discopatch.model.fast import inverted_kernels as kernels
from discopatch.model.fast.inverted_blocks import FastMBConv, Pointwise, Stem
from discopatch.model.fast.network import PatchLayout, ceil_divide, power_of_two

LEAST = 16  # rows and columns that the matrix units take


class Tile(NamedTuple):
    """How much one program of a kernel works on at once."""

    pixels: int
    channels: int  # at the most: of those that come out, or where kernels filter and project, of those between
    warps: int


# One of a kind for all sizes, from timings of each block of natural-v2 on an H200, 512 images at once: near the best of
# most, the best of none for all. The stem alone was not varied.
STEM = Tile(128, 32, 4)
EXPAND = Tile(128, 64, 4)
WHOLE = Tile(64, 32, 4)
TOGETHER = Tile(64, 32, 4)
FILTER = Tile(64, 32, 4)
PROJECT = Tile(128, 128, 4)
NARROW = 24  # channels up to which a projection is part of the kernel that filters: of more, two are faster


class InvertedKernels:
    """The launches; each result is described in `network.Stages`."""

    def stem(self, images: Tensor, layout: PatchLayout, layer: Stem, dtype: torch.dtype) -> Tensor:
        tile, side, channels = STEM, layout.patch // 2, layer.kernel.shape[1]
        out = images.new_empty(len(images) * layout.patches, side, side, channels, dtype=dtype)
        pixels = layout.patches * side * side
        kernels.stem_kernel[ceil_divide(pixels, tile.pixels), len(images)](
            *(images, layout.corners, layer.kernel, layer.bias, out, pixels),
            channels=channels,
            size=layout.size,
            patch=layout.patch,
            side=side,
            block=tile.pixels,
            across=at_least(channels),
            num_warps=tile.warps,
        )
        return out

    def expand(self, x: Tensor, layer: Pointwise) -> Tensor:
        return pointwise(x, layer, None, EXPAND, activated=True)

    def filter_project(self, x: Tensor, block: FastMBConv, other: Tensor | None) -> Tensor:
        if block.at_once is not None:
            return whole_block(x, block, block.at_once, other)
        if block.project.weight.shape[1] > NARROW:
            return pointwise(filtered(x, block), block.project, other, PROJECT, activated=False)
        out, programs, sizes = projection(x, block, TOGETHER)
        kernels.filter_project_kernel[programs](x, *parameters(block, out, other), joined=other is not None, **sizes)
        return out


def pointwise(x: Tensor, layer: Pointwise, other: Tensor | None, tile: Tile, *, activated: bool) -> Tensor:
    (inputs, outputs), pixels = layer.weight.shape, x.numel() // x.shape[3]
    out = x.new_empty(*x.shape[:3], outputs)
    across = min(tile.channels, at_least(outputs))
    kernels.pointwise_kernel[(ceil_divide(pixels, tile.pixels) * ceil_divide(outputs, across),)](
        *(x, layer.weight, layer.bias, out if other is None else other, out, pixels),
        activated=activated,
        joined=other is not None,
        inputs=inputs,
        outputs=outputs,
        block=tile.pixels,
        depth=min(64, at_least(inputs)),
        across=across,
        num_warps=tile.warps,
    )
    return out


def filtered(x: Tensor, block: FastMBConv) -> Tensor:
    """(B, rows, columns, C) to (B, rows / stride, columns / stride, C)."""
    tile, out = FILTER, x.new_empty(*block.out_shape(x)[:3], block.inner)
    sizes, pixels = filter_sizes(x, block, tile), out.numel() // block.inner
    kernels.filter_kernel[(ceil_divide(pixels, tile.pixels) * ceil_divide(block.inner, sizes["across"]),)](
        x, block.filter.weight, block.filter.bias, out, pixels, **sizes
    )
    return out


def whole_block(x: Tensor, block: FastMBConv, expansion: Pointwise, other: Tensor | None) -> Tensor:
    out, programs, sizes = projection(x, block, WHOLE)
    kernels.whole_block_kernel[programs](
        *(x, expansion.weight, expansion.bias, *parameters(block, out, other)),
        joined=other is not None,
        inputs=x.shape[3],
        depth=at_least(x.shape[3]),
        **sizes,
    )
    return out


def projection(x: Tensor, block: FastMBConv, tile: Tile) -> tuple[Tensor, tuple[int], dict[str, int]]:
    """Room for a block's output, how many programs fill it, and the sizes that their kernel takes."""
    out = x.new_empty(block.out_shape(x))
    outputs = out.shape[3]
    sizes = {**filter_sizes(x, block, tile), "outputs": outputs, "width": at_least(outputs)}
    return out, (ceil_divide(out.numel() // outputs, tile.pixels),), sizes


def filter_sizes(x: Tensor, block: FastMBConv, tile: Tile) -> dict[str, int]:
    return {
        "rows": x.shape[1],
        "columns": x.shape[2],
        "taps": block.filter.taps,
        "stride": block.filter.stride,
        "before": block.filter.before,
        "inner": block.inner,
        "block": tile.pixels,
        "across": min(tile.channels, at_least(block.inner)),
        "num_warps": tile.warps,
        "num_stages": 1,  # more would copy every tap into shared memory, and leave room for fewer programs
    }


def parameters(block: FastMBConv, out: Tensor, other: Tensor | None) -> tuple[Tensor | int, ...]:
    """What the kernels that end in a projection take: parameters, what is added, the output and its pixels."""
    layer, matrix = block.filter, block.project
    pixels = out.numel() // out.shape[3]
    return layer.weight, layer.bias, matrix.weight, matrix.bias, out if other is None else other, out, pixels


def at_least(channels: int) -> int:
    """So many, or what the matrix units take, rounded up to a power of two."""
    return max(LEAST, power_of_two(channels))
