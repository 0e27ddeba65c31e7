"""Discriminators in 8 bits: all convolutions but the first, which reads pixels and takes little time."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.library import custom_op

from discopatch.encoders.discriminator import FeatureExtractor
from discopatch.model.layers import Block, MBConv, SameConv2d

T = TypeVar("T")
Images = Iterable[Tensor]  # normal images (H, W, 3) in uint8
Range = tuple[Tensor, Tensor]  # the lowest and the highest value of each channel, two (C,)

KERNEL_LIMIT = 127  # the largest integer of a kernel, on both sides of zero
KERNEL_ZERO = 128  # is stored as zero: onnxruntime multiplies unsigned integers exactly on every processor
STEPS = 255  # of an activation
KEPT_SHARE = 0.9999  # share of the activations of a channel that is not clipped
SMALLEST = 1e-6  # the range of a channel that is always zero
HIGHEST = 6.0  # of a ReLU6
PAIR_LIMIT = 64  # of kernels: some processors add pairs of products in 16 bits, which larger integers would overflow
CORRELATION = 0.8  # of neighbouring values of a map


class IntegerConv2d(nn.Module):
    """A convolution that multiplies in 8 bits and adds in 32.

    The sums of each output channel are scaled in float32. They are not rounded, since statistics are taken of them.
    """

    kernel: Tensor
    step: Tensor
    zero: Tensor
    scale: Tensor
    bias: Tensor

    def __init__(self, conv: nn.Conv2d, *, lowest: float, highest: float) -> None:
        """Inputs below `lowest` and above `highest` are clipped."""
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
        """The convolution of inputs in uint8."""
        sums: Tensor = convolve_integers(steps, self.kernel, self.zero, self.stride, self.padding)
        return sums.float() * self.scale + self.bias


def round_kernel(weight: Tensor, limit: int) -> tuple[Tensor, Tensor]:
    """Kernels (C', C, k, k) as integers up to the limit, and the scale of each output channel (C', 1, 1, 1)."""
    scale = weight.abs().amax((1, 2, 3), keepdim=True).clamp(min=1e-12) / limit
    return (weight / scale).round(), scale


def operator(function: Callable[..., Tensor]) -> Any:
    """The function as an operator, which stays one node of a graph; its own code gives the shapes of its outputs."""
    made = custom_op(f"discopatch::{function.__name__}", function, mutates_args=())
    made.register_fake(function)
    return made


@operator
def to_steps(x: Tensor, step: Tensor, zero: Tensor) -> Tensor:
    """Activations (B, C, H, W) in uint8."""
    return ((x / step).round() + zero).clamp(0, STEPS).to(torch.uint8)


@operator
def convolve_integers(steps: Tensor, kernel: Tensor, zero: Tensor, stride: int, padding: int) -> Tensor:
    """The convolution of uint8 activations with a uint8 kernel, in int32.

    Here it is computed in float32, which holds all integers up to 2**24; the exported graph computes in integers.
    """
    signed = kernel.float() - KERNEL_ZERO
    return F.conv2d(steps.float() - zero, signed, stride=stride, padding=padding).round().int()


@torch.no_grad()
def quantize_plain(image: FeatureExtractor, pixels: Images) -> None:
    """Replaces, in place, all convolutions but the first of the discriminator; the images set ranges of activations."""
    expected = mean_outputs(image, pixels)
    blocks = [block for block in image.discriminator.blocks if isinstance(block, Block)]
    ranges = input_ranges(image, [block.conv for block in blocks[1:]], pixels)
    factors = []
    for (before, block), (lowest, highest) in zip(pairwise(blocks), ranges, strict=True):
        factors.append(balance(before, block, highest))
        low, high = float((lowest / factors[-1]).min()), float((highest / factors[-1]).max())
        block.conv = IntegerConv2d(convolution(block), lowest=low, highest=high)  # type: ignore[assignment]
    factors.append(torch.ones(image.discriminator.architecture.hidden[-1]))
    image.map_scales.extend(nn.Parameter(each.view(-1, 1, 1), requires_grad=False) for each in factors)
    correct_means(image, expected, pixels)


def convolution(block: Block) -> nn.Conv2d:
    assert isinstance(block.conv, nn.Conv2d)
    return block.conv


def balance(before: Block, block: Block, highest: Tensor) -> Tensor:
    """Divides the inputs of a block by factors (C,) and multiplies its kernels by them, so that channels are alike.

    A LeakyReLU commutes with positive factors, so that the normalisation before it divides, without further work.
    """
    conv = convolution(block)
    factor = (highest / conv.weight.square().mean((0, 2, 3)).sqrt().clamp(min=SMALLEST)).sqrt()
    conv.weight.mul_(factor[None, :, None, None])
    for parameter in (before.norm.weight, before.norm.bias):
        assert isinstance(parameter, Tensor)
        parameter.div_(factor)
    return factor


def input_ranges(extractor: FeatureExtractor, layers: Sequence[nn.Module], pixels: Images) -> list[Range]:
    """The range of the inputs of each layer, over all images."""
    ranges = []
    for each in measure_inputs(extractor, layers, pixels, channel_range):
        lowest, highest = zip(*each, strict=True)
        ranges.append((torch.stack(lowest).amin(0), torch.stack(highest).amax(0)))
    return ranges


def channel_range(activations: Tensor) -> Range:
    """The lowest value of each channel of (B, C, H, W), and the highest but for a few outliers."""
    channels = activations.transpose(0, 1).flatten(1)
    kept = max(1, round(KEPT_SHARE * channels.shape[1]))
    return channels.amin(1), channels.kthvalue(kept, 1).values.clamp(min=SMALLEST)


def measure_inputs(
    extractor: FeatureExtractor, layers: Sequence[nn.Module], pixels: Images, measure: Callable[[Tensor], T]
) -> list[list[T]]:
    """The measure of the input (B, C, H, W) of each layer, image by image."""
    found: dict[nn.Module, list[T]] = {layer: [] for layer in layers}
    hooks = [
        layer.register_forward_pre_hook(lambda module, inputs: found[module].append(measure(inputs[0])))
        for layer in layers
    ]
    mean_outputs(extractor, pixels)
    for hook in hooks:
        hook.remove()
    return list(found.values())


def mean_outputs(extractor: FeatureExtractor, pixels: Images) -> tuple[Tensor, Tensor]:
    """Means over images: the logit, and the statistics (2 x channels,). Images pass one by one to save memory."""
    outputs = (extractor.output(image[None]) for image in pixels)
    logits, statistics = zip(*((each.logits.mean(), each.statistics.mean(0)) for each in outputs), strict=True)
    return torch.stack(logits).mean(), torch.stack(statistics).mean(0)


def correct_means(extractor: FeatureExtractor, expected: tuple[Tensor, Tensor], pixels: Images) -> None:
    """Gives the statistics and the logit the means that they had before rounding."""
    logit, statistics = mean_outputs(extractor, pixels)
    extractor.statistics_shift = expected[1] - statistics
    bias = extractor.discriminator.head.bias
    assert bias is not None
    bias.add_(expected[0] - logit)


# Inverted residual networks


@torch.no_grad()
def quantize_inverted(image: FeatureExtractor, pixels: Images) -> None:
    """Replaces, in place, all blocks of the discriminator; the images set ranges of activations."""
    network, expected = image.discriminator, mean_outputs(image, pixels)
    parents = [module for module in network.modules() if isinstance(module, nn.Sequential)]
    blocks = [module for module in network.modules() if isinstance(module, MBConv)]
    ranges = dict(zip(blocks, input_ranges(image, blocks, pixels), strict=True))
    layers = [module for block in blocks for module in block.children() if isinstance(module, SameConv2d)]
    found = measure_inputs(image, layers, pixels, lambda x: x.mean((0, 2, 3)))
    means = {layer: torch.stack(each).mean(0) for layer, each in zip(layers, found, strict=True)}
    for parent in parents:
        for number, block in enumerate(parent):
            assert isinstance(block, MBConv)
            parent[number] = IntegerMBConv(block, ranges[block], means)
    correct_means(image, expected, pixels)


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


@operator
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
