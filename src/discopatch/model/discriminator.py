"""The discriminator, the one network that scoring needs."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from discopatch.model.config import Architecture
from discopatch.model.layers import NORMALISATIONS, SMALLEST_VARIANCE, Block, InvertedLayer, halving, layer_plan


@dataclass(frozen=True)
class DiscriminatorOutput:
    """Logits, and features and statistics of every layer."""

    logits: Tensor  # (B,) of patches, (B, rows, columns) of larger images
    features: list[Tensor]  # after each layer, (B, C, H, W)
    layer_statistics: list[Tensor]  # before the normalisation, of inverted layers after the last block

    @property
    def statistics(self) -> Tensor:
        """(groups, 2 x channels): layer by layer its means, then its log-variances; needs `statistics=True`."""
        return torch.cat(self.layer_statistics, 1)


def channel_statistics(maps: Sequence[Tensor]) -> Tensor:
    """Maps (B, C, H, W) or (B, C, positions) -> (B, 2 x all channels): map by map its means, then its log-variances."""
    found = []
    for one in maps:
        variance, mean = torch.var_mean(one.flatten(2), dim=2, correction=0)
        found += [mean, torch.log(variance + SMALLEST_VARIANCE)]
    return torch.cat(found, dim=1)


class Discriminator(nn.Module):
    """Patches to logits: high for real, low for reconstructed or generated. No sigmoid: it saturates in float.

    A plain network is the paper's: layers that halve the resolution, and one linear layer over a patch's last map. An
    inverted network has several blocks in each layer; every cell of its second to last map is classified, and the logit
    of a patch is the mean over its cells.
    """

    def __init__(self, architecture: Architecture) -> None:
        super().__init__()
        self.architecture = architecture
        self.head: nn.Linear | nn.Conv2d
        if architecture.kind == "plain":
            self.blocks = nn.ModuleList(
                Block(halving(inputs, outputs), NORMALISATIONS[architecture.normalisation](outputs))
                for inputs, outputs in pairwise((3, *architecture.hidden))
            )
            self.head = nn.Linear(architecture.flat, 1)
        else:
            inputs = (2 * architecture.hidden[0], *architecture.hidden)  # of each layer, and of what follows
            self.blocks = nn.ModuleList(
                InvertedLayer(inputs[number], plan, stem=number == 0)
                for number, plan in enumerate(layer_plan(architecture.hidden))
            )
            self.head = nn.Conv2d(architecture.hidden[architecture.classified], 1, kernel_size=1)

    def forward(self, x: Tensor, group: int | None = None, *, statistics: bool = False) -> DiscriminatorOutput:
        """(B, 3, S, S) in [-1, 1]; PatchNorm normalises every `group` consecutive patches together.

        Without a group size the whole batch is one group. With `statistics` the output has them, with gradients.
        """
        features: list[Tensor] = []
        found: list[Tensor] = []
        for block in self.blocks:
            x, of_layer = block(x, group, statistics=statistics)
            features.append(x)
            found += [of_layer] if statistics else []
        return DiscriminatorOutput(self.classify(features[self.architecture.classified]), features, found)

    def classify(self, features: Tensor) -> Tensor:
        """Classified feature map (B, C, H, W) -> logits (B,).

        The map of a larger image holds a patch at every cell: all of them are classified at once, (B, rows, columns).
        Padding is then at the border of the image rather than around each patch.
        """
        cells = self.architecture.cells
        if not isinstance(self.head, nn.Linear):
            dense: Tensor = self.head(features).squeeze(1)
            return dense.mean((1, 2)) if dense.shape[-2:] == (2 * cells, 2 * cells) else dense
        if features.shape[-2:] == (cells, cells):
            logits: Tensor = self.head(features.flatten(1))
            return logits.squeeze(1)
        return F.conv2d(features, self.head.weight.view(1, -1, cells, cells), self.head.bias).squeeze(1)
