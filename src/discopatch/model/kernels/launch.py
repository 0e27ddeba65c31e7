"""Launches of the Triton kernels: the stages of the fast pass, in half precision with statistics in float32.

Feature maps are (images x patches, rows, columns, C); `out` has one row for each image.
"""

from typing import NamedTuple

import torch
from torch import Tensor
from triton import cdiv

from discopatch.model.discriminator import SMALLEST_VARIANCE
from discopatch.model.kernels import programs
from discopatch.model.kernels.fused import ALIGNED
from discopatch.model.kernels.layout import (
    Affine,
    Classifier,
    FastMBConv,
    FirstLayer,
    NormLayer,
    PatchLayout,
    Pointwise,
    Stem,
    power_of_two,
)
from discopatch.model.layers import SLOPE

PROGRAMS = 1056  # enough for every multiprocessor of a large GPU, eight times
PARTS = 64  # most parts of a sum: one program reads them all at once
LEAST = 16  # rows and columns of the matrix units
NARROW = 24  # output channels up to which the projection is part of the filtering kernel: beyond, two are faster


class Tile(NamedTuple):
    """Work of one program of a kernel."""

    pixels: int
    channels: int  # at most: output channels, or the inner ones where a kernel filters and projects
    warps: int

    def across(self, channels: int) -> int:
        """Channels of a program's block, a power of two."""
        return min(self.channels, at_least(channels))

    def options(self, channels: int) -> dict[str, int]:
        """Arguments of every kernel over features."""
        across = self.across(channels)
        return {"channels": channels, "block": self.pixels, "across": across, "num_warps": self.warps}


MOMENTS = Tile(256, ALIGNED, 8)  # the products of more windows would not sum up exactly in float32
FIRST = Tile(64, 128, 4)
SUMS = Tile(32, 128, 4)
STATISTICS = Tile(1, 32, 4)
ACTIVATE = Tile(64, 128, 4)
LOGIT_TERMS = Tile(64, 128, 4)
LOGITS = Tile(64, 1, 4)
# Of inverted networks: one for all sizes, from timings of each block of natural-v2 on an H200 with 512 images; close to
# the best for most blocks. The stem was not varied.
STEM = Tile(128, 32, 4)
EXPAND = Tile(128, 64, 4)
FILTER = Tile(64, 32, 4)
PROJECT = Tile(128, 128, 4)


class Kernels:
    """The stages as Triton kernels; tests replace them by plain torch."""

    def moments(self, images: Tensor, layout: PatchLayout) -> Tensor:
        """(images, 32, 32) in float64: sums over all windows of the products of their numbers.

        Computed in parts, each exact in float32.
        """
        count, pixels = len(images), layout.pixels(1)
        parts, chunk = in_parts(pixels, MOMENTS.pixels, PROGRAMS // count, 2 * PARTS)
        moments = images.new_empty(count, parts, ALIGNED, ALIGNED, dtype=torch.float64)
        programs.moments_kernel[parts, count](
            *(images, layout.corners, moments, pixels, chunk, parts),
            **sides(layout),
            block=MOMENTS.pixels,
            num_warps=MOMENTS.warps,
        )
        return moments.sum(1)

    def first(
        self, images: Tensor, layout: PatchLayout, layer: FirstLayer, affine: Affine, dtype: torch.dtype
    ) -> Tensor:
        """Activated features of the first plain layer."""
        count, pixels, side, channels = len(images), layout.pixels(1), layout.side(1), layer.kernel.shape[1]
        out = images.new_empty(count * layout.patches, side, side, channels, dtype=dtype)
        parts, chunk = in_parts(pixels, FIRST.pixels, 4 * PROGRAMS // count, pixels)
        programs.first_layer_kernel[parts, cdiv(channels, FIRST.across(channels)), count](
            *(images, layout.corners, layer.kernel, *affine, out, pixels, chunk),
            **sides(layout),
            slope=SLOPE,
            **FIRST.options(channels),
        )
        return out

    def sums(self, x: Tensor, images: int) -> Tensor:
        """(images, parts, 2, C): sums over pixels and of their squares, both minus the image's first pixel.

        Computed in parts, so that one image too occupies the whole GPU.
        """
        channels = x.shape[3]
        pixels, columns = x.numel() // channels // images, cdiv(channels, SUMS.across(channels))
        parts, chunk = in_parts(pixels, SUMS.pixels, PROGRAMS // (images * columns), PARTS)
        sums = x.new_empty(images, parts, 2, channels, dtype=torch.float32)
        programs.sums_kernel[parts, columns, images](x, sums, pixels, chunk, parts, **SUMS.options(channels))
        return sums

    def statistics(self, sums: Tensor, x: Tensor | None, norm: NormLayer, out: Tensor, *, pixels: int) -> Affine:
        """Writes the statistics to `out` and returns the normalisation; `x` are the features of the sums, if any."""
        count, parts, _, channels = sums.shape
        across = STATISTICS.across(channels)
        affine = Affine(*out.new_empty(2, count, channels))
        programs.statistics_kernel[cdiv(channels, across), count](
            *(sums, sums if x is None else x, norm.conv_bias, norm.weight, norm.bias, *affine),
            *(out[:, norm.first :], pixels, parts, out.stride(0)),
            eps=norm.eps,
            smallest=SMALLEST_VARIANCE,
            shifted=x is not None,
            channels=channels,
            together=power_of_two(parts),
            across=across,
            num_warps=STATISTICS.warps,
        )
        return affine

    def activate(self, x: Tensor, affine: Affine) -> Tensor:
        """Normalised features through the LeakyReLU; `x` may be overwritten."""
        count, channels = affine.scale.shape
        pixels, across = x.numel() // channels // count, ACTIVATE.across(channels)
        programs.activate_kernel[cdiv(pixels, ACTIVATE.pixels), cdiv(channels, across), count](
            x, *affine, pixels, slope=SLOPE, **ACTIVATE.options(channels)
        )
        return x

    def classify(self, x: Tensor, affine: Affine | None, classifier: Classifier, out: Tensor, *, first: int) -> None:
        """Writes the logits of a feature map to `out`, which an `affine` normalises and activates on the way."""
        count, channels, (high, low) = len(out), x.shape[3], classifier.halves
        pixels, taps = x.numel() // channels // count, high.shape[1]
        parts = cdiv(channels, LOGIT_TERMS.across(channels))
        terms = x.new_empty(parts, count, pixels, taps, dtype=torch.float32)
        programs.logit_terms_kernel[cdiv(pixels, LOGIT_TERMS.pixels), parts, count](
            *(x, *(affine or (terms, terms)), high, low, terms, pixels, count),
            normalise=affine is not None,
            slope=SLOPE,
            taps=taps,
            **LOGIT_TERMS.options(channels),
        )
        places = out.shape[1] - first
        programs.logits_kernel[cdiv(places, LOGITS.pixels), count](
            *(terms, classifier.bias, out[:, first:], pixels, count, parts, places, out.stride(0)),
            side=x.shape[1],
            cells=classifier.cells,
            taps=taps,
            block=LOGITS.pixels,
            num_warps=LOGITS.warps,
        )

    def stem(self, images: Tensor, layout: PatchLayout, layer: Stem, dtype: torch.dtype) -> Tensor:
        """First features of an inverted network, through ReLU6; no row or column of zeros precedes the pixels."""
        side, channels = layout.patch // 2, layer.kernel.shape[1]
        out = images.new_empty(len(images) * layout.patches, side, side, channels, dtype=dtype)
        pixels = layout.patches * side * side
        programs.stem_kernel[cdiv(pixels, STEM.pixels), len(images)](
            *(images, layout.corners, layer.kernel, layer.bias, out, pixels),
            channels=channels,
            size=layout.size,
            patch=layout.patch,
            side=side,
            block=STEM.pixels,
            across=at_least(channels),
            num_warps=STEM.warps,
        )
        return out

    def expand(self, x: Tensor, layer: Pointwise) -> Tensor:
        """ReLU6 of a convolution of 1 x 1."""
        return pointwise(x, layer, None, EXPAND, activated=True)

    def filter_project(self, x: Tensor, block: FastMBConv, other: Tensor | None) -> Tensor:
        """Output of a block for its expanded input, or for its input if it expands at once; plus `other`, if any."""
        layer, matrix = block.filter, block.project
        sizes = {
            "rows": x.shape[1],
            "columns": x.shape[2],
            "taps": layer.taps,
            "stride": layer.stride,
            "before": layer.before,
            "inner": block.inner,
            "block": FILTER.pixels,
            "across": FILTER.across(block.inner),
            "num_warps": FILTER.warps,
            "num_stages": 1,  # more would copy every tap into shared memory, and leave room for fewer programs
        }
        out = x.new_empty(block.out_shape(x))
        outputs = out.shape[3]
        pixels = out.numel() // outputs
        grid = (cdiv(pixels, FILTER.pixels),)
        if block.at_once is None and outputs > NARROW:
            filtered = x.new_empty(*out.shape[:3], block.inner)
            programs.filter_kernel[(grid[0] * cdiv(block.inner, sizes["across"]),)](
                x, layer.weight, layer.bias, filtered, pixels, **sizes
            )
            return pointwise(filtered, matrix, other, PROJECT, activated=False)
        parameters = (
            layer.weight,
            layer.bias,
            matrix.weight,
            matrix.bias,
            out if other is None else other,
            out,
            pixels,
        )
        sizes |= {"joined": other is not None, "outputs": outputs, "width": at_least(outputs)}
        if block.at_once is None:
            programs.filter_project_kernel[grid](x, *parameters, **sizes)
        else:
            sizes |= {"inputs": x.shape[3], "depth": at_least(x.shape[3])}
            programs.whole_block_kernel[grid](x, block.at_once.weight, block.at_once.bias, *parameters, **sizes)
        return out


def pointwise(x: Tensor, layer: Pointwise, other: Tensor | None, tile: Tile, *, activated: bool) -> Tensor:
    """Convolution of 1 x 1, through ReLU6 if `activated`, plus `other`, if any."""
    (inputs, outputs), pixels = layer.weight.shape, x.numel() // x.shape[3]
    out = x.new_empty(*x.shape[:3], outputs)
    across = tile.across(outputs)
    programs.pointwise_kernel[(cdiv(pixels, tile.pixels) * cdiv(outputs, across),)](
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


def sides(layout: PatchLayout) -> dict[str, int]:
    """Sides of an image, of a patch and of a patch's first feature map."""
    return {"size": layout.size, "patch": layout.patch, "side": layout.side(1)}


def in_parts(pixels: int, block: int, wanted: int, most: int) -> tuple[int, int]:
    """Number of parts of whole blocks, about `wanted` and `most` at most, and the pixels of each."""
    blocks = cdiv(pixels, block)
    chunk = cdiv(blocks, max(1, min(wanted, most, blocks))) * block
    return cdiv(pixels, chunk), chunk


def at_least(channels: int) -> int:
    """Power of two that is not smaller than `channels` or the size of the matrix units."""
    return max(LEAST, power_of_two(channels))
