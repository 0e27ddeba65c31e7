"""The stages of the fast pass as Triton kernels, in bfloat16 with statistics in float32; see `network.Stages`."""

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from discopatch.model.discriminator import SMALLEST_VARIANCE
from discopatch.model.fast import kernels
from discopatch.model.fast.fused import ALIGNED
from discopatch.model.fast.inverted_launch import InvertedKernels
from discopatch.model.fast.network import (
    Affine,
    Classifier,
    FirstLayer,
    NormLayer,
    PatchLayout,
    ceil_divide,
    power_of_two,
)
from discopatch.model.layers import SLOPE

PROGRAMS = 1056  # enough for every multiprocessor of a large GPU, eight times
PARTS = 64  # of a sum at the most: what finishes it reads them all at once
LEAST = 16  # columns that the matrix units take


class BlockSize(NamedTuple):
    """How much one program of a kernel works on at once."""

    pixels: int
    channels: int  # at the most
    warps: int

    def across(self, channels: int) -> int:
        """Channels of a program's block, a power of two."""
        return min(self.channels, max(LEAST, power_of_two(channels)))

    def options(self, channels: int) -> dict[str, int]:
        """What every kernel over features takes."""
        across = self.across(channels)
        return {"channels": channels, "block": self.pixels, "across": across, "num_warps": self.warps}


BLOCKS = {
    "moments": BlockSize(256, ALIGNED, 8),  # of more windows the products would no longer sum up exactly in float32
    "first": BlockSize(64, 128, 4),
    "sums": BlockSize(32, 128, 4),
    "statistics": BlockSize(1, 32, 4),
    "activate": BlockSize(64, 128, 4),
    "add_activate": BlockSize(1024, 1, 4),
    "logit_terms": BlockSize(64, 128, 4),
    "logits": BlockSize(64, 1, 4),
}


class Kernels(InvertedKernels):
    """The launches; each result is described in `network.Stages`."""

    def __init__(self, blocks: Mapping[str, BlockSize] = BLOCKS) -> None:
        self.blocks = blocks

    def moments(self, images: Tensor, layout: PatchLayout) -> Tensor:
        # In parts, each exact in float32, and their sum in float64.
        block, count, pixels = self.blocks["moments"], len(images), layout.pixels(1)
        parts, chunk = in_parts(pixels, block.pixels, PROGRAMS // count, 2 * PARTS)
        moments = images.new_empty(count, parts, ALIGNED, ALIGNED, dtype=torch.float64)
        kernels.moments_kernel[parts, count](
            *(images, layout.corners, moments, pixels, chunk, parts),
            **sides(layout),
            block=block.pixels,
            num_warps=block.warps,
        )
        return moments.sum(1)

    def first(
        self, images: Tensor, layout: PatchLayout, layer: FirstLayer, affine: Affine, dtype: torch.dtype
    ) -> Tensor:
        block, count, pixels, side = self.blocks["first"], len(images), layout.pixels(1), layout.side(1)
        channels = layer.kernel.shape[1]
        across = block.across(channels)
        out = images.new_empty(count * layout.patches, side, side, channels, dtype=dtype)
        parts, chunk = in_parts(pixels, block.pixels, 4 * PROGRAMS // count, pixels)
        kernels.first_layer_kernel[parts, ceil_divide(channels, across), count](
            *(images, layout.corners, layer.kernel, *affine, out, pixels, chunk),
            **sides(layout),
            slope=SLOPE,
            **block.options(channels),
        )
        return out

    def sums(self, x: Tensor, images: int) -> Tensor:
        # In parts, so that one image too keeps the whole GPU busy.
        block, channels = self.blocks["sums"], x.shape[3]
        across = block.across(channels)
        pixels, columns = x.numel() // channels // images, ceil_divide(channels, across)
        parts, chunk = in_parts(pixels, block.pixels, PROGRAMS // (images * columns), PARTS)
        sums = x.new_empty(images, parts, 2, channels, dtype=torch.float32)
        kernels.sums_kernel[parts, columns, images](
            *(x, sums, pixels, chunk, parts),
            **block.options(channels),
        )
        return sums

    def statistics(self, sums: Tensor, x: Tensor | None, norm: NormLayer, out: Tensor, *, pixels: int) -> Affine:
        block, (count, parts, _, channels) = self.blocks["statistics"], sums.shape
        across = block.across(channels)
        affine = Affine(*out.new_empty(2, count, channels))
        kernels.statistics_kernel[ceil_divide(channels, across), count](
            *(sums, sums if x is None else x, norm.conv_bias, norm.weight, norm.bias, *affine),
            *(out[:, norm.first :], pixels, parts, out.stride(0)),
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
        block, (count, channels) = self.blocks["activate"], affine.scale.shape
        across, pixels = block.across(channels), x.numel() // channels // count
        kernels.activate_kernel[ceil_divide(pixels, block.pixels), ceil_divide(channels, across), count](
            *(x, *affine, pixels),
            slope=SLOPE,
            **block.options(channels),
        )
        return x

    def add_activate(self, x: Tensor, bias: Tensor, other: Tensor | None) -> Tensor:
        block, count = self.blocks["add_activate"], x.numel()
        kernels.add_activate_kernel[(ceil_divide(count, block.pixels),)](
            *(x, bias, x if other is None else other, count),
            joined=other is not None,
            slope=SLOPE,
            channels=x.shape[3],
            block=block.pixels,
            num_warps=block.warps,
        )
        return x

    def classify(self, x: Tensor, affine: Affine | None, classifier: Classifier, out: Tensor, *, first: int) -> None:
        terms = self._logit_terms(x, affine, classifier, count=len(out))
        block, places, (parts, count, pixels, taps) = self.blocks["logits"], out.shape[1] - first, terms.shape
        kernels.logits_kernel[ceil_divide(places, block.pixels), count](
            *(terms, classifier.bias, out[:, first:], pixels, count, parts, places, out.stride(0)),
            side=x.shape[1],
            cells=classifier.cells,
            taps=taps,
            block=block.pixels,
            num_warps=block.warps,
        )

    def _logit_terms(self, x: Tensor, affine: Affine | None, classifier: Classifier, *, count: int) -> Tensor:
        block, channels, (high, low) = self.blocks["logit_terms"], x.shape[3], classifier.halves
        across, pixels, taps = block.across(channels), x.numel() // channels // count, high.shape[1]
        parts = ceil_divide(channels, across)
        terms = x.new_empty(parts, count, pixels, taps, dtype=torch.float32)
        kernels.logit_terms_kernel[ceil_divide(pixels, block.pixels), parts, count](
            *(x, *(affine or (terms, terms)), high, low, terms, pixels, count),
            normalise=affine is not None,
            slope=SLOPE,
            taps=taps,
            **block.options(channels),
        )
        return terms


def sides(layout: PatchLayout) -> dict[str, int]:
    """The sides of an image, of a patch and of a patch's first feature map, as the kernels take them."""
    return {"size": layout.size, "patch": layout.patch, "side": layout.side(1)}


def in_parts(pixels: int, block: int, wanted: int, most: int) -> tuple[int, int]:
    """About `wanted` parts of whole blocks, `most` at the most: how many there are, and the pixels of each."""
    blocks = ceil_divide(pixels, block)
    chunk = ceil_divide(blocks, max(1, min(wanted, most, blocks))) * block
    return ceil_divide(pixels, chunk), chunk
