"""The stages of the fast pass in plain torch, which run on any device."""

import torch
import torch.nn.functional as F
from torch import Tensor

from discopatch.model.discriminator import SMALLEST_VARIANCE
from discopatch.model.kernels.fused import columns
from discopatch.model.kernels.layout import (
    CONSTANT,
    LEVELS,
    PIXEL_SCALE,
    Affine,
    Classifier,
    FastMBConv,
    FirstLayer,
    NormLayer,
    PatchLayout,
    Pointwise,
    Stem,
)
from discopatch.model.layers import SLOPE
from discopatch.model.patches import extract_patches


class PlainStages:
    """Takes the place of `Kernels`; computes in float32 wherever the result has no other type."""

    def moments(self, images: Tensor, layout: PatchLayout) -> Tensor:
        rows = windows(images, layout).double()
        return rows.mT @ rows

    def first(
        self, images: Tensor, layout: PatchLayout, layer: FirstLayer, affine: Affine, dtype: torch.dtype
    ) -> Tensor:
        values = leaky((windows(images, layout) @ layer.kernel) * affine.scale[:, None] + affine.shift[:, None])
        return values.to(dtype).view(-1, layout.side(1), layout.side(1), values.shape[2])

    def sums(self, x: Tensor, images: int) -> Tensor:
        values = by_image(x, images)
        shifted = values - values[:, :1]
        return torch.stack((shifted.sum(1), shifted.square().sum(1)), dim=1)[:, None]

    def statistics(self, sums: Tensor, x: Tensor | None, norm: NormLayer, out: Tensor, *, pixels: int) -> Affine:
        offset, square = (sums.sum(1) / pixels).unbind(1)
        variance = (square - offset.square()).clamp(min=0).float()
        mean = offset.float() if x is None else offset + by_image(x, len(sums))[:, 0]
        scale = norm.weight * torch.rsqrt(variance + norm.eps)
        channels = mean.shape[1]
        out[:, norm.first : norm.first + channels] = mean + norm.conv_bias
        out[:, norm.first + channels : norm.first + 2 * channels] = torch.log(variance + SMALLEST_VARIANCE)
        return Affine(scale, norm.bias - mean * scale)

    def activate(self, x: Tensor, affine: Affine) -> Tensor:
        values = by_image(x, len(affine.scale)) * affine.scale[:, None] + affine.shift[:, None]
        return leaky(values).to(x.dtype).view(x.shape)

    def classify(self, x: Tensor, affine: Affine | None, classifier: Classifier, out: Tensor, *, first: int) -> None:
        features = x if affine is None else self.activate(x, affine)
        terms, cells = features.float() @ classifier.weight, classifier.cells
        rows, across = (side - cells + 1 for side in x.shape[1:3])
        taps = [terms[:, i : i + rows, j : j + across, i * cells + j] for i in range(cells) for j in range(cells)]
        out[:, first:] = (sum(taps[1:], start=taps[0]) + classifier.bias).reshape(len(out), -1)

    def stem(self, images: Tensor, layout: PatchLayout, layer: Stem, dtype: torch.dtype) -> Tensor:
        patches = extract_patches(images, layout.corners.long(), layout.patch)
        kernel = layer.kernel[:27].view(3, 3, 3, -1).permute(3, 2, 0, 1)
        padded = F.pad((2 * patches.float() - LEVELS) / PIXEL_SCALE, (0, 1, 0, 1))
        return F.relu6(F.conv2d(padded, kernel, layer.bias, stride=2)).permute(0, 2, 3, 1).to(dtype).contiguous()

    def expand(self, x: Tensor, layer: Pointwise) -> Tensor:
        return F.relu6(x.float() @ layer.weight.float() + layer.bias).to(x.dtype)

    def filter_project(self, x: Tensor, block: FastMBConv, other: Tensor | None) -> Tensor:
        y, layer = x if block.at_once is None else self.expand(x, block.at_once), block.filter
        kernel = layer.weight.T.reshape(block.inner, 1, layer.taps, layer.taps)
        after = layer.taps - layer.stride - layer.before
        padded = F.pad(y.permute(0, 3, 1, 2).float(), (layer.before, after) * 2)
        filtered = F.relu6(F.conv2d(padded, kernel, layer.bias, layer.stride, groups=block.inner)).permute(0, 2, 3, 1)
        projected = filtered.to(x.dtype).float() @ block.project.weight.float() + block.project.bias
        return (projected + (0 if other is None else other.float())).to(x.dtype).contiguous()


def windows(images: Tensor, layout: PatchLayout) -> Tensor:
    """(images, size, size, 3) in uint8 -> (images, pixels, 32): what an output pixel sees, in integers; a 1; zeros."""
    patches = extract_patches(images, layout.corners.long(), layout.patch)
    rows = columns(2 * patches.float() - LEVELS)
    rows[:, CONSTANT] = 1
    return rows.view(len(images), layout.pixels(1), -1)


def by_image(x: Tensor, images: int) -> Tensor:
    """(images x patches, rows, columns, C) -> (images, pixels, C) in float32."""
    return x.reshape(images, -1, x.shape[3]).float()


def leaky(values: Tensor) -> Tensor:
    """LeakyReLU."""
    return torch.where(values > 0, values, SLOPE * values)
