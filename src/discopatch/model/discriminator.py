"""The discriminator: all that is left of the model when it scores."""

from dataclasses import dataclass
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from discopatch.errors import ParameterError
from discopatch.model.config import Architecture
from discopatch.model.layers import Block, halving, make_norm

SMALLEST_VARIANCE = 1e-6  # below this a channel is flat, and the logarithm only measures rounding


@dataclass(frozen=True)
class DiscriminatorOutput:
    """The logits and, layer by layer, what they were computed from."""

    logits: Tensor  # (B,) of patches, (B, rows, columns) of larger images
    features: list[Tensor]  # after each block, (B, C, H, W)
    means: list[Tensor | None]  # before each normalisation, (groups, C)
    variances: list[Tensor | None]  # before each normalisation, (groups, C), biased

    @property
    def statistics(self) -> Tensor:
        """(groups, 2 x channels): layer by layer its means, then its log-variances."""
        parts = []
        for mean, variance in zip(self.means, self.variances, strict=True):
            if mean is None or variance is None:
                raise ParameterError("the pass kept no statistics: call the discriminator with statistics=True")
            parts += [mean, (variance + SMALLEST_VARIANCE).log()]
        return torch.cat(parts, 1)


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

    def forward(self, x: Tensor, group: int | None = None, *, statistics: bool = False) -> DiscriminatorOutput:
        """(B, 3, S, S) in [-1, 1]; with PatchNorm, every `group` successive patches are normalised together.

        Without a group size the whole batch is one group. `statistics` asks for those of the output, with gradients.
        """
        layers = []
        for block in self.blocks:
            layers.append(block(x, group, statistics=statistics))
            x = layers[-1].features
        features, means, variances = ([getattr(layer, name) for layer in layers] for name in layers[0]._fields)
        return DiscriminatorOutput(self.classify(x), features, means, variances)

    def classify(self, features: Tensor) -> Tensor:
        """The last feature map (B, C, H, W) to logits (B,).

        The map of a larger image holds a patch at every cell: all of them are classified at once, (B, rows, columns),
        with padding at the border of the image where patches that are cut out have it around each.
        """
        cells = self.architecture.cells
        if features.shape[-2:] == (cells, cells):
            logits: Tensor = self.head(features.flatten(1))
            return logits.squeeze(1)
        return F.conv2d(features, self.head.weight.view(1, -1, cells, cells), self.head.bias).squeeze(1)
