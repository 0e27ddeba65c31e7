"""The stages of the fast pass in plain torch, which run on any device."""

import torch
import torch.nn.functional as F
from torch import Tensor

from discopatch.model.kernels import CONSTANT, LEVELS, PIXEL_SCALE, Classifier, FastMBConv, PatchLayout
from discopatch.model.kernels.fused import columns
from discopatch.model.layers import EPS, SLOPE, SMALLEST_VARIANCE
from discopatch.model.patches import extract_patches


class PlainStages:
    """Takes the place of `programs`; computes in float32 wherever the result has no other type."""

    def moments(self, images: Tensor, layout: PatchLayout) -> Tensor:
        rows = windows(images, layout).double()
        return rows.mT @ rows

    def first_layer(
        self, images: Tensor, layout: PatchLayout, kernel: Tensor, affine: Tensor, dtype: torch.dtype
    ) -> Tensor:
        values = normalised(windows(images, layout) @ kernel, affine)
        return values.to(dtype).view(-1, layout.side(1), layout.side(1), values.shape[2])

    def statistics(self, x: Tensor | None, sums: Tensor | None, norm: Tensor, out: Tensor, *, pixels: int) -> Tensor:
        if x is not None:
            values = by_image(x, len(out))
            variance, mean = torch.var_mean(values, dim=1, correction=0)
        else:
            assert sums is not None
            mean, square = (sums.sum(1) / pixels).unbind(1)
            variance = square - mean.square()
        scale = norm[1] * torch.rsqrt(variance.float() + EPS)
        out[:] = torch.cat((mean + norm[0], torch.log(variance.clamp(min=0) + SMALLEST_VARIANCE)), dim=1)
        return torch.stack((scale, norm[2] - mean.float() * scale), dim=1)

    def activate(self, x: Tensor, affine: Tensor) -> Tensor:
        return normalised(by_image(x, len(affine)), affine).to(x.dtype).view(x.shape)

    def classify(self, x: Tensor, affine: Tensor | None, classifier: Classifier, out: Tensor) -> None:
        features = x if affine is None else self.activate(x, affine)
        terms, cells = features.float() @ classifier.weights.float().sum(0), classifier.cells
        rows, across = (side - cells + 1 for side in x.shape[1:3])
        taps = [terms[:, i : i + rows, j : j + across, i * cells + j] for i in range(cells) for j in range(cells)]
        out[:] = (sum(taps[1:], start=taps[0]) + classifier.bias).reshape(out.shape)

    def stem(self, images: Tensor, layout: PatchLayout, kernel: Tensor, bias: Tensor, dtype: torch.dtype) -> Tensor:
        patches = extract_patches(images, layout.corners.long(), layout.patch)
        kernel = kernel[:27].view(3, 3, 3, -1).permute(3, 2, 0, 1)
        padded = F.pad((2 * patches.float() - LEVELS) / PIXEL_SCALE, (0, 1, 0, 1))
        return F.relu6(F.conv2d(padded, kernel, bias, stride=2)).permute(0, 2, 3, 1).to(dtype).contiguous()

    def mbconv(self, x: Tensor, block: FastMBConv) -> Tensor:
        y, (filters, filter_bias), (matrix, bias) = x, block.filter, block.project
        if block.expand is not None:
            y = F.relu6(x.float() @ block.expand[0].float() + block.expand[1]).to(x.dtype)
        kernel = filters.T.reshape(-1, 1, block.taps, block.taps)
        after = block.taps - block.stride - block.before
        padded = F.pad(y.permute(0, 3, 1, 2).float(), (block.before, after) * 2)
        filtered = F.relu6(F.conv2d(padded, kernel, filter_bias, block.stride, groups=len(kernel))).permute(0, 2, 3, 1)
        projected = filtered.to(x.dtype).float() @ matrix.float() + bias
        return (projected + x.float() if block.residual else projected).to(x.dtype).contiguous()


def windows(images: Tensor, layout: PatchLayout) -> Tensor:
    """(images, size, size, 3) in uint8 -> (images, pixels, 32): what an output pixel sees, in integers; a 1; zeros."""
    patches = extract_patches(images, layout.corners.long(), layout.patch)
    rows = columns(2 * patches.float() - LEVELS)
    rows[:, CONSTANT] = 1
    return rows.view(len(images), layout.pixels(1), -1)


def by_image(x: Tensor, images: int) -> Tensor:
    """(images x patches, rows, columns, C) -> (images, pixels, C) in float32."""
    return x.reshape(images, -1, x.shape[3]).float()


def normalised(values: Tensor, affine: Tensor) -> Tensor:
    """LeakyReLU of the normalised values (images, pixels, C)."""
    return F.leaky_relu(values * affine[:, :1] + affine[:, 1:], SLOPE)
