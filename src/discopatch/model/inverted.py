"""Inverted residual networks: few channels between blocks, many inside them, and no normalisation left.

The layers are those of EfficientNet-Lite0 (Tan and Le, 2019; Lite: no squeeze-and-excitation, ReLU6 throughout), whose
BatchNorm is part of its convolutions: a network that begins as it needs none.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch.nn.functional as F
from torch import Tensor, nn

from discopatch.model.layers import BlockOutput, patch_statistics

LITE0 = (16, 24, 40, 112, 320)  # channels after each halving of height and width


class Repeated(NamedTuple):
    """Blocks of one kind, one after another; only the first has the stride."""

    blocks: int
    kernel: int
    stride: int
    expansion: int
    channels: int


def layer_plan(hidden: Sequence[int]) -> list[tuple[Repeated, ...]]:
    """The blocks of each layer, in proportion to EfficientNet-Lite0's; before the first comes a stem of stride 2."""
    first, second, third, fourth, fifth = hidden
    return [
        (Repeated(1, 3, 1, 1, first),),
        (Repeated(2, 3, 2, 6, second),),
        (Repeated(2, 5, 2, 6, third),),
        (Repeated(3, 3, 2, 6, fourth * 5 // 7), Repeated(3, 5, 1, 6, fourth)),
        (Repeated(4, 5, 2, 6, fifth * 3 // 5), Repeated(1, 3, 1, 6, fifth)),
    ]


class SameConv2d(nn.Conv2d):
    """A convolution with TensorFlow's padding SAME for maps of even sides.

    With stride 2 it pads below and to the right more than above and to the left.
    """

    def __init__(self, in_channels: int, out_channels: int, kernel: int, stride: int = 1, *, groups: int = 1) -> None:
        missing = kernel - stride
        before, after = missing // 2, missing - missing // 2
        super().__init__(in_channels, out_channels, kernel, stride, padding=before if stride == 1 else 0, groups=groups)
        self.margins = before, after  # that are added along each axis

    def forward(self, x: Tensor) -> Tensor:
        """(B, in_channels, H, W) -> (B, out_channels, H / stride, W / stride)."""
        return super().forward(self.padded(x))

    def padded(self, x: Tensor) -> Tensor:
        """The input with what `padding` cannot say."""
        return x if self.stride == (1, 1) else F.pad(x, self.margins * 2)


class MBConv(nn.Module):
    """More channels by a 1 x 1, each filtered by itself, back to few; plus the input, where shapes allow."""

    def __init__(self, in_channels: int, out_channels: int, *, kernel: int, stride: int, expansion: int) -> None:
        super().__init__()
        inner = in_channels * expansion
        self.expand = SameConv2d(in_channels, inner, 1) if expansion > 1 else None
        self.filter = SameConv2d(inner, inner, kernel, stride, groups=inner)
        self.project = SameConv2d(inner, out_channels, 1)
        self.residual = stride == 1 and in_channels == out_channels

    def forward(self, x: Tensor) -> Tensor:
        """(B, in_channels, H, W) -> (B, out_channels, H / stride, W / stride)."""
        y: Tensor = x if self.expand is None else relu6(self.expand(x))
        y = self.project(relu6(self.filter(y)))
        return y.add_(x) if self.residual else y


class InvertedLayer(nn.Module):
    """Blocks that together halve height and width, the first time after a stem that does; used as a `Block` is."""

    def __init__(self, inputs: int, plan: Sequence[Repeated], *, stem: int = 0) -> None:
        """`stem` is how many channels a stem makes of three colours."""
        super().__init__()
        self.stem = SameConv2d(3, stem, 3, 2) if stem else None
        self.blocks = mbconvs(stem or inputs, plan)

    def forward(self, x: Tensor, group: int | None = None, *, statistics: bool = False) -> BlockOutput:
        """The output of the last block (B, C, H, W), and on request the statistics of it over each group."""
        x = self.blocks(x if self.stem is None else relu6(self.stem(x)))
        return BlockOutput(x, *patch_statistics(x, group)) if statistics else BlockOutput(x)


def make_layers(hidden: Sequence[int]) -> nn.ModuleList:
    """The layers with these channels, the first with a stem of twice as many as it has itself."""
    inputs = (0, *hidden)
    return nn.ModuleList(
        InvertedLayer(inputs[number], plan, stem=0 if number else 2 * hidden[0])
        for number, plan in enumerate(layer_plan(hidden))
    )


def mbconvs(channels: int, plan: Sequence[Repeated]) -> nn.Sequential:
    """The blocks of a plan, of which the first takes so many channels."""
    found = nn.Sequential()
    for blocks, kernel, stride, expansion, out_channels in plan:
        for number in range(blocks):
            first = stride if number == 0 else 1
            found.append(MBConv(channels, out_channels, kernel=kernel, stride=first, expansion=expansion))
            channels = out_channels
    return found


def relu6(x: Tensor) -> Tensor:
    """In place: what a convolution gives is needed by nothing else."""
    return F.relu6(x, inplace=True)
