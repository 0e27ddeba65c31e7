"""The stages of the pass in plain torch: what each computes, in words that can be checked."""

from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from discopatch.model.discriminator import SMALLEST_VARIANCE
from discopatch.model.fast.layers import CONSTANT, LEVELS, First, Judge, Norm
from discopatch.model.fast.look import Look
from discopatch.model.fused import SLOPE, columns
from discopatch.patches import cut


class Affine(NamedTuple):
    """A normalisation with its statistics known: scale * x + shift, (images, C) each."""

    scale: Tensor
    shift: Tensor


class Stages(Protocol):
    """Feature maps are (images x patches, rows, columns, C); what is found of an image is a row of `found`."""

    def moments(self, pictures: Tensor, look: Look) -> Tensor:
        """(images, 32, 32) in float64: sums over all windows of the products of their numbers."""

    def first(self, pictures: Tensor, look: Look, layer: First, affine: Affine, dtype: torch.dtype) -> Tensor:
        """The first layer's features, activated."""

    def sums(self, x: Tensor, images: int) -> Tensor:
        """(images, parts, 2, C): sums over pixels and of their squares, both less the image's first pixel."""

    def settle(self, sums: Tensor, x: Tensor | None, norm: Norm, found: Tensor, *, pixels: int) -> Affine:
        """Sums become statistics, which are written down, and a normalisation; `x` is what the sums are of, if any."""

    def activate(self, x: Tensor, affine: Affine) -> Tensor:
        """Normalised, through the LeakyReLU; `x` may be overwritten."""

    def judge(self, x: Tensor, affine: Affine | None, judge: Judge, found: Tensor, *, first: int) -> None:
        """Writes down the logits of the last feature map, which is normalised on the way unless it already is."""


class Plain:
    """In float32 wherever the result does not have to be something else."""

    def moments(self, pictures: Tensor, look: Look) -> Tensor:
        """Sums of integers: exact."""
        rows = windows(pictures, look).double()
        return rows.mT @ rows

    def first(self, pictures: Tensor, look: Look, layer: First, affine: Affine, dtype: torch.dtype) -> Tensor:
        """One matrix product."""
        values = leaky((windows(pictures, look) @ layer.kernel) * affine.scale[:, None] + affine.shift[:, None])
        return values.to(dtype).view(-1, look.side(1), look.side(1), values.shape[2])

    def sums(self, x: Tensor, images: int) -> Tensor:
        """In one part."""
        values = by_image(x, images)
        shifted = values - values[:, :1]
        return torch.stack((shifted.sum(1), shifted.square().sum(1)), dim=1)[:, None]

    def settle(self, sums: Tensor, x: Tensor | None, norm: Norm, found: Tensor, *, pixels: int) -> Affine:
        """In the precision of the sums until the mean is taken out."""
        offset, square = (sums.sum(1) / pixels).unbind(1)
        variance = (square - offset.square()).clamp(min=0).float()
        mean = offset.float() if x is None else offset + by_image(x, len(sums))[:, 0]
        scale = norm.weight * torch.rsqrt(variance + norm.eps)
        channels = mean.shape[1]
        found[:, norm.first : norm.first + channels] = mean + norm.conv_bias
        found[:, norm.first + channels : norm.first + 2 * channels] = torch.log(variance + SMALLEST_VARIANCE)
        return Affine(scale, norm.bias - mean * scale)

    def activate(self, x: Tensor, affine: Affine) -> Tensor:
        """A new map."""
        values = by_image(x, len(affine.scale)) * affine.scale[:, None] + affine.shift[:, None]
        return leaky(values).to(x.dtype).view(x.shape)

    def judge(self, x: Tensor, affine: Affine | None, judge: Judge, found: Tensor, *, first: int) -> None:
        """Each pixel's share in every place of a patch, then a sum over each patch."""
        features = x if affine is None else self.activate(x, affine)
        shares, cells = features.float() @ judge.weight, judge.cells
        rows, across = (side - cells + 1 for side in x.shape[1:3])
        taps = [shares[:, i : i + rows, j : j + across, i * cells + j] for i in range(cells) for j in range(cells)]
        found[:, first:] = (sum(taps[1:], start=taps[0]) + judge.bias).reshape(len(found), -1)


def windows(pictures: Tensor, look: Look) -> Tensor:
    """(images, size, size, 3) in uint8 -> (images, pixels, 32): what an output pixel sees, in integers; a 1; zeros."""
    patches = cut(pictures, look.corners.expand(len(pictures), -1, -1), look.patch)
    found = columns(2 * patches.float() - LEVELS)
    found[:, CONSTANT] = 1
    return found.view(len(pictures), look.pixels(1), -1)


def by_image(x: Tensor, images: int) -> Tensor:
    """(images x patches, rows, columns, C) -> (images, pixels, C) in float32."""
    return x.reshape(images, -1, x.shape[3]).float()


def leaky(values: Tensor) -> Tensor:
    """LeakyReLU."""
    return torch.where(values > 0, values, SLOPE * values)
