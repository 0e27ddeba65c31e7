"""Inverted residual discriminators in 8 bits: all convolutions but the stem, which reads pixels."""

from collections.abc import Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from discopatch.encoders.discriminator import FeatureExtractor
from discopatch.export.quantize import (
    KERNEL_LIMIT,
    STEPS,
    IntegerConv2d,
    Range,
    correct_means,
    input_ranges,
    mean_outputs,
    measure_inputs,
    round_kernel,
    to_steps,
)
from discopatch.model.layers import MBConv, SameConv2d

HIGHEST = 6.0  # of a ReLU6
PAIR_LIMIT = 64  # of kernels: some processors add pairs of products in 16 bits, which larger integers would overflow
CORRELATION = 0.8  # of neighbouring values of a map


@torch.no_grad()
def quantize_inverted(image: FeatureExtractor, regions: FeatureExtractor, pixels: Tensor) -> None:
    """Replaces, in place, all blocks of the discriminator that both extractors share.

    pixels: normal images (B, size, size, 3) in uint8, which set the ranges of activations in images and regions.
    """
    network, extractors = image.discriminator, (image, regions)
    expected = [mean_outputs(each, pixels) for each in extractors]
    parents = [module for module in network.modules() if isinstance(module, nn.Sequential)]
    blocks = [module for module in network.modules() if isinstance(module, MBConv)]
    ranges = dict(zip(blocks, input_ranges(extractors, blocks, pixels), strict=True))
    layers = [module for block in blocks for module in block.children() if isinstance(module, SameConv2d)]
    found = measure_inputs([image], layers, pixels, lambda x: x.mean((0, 2, 3)))
    means = {layer: torch.stack(each).mean(0) for layer, each in zip(layers, found, strict=True)}
    for parent in parents:
        for number, block in enumerate(parent):
            assert isinstance(block, MBConv)
            parent[number] = IntegerMBConv(block, ranges[block], means)
    correct_means(extractors, expected, pixels)


class IntegerMBConv(nn.Module):
    """A block with 8 bits inside; its output, of which statistics are taken, is not rounded."""

    step: Tensor
    zero: Tensor

    def __init__(self, block: MBConv, inputs: Range, means: Mapping[SameConv2d, Tensor]) -> None:
        """The range of its inputs, and the mean input of each channel of each of its convolutions."""
        super().__init__()
        low, high = min(0.0, float(inputs[0].min())), float(inputs[1].max())
        step, inner = (high - low) / STEPS, HIGHEST / STEPS
        zero = torch.tensor(round(-low / step), dtype=torch.uint8)
        self.register_buffer("step", torch.tensor(step))
        self.register_buffer("zero", zero)
        self.expand: StepsConv2d | None = None
        if block.expand is not None:
            keep_mean(block.expand, means[block.expand], PAIR_LIMIT)
            self.expand = StepsConv2d(block.expand, step=step, zero=zero, limit=PAIR_LIMIT)
            step, zero = inner, torch.zeros_like(zero)
        keep_mean(block.filter, means[block.filter], KERNEL_LIMIT)
        self.filter = StepsConv2d(block.filter, step=step, zero=zero, limit=KERNEL_LIMIT)
        keep_mean(block.project, means[block.project], KERNEL_LIMIT)
        self.project = IntegerConv2d(block.project, lowest=0.0, highest=HIGHEST)
        self.residual = block.residual

    def forward(self, x: Tensor) -> Tensor:
        """(B, in_channels, H, W) -> (B, out_channels, H / stride, W / stride)."""
        steps = to_steps(x, self.step, self.zero)
        steps = self.filter(steps if self.expand is None else self.expand(steps))
        y = self.project.of_steps(steps)
        return y + x if self.residual else y


def keep_mean(conv: SameConv2d, mean: Tensor, limit: int) -> None:
    """Adds the mean rounding error of the kernel to the bias, for inputs whose channels have this mean (C,).

    Without it more activations would reach the bounds of the ReLU6 that follows.
    """
    assert conv.bias is not None
    kernel, scale = round_layer(conv, limit)
    lost = (conv.weight - kernel * scale).sum((2, 3))
    conv.bias.add_((lost * (mean if conv.groups == 1 else mean[:, None])).sum(1))


def round_layer(conv: SameConv2d, limit: int) -> tuple[Tensor, Tensor]:
    """`round_kernel`, with GPTQ (Frantar et al., 2023) for the filters of single channels.

    A filter has few weights over which rounding errors could cancel. The error of each weight is passed on to the
    weights after it, in the shares that change the output least for inputs with correlated neighbours.
    """
    weight = conv.weight.detach()
    kernel, scale = round_kernel(weight, limit)
    if conv.groups == 1:
        return kernel, scale
    side = torch.arange(conv.kernel_size[0], dtype=torch.float64)
    places = torch.cartesian_prod(side, side)
    correlation = CORRELATION ** torch.cdist(places, places, p=1)
    shares = torch.linalg.cholesky(torch.linalg.inv(correlation), upper=True)
    left = (weight / scale).flatten(1).double()
    for number, row in enumerate(shares):
        rounded = left[:, number].round().clamp(-limit, limit)
        error = (left[:, number] - rounded) / row[number]
        left[:, number:] -= error[:, None] * row[number:]
        left[:, number] = rounded
    return left.view_as(weight).to(weight.dtype), scale


class StepsConv2d(nn.Module):
    """A convolution and a ReLU6, from uint8 to uint8."""

    kernel: Tensor
    zero: Tensor
    scale: Tensor
    bias: Tensor

    def __init__(self, conv: SameConv2d, *, step: float, zero: Tensor, limit: int) -> None:
        """`step` and `zero` belong to the input; `limit` is the largest integer of the kernel."""
        super().__init__()
        assert conv.bias is not None
        self.stride, self.groups = conv.stride[0], conv.groups
        before, after = conv.margins
        self.pads = [before] * 2 + [after] * 2
        kernel, scale = round_layer(conv, limit)
        scale = scale.flatten() * step
        self.register_buffer("kernel", kernel.to(torch.int8))
        self.register_buffer("zero", zero)
        self.register_buffer("scale", scale * (STEPS / HIGHEST))
        self.register_buffer("bias", (conv.bias.detach() / scale).round().to(torch.int32))

    def forward(self, steps: Tensor) -> Tensor:
        """(B, C, H, W) -> (B, C', H / stride, W / stride), both in uint8."""
        found: Tensor = convolve_steps(
            steps, self.kernel, self.zero, self.scale, self.bias, self.stride, self.pads, self.groups
        )
        return found


@torch.library.custom_op("discopatch::convolve_steps", mutates_args=())
def convolve_steps(
    steps: Tensor,
    kernel: Tensor,
    zero: Tensor,
    scale: Tensor,
    bias: Tensor,
    stride: int,
    pads: Sequence[int],
    groups: int,
) -> Tensor:
    """The forward pass of `StepsConv2d`; `pads` are above, left, below, right.

    Here it is computed in float32, which holds all integers up to 2**24; the exported graph computes in integers.
    """
    above, left, below, right = pads
    padded = F.pad(steps.float() - zero, (left, right, above, below))
    sums = F.conv2d(padded, kernel.float(), bias.float(), stride=stride, groups=groups).round()
    return (sums * scale.view(-1, 1, 1)).round().clamp(0, STEPS).to(torch.uint8)


@convolve_steps.register_fake
def _(
    steps: Tensor,
    kernel: Tensor,
    zero: Tensor,
    scale: Tensor,
    bias: Tensor,
    stride: int,
    pads: Sequence[int],
    groups: int,
) -> Tensor:
    side = kernel.shape[-1] - pads[0] - pads[2]
    return steps.new_empty(
        (steps.shape[0], kernel.shape[0], *((each - side) // stride + 1 for each in steps.shape[2:]))
    )
