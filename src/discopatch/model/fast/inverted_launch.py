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
    channels: int  # of those that are written by `expand`, or filtered by the others, at a time
    warps: int
    registers: int | None = None  # of a thread, at the most


STEM = Tile(128, 32, 4)
EXPAND = Tile(128, 64, 4)
WHOLE = Tile(128, 32, 4)
# By the side of the filter and the number of channels that come out: what was fastest on an H200.
FILTER: dict[tuple[int, int], Tile] = {}
FILTER_OTHERS = Tile(64, 32, 4)


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
        tile, (inputs, outputs), pixels = EXPAND, layer.weight.shape, x.numel() // x.shape[3]
        out = x.new_empty(*x.shape[:3], outputs)
        across = min(tile.channels, at_least(outputs))
        kernels.expand_kernel[(ceil_divide(pixels, tile.pixels) * ceil_divide(outputs, across),)](
            *(x, layer.weight, layer.bias, out, pixels),
            inputs=inputs,
            outputs=outputs,
            block=tile.pixels,
            depth=min(64, at_least(inputs)),
            across=across,
            num_warps=tile.warps,
        )
        return out

    def filter_project(self, x: Tensor, block: FastMBConv, other: Tensor | None) -> Tensor:
        layer, matrix, expansion = block.filter, block.project, block.at_once
        out = x.new_empty(block.out_shape(x))
        outputs, pixels = out.shape[3], out.numel() // out.shape[3]
        tile = FILTER.get((layer.taps, outputs), FILTER_OTHERS) if expansion is None else WHOLE
        given = layer.weight, layer.bias, matrix.weight, matrix.bias, out if other is None else other, out, pixels
        options = {
            "joined": other is not None,
            "rows": x.shape[1],
            "columns": x.shape[2],
            "taps": layer.taps,
            "stride": layer.stride,
            "before": layer.before,
            "inner": block.inner,
            "outputs": outputs,
            "block": tile.pixels,
            "across": min(tile.channels, at_least(block.inner)),
            "width": at_least(outputs),
            "num_warps": tile.warps,
            "num_stages": 1,  # more would copy every tap into shared memory, and leave room for fewer programs
            "maxnreg": tile.registers,
        }
        programs = (ceil_divide(pixels, tile.pixels),)
        if expansion is None:
            kernels.filter_project_kernel[programs](x, *given, **options)
        else:
            sizes = {"inputs": x.shape[3], "depth": at_least(x.shape[3])}
            kernels.whole_block_kernel[programs](x, expansion.weight, expansion.bias, *given, **options, **sizes)
        return out


def at_least(channels: int) -> int:
    """So many, or what the matrix units take, rounded up to a power of two."""
    return max(LEAST, power_of_two(channels))
