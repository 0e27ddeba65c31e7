"""The one building block of all three networks: convolution, normalisation, LeakyReLU."""

from math import gcd
from typing import TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from discopatch.model.fused import SLOPE, fused_block
from discopatch.model.patchnorm import PatchNorm2d, patch_statistics
from discopatch.model.presets import Normalisation

M = TypeVar("M", bound=nn.Module)


def halving(inputs: int, outputs: int) -> nn.Conv2d:
    """A convolution that halves height and width."""
    return nn.Conv2d(inputs, outputs, kernel_size=3, stride=2, padding=1)


def doubling(inputs: int, outputs: int) -> nn.ConvTranspose2d:
    """A transposed convolution that doubles height and width."""
    return nn.ConvTranspose2d(inputs, outputs, kernel_size=3, stride=2, padding=1, output_padding=1)


def make_norm(kind: Normalisation, channels: int) -> nn.Module:
    """The normalisation layer of that kind; every kind but `patch` is torch's own."""
    match kind:
        case "patch":
            return PatchNorm2d(channels)
        case "batch":
            return nn.BatchNorm2d(channels)
        case "group":
            return nn.GroupNorm(gcd(32, channels), channels)
        case "instance":
            return nn.InstanceNorm2d(channels, affine=True)


def channels_last(network: M) -> M:
    """The network with its kernels in the memory order in which patches are cut, so that nothing is turned round."""
    return network.to(memory_format=torch.channels_last)  # type: ignore[call-overload,no-any-return]  # untyped in torch


class Block(nn.Module):
    """Convolution, normalisation, LeakyReLU."""

    def __init__(self, conv: nn.Conv2d | nn.ConvTranspose2d, norm: nn.Module) -> None:
        super().__init__()
        self.conv, self.norm = conv, norm
        self.fused = False

    def forward(self, x: Tensor, patches: int | None = None) -> Tensor:
        """(B, C, H, W) -> (B, C', H', W'); `patches` is the group size of a PatchNorm2d."""
        if self.fused and self.training:
            return fused_block(self.conv, self.norm, x, patches)
        x = self.conv(x)
        x = self.norm(x, patches) if isinstance(self.norm, PatchNorm2d) else self.norm(x)
        return F.leaky_relu(x, SLOPE)

    def inspect(self, x: Tensor, patches: int | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """The plain `forward`, and the mean and variance of each group before the normalisation."""
        x = self.conv(x)
        mean, variance = patch_statistics(x, patches)
        x = self.norm.normalise(x, mean, variance) if isinstance(self.norm, PatchNorm2d) else self.norm(x)
        return F.leaky_relu(x, SLOPE), mean, variance
