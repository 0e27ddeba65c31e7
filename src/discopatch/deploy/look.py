"""What the discriminator shows of a picture, written for runtimes that keep channels first."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from discopatch.model import Discriminator, Inspection, PatchNorm2d
from discopatch.model.blocks import Block
from discopatch.model.fused import SLOPE
from discopatch.patches import to_unit


class Look(nn.Module):
    """Where the discriminator looks: at whole pictures, or at patches at fixed `corners`, `group` of them an image."""

    where: Tensor | None

    def __init__(self, network: Discriminator, *, size: int, corners: Tensor | None = None, group: int = 1) -> None:
        super().__init__()
        self.network, self.group = network, group
        self.patch_size = network.architecture.patch_size
        where = None if corners is None else places(corners, size=size, patch_size=self.patch_size)
        self.register_buffer("where", where)

    def forward(self, pixels: Tensor) -> tuple[Tensor, Tensor]:
        """(B, size, size, 3) in uint8 -> logits (images, places) and statistics (images, 2 x channels)."""
        seen = self.inspect(pixels)
        return seen.logits.reshape(seen.means[0].shape[0], -1), seen.statistics

    def inspect(self, pixels: Tensor) -> Inspection:
        """The same with what is seen on the way, layer by layer."""
        return inspect(self.network, to_unit(self.pictures(pixels)), self.group)

    def pictures(self, pixels: Tensor) -> Tensor:
        """(B, size, size, 3) -> what passes the network, (B x patches, 3, H, W)."""
        if self.where is not None:
            pixels = pixels.flatten(1, 2)[:, self.where].reshape(-1, self.patch_size, self.patch_size, 3)
        return pixels.permute(0, 3, 1, 2)


def places(corners: Tensor, *, size: int, patch_size: int) -> Tensor:
    """(patches, 2) -> where all their pixels lie in a picture laid out flat: patches at fixed places are one gather."""
    reach = torch.arange(patch_size)
    rows, columns = corners[:, 0, None] + reach, corners[:, 1, None] + reach
    return (rows[:, :, None] * size + columns[:, None, :]).flatten()


def inspect(network: Discriminator, x: Tensor, group: int) -> Inspection:
    """`Discriminator.inspect` without turning every activation round for its statistics."""
    features, means, variances = [], [], []
    for block in network.blocks:
        assert isinstance(block, Block)
        x = block.conv(x)
        grouped = x.unflatten(0, (-1, group))  # (images, group, C, H, W)
        mean = average(grouped)
        centred = grouped - mean
        variance = average(centred * centred)
        if isinstance(block.norm, PatchNorm2d):
            scale = block.norm.weight[:, None, None] * torch.rsqrt(variance + block.norm.eps)
            x = (centred * scale + block.norm.bias[:, None, None]).flatten(0, 1)
        else:
            x = block.norm(x)
        x = F.leaky_relu(x, SLOPE)
        features.append(x)
        means.append(mean.flatten(1))
        variances.append(variance.flatten(1))
    return Inspection(network.judge(x), features, means, variances)


def average(grouped: Tensor) -> Tensor:
    """(images, group, C, H, W) -> (images, 1, C, 1, 1).

    Row by row: some runtimes add up one number after the other, and thousands of equal ones would lose their digits.
    """
    return grouped.mean(4, keepdim=True).mean(3, keepdim=True).mean(1, keepdim=True)
