"""Residual networks: stages of two convolutions and a shortcut each, in place of the paper's plain layers."""

import torch.nn.functional as F
from torch import Tensor, nn

from discopatch.model.config import Architecture, Normalisation
from discopatch.model.layers import SLOPE, Block, BlockOutput, PatchNorm2d, make_norm, patch_statistics


def make_stem(architecture: Architecture) -> Block:
    """The first layer, which halves height and width."""
    side, width = architecture.stem, architecture.hidden[0]
    conv = nn.Conv2d(3, width, kernel_size=side, stride=2, padding=side // 2, bias=False)
    return Block(conv, make_norm(architecture.normalisation, width))


class NormalisedConv2d(nn.Module):
    """A convolution without bias, and a normalisation, which has one."""

    def __init__(self, inputs: int, outputs: int, *, kernel: int, stride: int, normalisation: Normalisation) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, bias=False)
        self.norm = make_norm(normalisation, outputs)

    def forward(self, x: Tensor, group: int | None) -> Tensor:
        """(B, inputs, H, W) -> (B, outputs, H / stride, W / stride)."""
        x = self.conv(x)
        normal: Tensor = self.norm(x, group) if isinstance(self.norm, PatchNorm2d) else self.norm(x)
        return normal


class ResidualBlock(nn.Module):
    """3 x 3, LeakyReLU, 3 x 3, plus the input, which a 1 x 1 brings to another shape, and a LeakyReLU again."""

    def __init__(self, inputs: int, outputs: int, *, stride: int, normalisation: Normalisation) -> None:
        super().__init__()
        self.first = NormalisedConv2d(inputs, outputs, kernel=3, stride=stride, normalisation=normalisation)
        self.second = NormalisedConv2d(outputs, outputs, kernel=3, stride=1, normalisation=normalisation)
        self.shortcut: NormalisedConv2d | None = None
        if stride > 1 or inputs != outputs:
            self.shortcut = NormalisedConv2d(inputs, outputs, kernel=1, stride=stride, normalisation=normalisation)

    def forward(self, x: Tensor, group: int | None) -> Tensor:
        """(B, inputs, H, W) -> (B, outputs, H / stride, W / stride)."""
        y = self.second(F.leaky_relu(self.first(x, group), SLOPE, inplace=True), group)
        return F.leaky_relu(y + (x if self.shortcut is None else self.shortcut(x, group)), SLOPE, inplace=True)


class Stage(nn.Module):
    """Residual blocks, of which the first halves height and width; to be used as a `Block` is."""

    def __init__(self, inputs: int, outputs: int, *, blocks: int, normalisation: Normalisation) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            ResidualBlock(
                inputs if number == 0 else outputs, outputs, stride=1 if number else 2, normalisation=normalisation
            )
            for number in range(blocks)
        )

    def forward(self, x: Tensor, group: int | None = None, *, statistics: bool = False) -> BlockOutput:
        """The stage's output (B, C, H, W), and on request the statistics of it over each group."""
        for block in self.blocks:
            x = block(x, group)
        return BlockOutput(x, *patch_statistics(x, group)) if statistics else BlockOutput(x)
