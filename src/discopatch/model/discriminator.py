"""The discriminator: all that is left of the model when it scores."""

from dataclasses import dataclass
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from discopatch.model.blocks import Block, halving, make_norm
from discopatch.model.presets import Architecture

SMALLEST_VARIANCE = 1e-6  # below this a channel is flat, and the logarithm only measures rounding


@dataclass(frozen=True)
class Inspection:
    """What the discriminator saw on its way to the logits, layer by layer."""

    logits: Tensor  # (B,) of patches, (B, rows, columns) of larger pictures
    features: list[Tensor]  # after each block, (B, C, H, W)
    means: list[Tensor]  # before each normalisation, (groups, C)
    variances: list[Tensor]  # before each normalisation, (groups, C), biased

    @property
    def statistics(self) -> Tensor:
        """(groups, 2 x channels): layer by layer its means, then its log-variances."""
        layers = zip(self.means, self.variances, strict=True)
        return torch.cat(
            [part for mean, variance in layers for part in (mean, (variance + SMALLEST_VARIANCE).log())], 1
        )


class Discriminator(nn.Module):
    """Patches to logits: high for real, low for reconstructed or generated. No sigmoid: it saturates in float."""

    def __init__(self, architecture: Architecture) -> None:
        super().__init__()
        self.architecture = architecture
        widths = (3, *architecture.hidden)
        self.blocks = nn.ModuleList(
            Block(halving(inputs, outputs), make_norm(architecture.normalisation, outputs))
            for inputs, outputs in pairwise(widths)
        )
        self.head = nn.Linear(architecture.flat, 1)

    def forward(self, x: Tensor, patches: int | None = None) -> Tensor:
        """(B, 3, S, S) in [-1, 1] -> (B,); of larger pictures (B, rows, columns), see `judge`.

        With PatchNorm, every `patches` successive patches are normalised together; without a number, the whole batch.
        """
        return self.judge(self.features(x, patches))

    def features(self, x: Tensor, patches: int | None = None) -> Tensor:
        """The last feature map, (B, C, H, W)."""
        for block in self.blocks:
            x = block(x, patches)
        return x

    def judge(self, features: Tensor) -> Tensor:
        """The last feature map (B, C, H, W) -> logits (B,).

        The map of a larger picture holds a patch at every cell: one pass judges all of them, (B, rows, columns), with
        padding at the border of the picture where patches that are cut out have it around each.
        """
        cells = self.architecture.cells
        if features.shape[-2:] == (cells, cells):
            logits: Tensor = self.head(features.flatten(1))
            return logits.squeeze(1)
        return F.conv2d(features, self.head.weight.view(1, -1, cells, cells), self.head.bias).squeeze(1)

    def inspect(self, x: Tensor, patches: int | None = None) -> Inspection:
        """The logits of `forward` with the features and the batch statistics of every layer."""
        features, means, variances = [], [], []
        for block in self.blocks:
            assert isinstance(block, Block)
            x, mean, variance = block.inspect(x, patches)
            features.append(x)
            means.append(mean)
            variances.append(variance)
        return Inspection(self.judge(x), features, means, variances)
