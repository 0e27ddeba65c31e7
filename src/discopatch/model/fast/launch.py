"""The stages of the pass, launched as Triton kernels: see `stages.py` for what each computes."""

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from discopatch.model.discriminator import SMALLEST_VARIANCE
from discopatch.model.fast import kernels
from discopatch.model.fast.layers import First, Judge, Norm, power_of_two
from discopatch.model.fast.look import Look
from discopatch.model.fast.stages import Affine
from discopatch.model.fused import ALIGNED, SLOPE

PROGRAMS = 1056  # enough for every multiprocessor of a large GPU, eight times
PARTS = 64  # of a sum at the most: what finishes it reads them all at once
LEAST = 16  # columns that the matrix units take


class Block(NamedTuple):
    """What a program takes at once."""

    pixels: int
    channels: int  # at the most
    warps: int

    def across(self, channels: int) -> int:
        """Of so many channels, in a power of two."""
        return min(self.channels, max(LEAST, power_of_two(channels)))


BLOCKS = {
    "moments": Block(256, ALIGNED, 8),  # of more windows the products would no longer sum up exactly in float32
    "first": Block(64, 128, 4),
    "sums": Block(32, 128, 4),
    "settle": Block(1, 32, 4),
    "activate": Block(64, 128, 4),
    "shares": Block(64, 128, 4),
    "logits": Block(64, 1, 4),
}


class Kernels:
    """What `Plain` computes, in bfloat16 with statistics in float32."""

    def __init__(self, blocks: Mapping[str, Block] = BLOCKS) -> None:
        self.blocks = blocks

    def moments(self, pictures: Tensor, look: Look) -> Tensor:
        """In parts, each exact, and their sum in float64."""
        block, images, pixels = self.blocks["moments"], len(pictures), look.pixels(1)
        parts, chunk = in_parts(pixels, block.pixels, PROGRAMS // images, 2 * PARTS)
        moments = pictures.new_empty(images, parts, ALIGNED, ALIGNED, dtype=torch.float64)
        kernels.moments_kernel[parts, images](
            *(pictures, look.corners, moments, pixels, chunk, parts),
            **sides(look),
            block=block.pixels,
            num_warps=block.warps,
        )
        return moments.sum(1)

    def first(self, pictures: Tensor, look: Look, layer: First, affine: Affine, dtype: torch.dtype) -> Tensor:
        """From pixels to activated features in one pass."""
        block, images, pixels, side = self.blocks["first"], len(pictures), look.pixels(1), look.side(1)
        channels = layer.kernel.shape[1]
        across = block.across(channels)
        out = pictures.new_empty(images * look.patches, side, side, channels, dtype=dtype)
        parts, chunk = in_parts(pixels, block.pixels, 4 * PROGRAMS // images, pixels)
        kernels.first_kernel[parts, parted(channels, across), images](
            *(pictures, look.corners, layer.kernel, *affine, out, pixels, chunk),
            **sides(look),
            slope=SLOPE,
            channels=channels,
            block=block.pixels,
            across=across,
            num_warps=block.warps,
        )
        return out

    def sums(self, x: Tensor, images: int) -> Tensor:
        """In parts, so that one image too keeps the whole GPU busy."""
        block, channels = self.blocks["sums"], x.shape[3]
        across = block.across(channels)
        pixels, columns = x.numel() // channels // images, parted(channels, across)
        parts, chunk = in_parts(pixels, block.pixels, PROGRAMS // (images * columns), PARTS)
        sums = x.new_empty(images, parts, 2, channels, dtype=torch.float32)
        kernels.sums_kernel[parts, columns, images](
            *(x, sums, pixels, chunk, parts),
            channels=channels,
            block=block.pixels,
            across=across,
            num_warps=block.warps,
        )
        return sums

    def settle(self, sums: Tensor, x: Tensor | None, norm: Norm, found: Tensor, *, pixels: int) -> Affine:
        """One small kernel for all that torch would do in ten."""
        block, (images, parts, _, channels) = self.blocks["settle"], sums.shape
        across = block.across(channels)
        affine = Affine(*found.new_empty(2, images, channels))
        kernels.settle_kernel[parted(channels, across), images](
            *(sums, sums if x is None else x, norm.conv_bias, norm.weight, norm.bias, *affine),
            *(found[:, norm.first :], pixels, parts, found.stride(0)),
            eps=norm.eps,
            smallest=SMALLEST_VARIANCE,
            shifted=x is not None,
            channels=channels,
            together=power_of_two(parts),
            across=across,
            num_warps=block.warps,
        )
        return affine

    def activate(self, x: Tensor, affine: Affine) -> Tensor:
        """In place."""
        block, (images, channels) = self.blocks["activate"], affine.scale.shape
        across, pixels = block.across(channels), x.numel() // channels // images
        kernels.activate_kernel[parted(pixels, block.pixels), parted(channels, across), images](
            *(x, *affine, pixels),
            slope=SLOPE,
            channels=channels,
            block=block.pixels,
            across=across,
            num_warps=block.warps,
        )
        return x

    def judge(self, x: Tensor, affine: Affine | None, judge: Judge, found: Tensor, *, first: int) -> None:
        """Shares of some channels at a time, then a sum over channels and pixels."""
        shares = self._shares(x, affine, judge, images=len(found))
        block, places, (parts, images, pixels, taps) = self.blocks["logits"], found.shape[1] - first, shares.shape
        kernels.logits_kernel[parted(places, block.pixels), images](
            *(shares, judge.bias, found[:, first:], pixels, images, parts, places, found.stride(0)),
            side=x.shape[1],
            cells=judge.cells,
            taps=taps,
            block=block.pixels,
            num_warps=block.warps,
        )

    def _shares(self, x: Tensor, affine: Affine | None, judge: Judge, *, images: int) -> Tensor:
        block, channels, (high, low) = self.blocks["shares"], x.shape[3], judge.halves
        across, pixels, taps = block.across(channels), x.numel() // channels // images, high.shape[1]
        parts = parted(channels, across)
        shares = x.new_empty(parts, images, pixels, taps, dtype=torch.float32)
        kernels.shares_kernel[parted(pixels, block.pixels), parts, images](
            *(x, *(affine or (shares, shares)), high, low, shares, pixels, images),
            normalise=affine is not None,
            slope=SLOPE,
            channels=channels,
            taps=taps,
            block=block.pixels,
            across=across,
            num_warps=block.warps,
        )
        return shares


def sides(look: Look) -> dict[str, int]:
    """Of a picture, of a patch, of a patch's first feature map."""
    return {"size": look.size, "patch": look.patch, "side": look.side(1)}


def parted(whole: int, part: int) -> int:
    """How many parts there are, the last one included."""
    return -(-whole // part)


def in_parts(pixels: int, block: int, wanted: int, most: int) -> tuple[int, int]:
    """About so many parts of whole blocks: how many, and the pixels of each."""
    blocks = parted(pixels, block)
    chunk = parted(blocks, max(1, min(wanted, most, blocks))) * block
    return parted(pixels, chunk), chunk
