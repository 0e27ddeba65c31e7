"""A plain discriminator in 8 bits: all of its convolutions but the first, which reads pixels and costs little."""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from discopatch.encoders.discriminator import FeatureExtractor
from discopatch.model import DiscriminatorOutput
from discopatch.model.layers import Block

KERNEL_LIMIT = 127  # the largest integer of a kernel, on both sides of zero
KERNEL_ZERO = 128  # what is stored for it: onnxruntime multiplies unsigned integers exactly on every processor
STEPS = 255  # of an activation
KEPT_SHARE = 0.9999  # of a channel's activations in one image, which are not clipped
SMALLEST = 1e-6  # below this a channel carries nothing


class IntegerConv2d(nn.Module):
    """A convolution that multiplies in 8 bits and adds up in 32.

    Each output channel has a scale of its own, which is applied to the sums: nothing is rounded to 8 bits between the
    convolution and its statistics.
    """

    kernel: Tensor
    step: Tensor
    zero: Tensor
    scale: Tensor
    bias: Tensor

    def __init__(self, conv: nn.Conv2d, *, lowest: float, highest: float) -> None:
        """Activations below `lowest` and above `highest` are clipped."""
        super().__init__()
        assert conv.bias is not None
        self.stride, self.padding = conv.stride[0], int(conv.padding[0])
        step, weight = (highest - lowest) / STEPS, conv.weight.detach()
        kernel, channel_scale = round_kernel(weight, KERNEL_LIMIT)
        self.register_buffer("kernel", (kernel + KERNEL_ZERO).to(torch.uint8))
        self.register_buffer("step", torch.tensor(step))
        self.register_buffer("zero", torch.tensor(round(-lowest / step), dtype=torch.uint8))
        self.register_buffer("scale", (channel_scale * step).view(-1, 1, 1))
        self.register_buffer("bias", conv.bias.detach().clone().view(-1, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, H, W) -> (B, C', H / stride, W / stride)."""
        return self.of_steps(to_steps(x, self.step, self.zero))

    def of_steps(self, steps: Tensor) -> Tensor:
        """The same, of an input in uint8."""
        sums: Tensor = convolve_integers(steps, self.kernel, self.zero, self.stride, self.padding)
        return sums.float() * self.scale + self.bias


def round_kernel(weight: Tensor, limit: int) -> tuple[Tensor, Tensor]:
    """(C', C, k, k) -> integers up to the limit, and the scale of each output channel, (C', 1, 1, 1)."""
    scale = weight.abs().amax((1, 2, 3), keepdim=True).clamp(min=1e-12) / limit
    return (weight / scale).round(), scale


@torch.library.custom_op("discopatch::to_steps", mutates_args=())
def to_steps(x: Tensor, step: Tensor, zero: Tensor) -> Tensor:
    """Activations in steps of 8 bits, (B, C, H, W) in uint8."""
    return ((x / step).round() + zero).clamp(0, STEPS).to(torch.uint8)


@to_steps.register_fake
def _(x: Tensor, step: Tensor, zero: Tensor) -> Tensor:
    return torch.empty_like(x, dtype=torch.uint8)


@torch.library.custom_op("discopatch::convolve_integers", mutates_args=())
def convolve_integers(steps: Tensor, kernel: Tensor, zero: Tensor, stride: int, padding: int) -> Tensor:
    """Activations in steps of 8 bits, convolved with a kernel of 8 bits: the sums, in int32.

    What the exported graph does in integers is done in float32 here, which holds them all up to 2**24.
    """
    signed = kernel.float() - KERNEL_ZERO
    return F.conv2d(steps.float() - zero, signed, stride=stride, padding=padding).round().int()


@convolve_integers.register_fake
def _(steps: Tensor, kernel: Tensor, zero: Tensor, stride: int, padding: int) -> Tensor:
    sides = [(side + 2 * padding - kernel.shape[-1]) // stride + 1 for side in steps.shape[2:]]
    return steps.new_empty((steps.shape[0], kernel.shape[0], *sides), dtype=torch.int32)


@torch.no_grad()
def quantize_plain(image: FeatureExtractor, regions: FeatureExtractor, pixels: Tensor) -> None:
    """Replaces, in place, all convolutions but the first of the discriminator that both extractors share.

    Normal images (B, size, size, 3) in uint8 show which activations occur. The ranges cover images and regions; the
    mean statistics are then matched on images, since their scores decide.
    """
    blocks, convs, factors = blocks_of(image), [], []
    expected = mean_statistics(image, pixels)
    ranges = activation_ranges((image, regions), pixels)
    for (before, block), (lowest, highest) in zip(pairwise(blocks), ranges, strict=True):
        factor = balance(before, block, highest)
        factors.append(factor)
        low, high = float((lowest / factor).min()), float((highest / factor).max())
        convs.append(IntegerConv2d(convolution(block), lowest=low, highest=high))
        block.conv = convs[-1]  # type: ignore[assignment]  # it takes the place of one
    factors.append(torch.ones(image.discriminator.architecture.hidden[-1]))
    image.map_scales.extend(nn.Parameter(each.view(-1, 1, 1), requires_grad=False) for each in factors)
    found = mean_statistics(image, pixels)
    match_statistics(convs, expected, found)
    bias = image.discriminator.head.bias
    assert bias is not None
    bias.add_(expected.logit - found.logit)


def blocks_of(extractor: FeatureExtractor) -> list[Block]:
    return [block for block in extractor.discriminator.blocks if isinstance(block, Block)]


def convolution(block: Block) -> nn.Conv2d:
    assert isinstance(block.conv, nn.Conv2d)
    return block.conv


def outputs_one_by_one(extractor: FeatureExtractor, pixels: Tensor) -> Iterator[DiscriminatorOutput]:
    """The output for each image alone; together their feature maps would fill the memory."""
    return (extractor.output(image) for image in pixels.split(1))


def activation_ranges(extractors: Sequence[FeatureExtractor], pixels: Tensor) -> list[tuple[Tensor, Tensor]]:
    """For every convolution but the first the lowest and the highest input of each channel, two (C,)."""
    found = [
        [channel_range(features) for features in output.features[:-1]]
        for extractor in extractors
        for output in outputs_one_by_one(extractor, pixels)
    ]
    return [widest(layer) for layer in zip(*found, strict=True)]


def channel_range(activations: Tensor) -> tuple[Tensor, Tensor]:
    """(B, C, H, W) -> the lowest of each channel, and the highest but for a few, two (C,)."""
    channels = activations.transpose(0, 1).flatten(1)
    kept = max(1, round(KEPT_SHARE * channels.shape[1]))
    return channels.amin(1), channels.kthvalue(kept, 1).values.clamp(min=SMALLEST)


def widest(ranges: Sequence[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """The lowest and the highest of several `channel_range`."""
    lowest, highest = zip(*ranges, strict=True)
    return torch.stack(lowest).amin(0), torch.stack(highest).amax(0)


def balance(before: Block, block: Block, highest: Tensor) -> Tensor:
    """Divides the block's inputs by (C,) and multiplies its kernels by the same, which is returned.

    A LeakyReLU lets a positive factor through, so that it can go into the normalisation before it, and costs nothing.
    """
    factor = balance_kernel(convolution(block), highest)
    for parameter in (before.norm.weight, before.norm.bias):
        assert isinstance(parameter, Tensor)
        parameter.div_(factor)
    return factor


def balance_kernel(conv: nn.Conv2d, highest: Tensor) -> Tensor:
    """Multiplies the kernel by the (C,) that its inputs, of which these are the highest, are to be divided by.

    With it wide channels neither leave few steps to narrow ones nor meet coarse kernels.
    """
    factor = (highest / conv.weight.square().mean((0, 2, 3)).sqrt().clamp(min=SMALLEST)).sqrt()
    conv.weight.mul_(factor[None, :, None, None])
    return factor


class MeanStatistics(NamedTuple):
    """Averages over images: the mean logit, and layer by layer the means and the log-variances, each (C,)."""

    logit: Tensor
    means: list[Tensor]
    log_variances: list[Tensor]


def mean_statistics(extractor: FeatureExtractor, pixels: Tensor) -> MeanStatistics:
    found = [(each.logits.mean(), each.means, each.variances) for each in outputs_one_by_one(extractor, pixels)]
    logits, means, variances = zip(*found, strict=True)
    return MeanStatistics(
        torch.stack(logits).mean(),
        [torch.cat(layer).mean(0) for layer in zip(*means, strict=True)],
        [torch.cat(layer).clamp(min=SMALLEST).log().mean(0) for layer in zip(*variances, strict=True)],
    )


def match_statistics(convs: Sequence[IntegerConv2d], expected: MeanStatistics, found: MeanStatistics) -> None:
    """Scales and moves the sums of each channel so that their statistics are, on average, those of the float network.

    The normalisation takes that out again, but the head reads it. What is left differs from image to image.
    """
    for layer, conv in enumerate(convs, start=1):
        growth = ((expected.log_variances[layer] - found.log_variances[layer]) / 2).exp().view(-1, 1, 1)
        mean, before = expected.means[layer].view(-1, 1, 1), found.means[layer].view(-1, 1, 1)
        conv.bias.copy_(mean - growth * (before - conv.bias))
        conv.scale.mul_(growth)
