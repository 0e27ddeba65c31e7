"""The discriminator: all that is left of the model when it scores."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from discopatch.errors import ParameterError
from discopatch.model.config import Architecture
from discopatch.model.inverted import make_layers
from discopatch.model.layers import Block, halving, make_norm
from discopatch.model.residual import Stage, make_stem

SMALLEST_VARIANCE = 1e-6  # below this a channel is flat, and the logarithm only measures rounding


@dataclass(frozen=True)
class DiscriminatorOutput:
    """The logits and, layer by layer, what they were computed from."""

    logits: Tensor  # (B,) of patches, (B, rows, columns) of larger images
    features: list[Tensor]  # after each block, (B, C, H, W)
    means: list[Tensor | None]  # before each normalisation, of residual stages after the last, (groups, C)
    variances: list[Tensor | None]  # of the same, (groups, C), biased

    @property
    def statistics(self) -> Tensor:
        """(groups, 2 x channels): layer by layer its means, then its log-variances."""
        parts = []
        for mean, variance in zip(self.means, self.variances, strict=True):
            if mean is None or variance is None:
                raise ParameterError("the pass kept no statistics: call the discriminator with statistics=True")
            parts += [mean, (variance + SMALLEST_VARIANCE).log()]
        return torch.cat(parts, 1)


def channel_statistics(maps: Sequence[Tensor]) -> Tensor:
    """Maps (B, C, H, W) or (B, C, positions) -> (B, 2 x all channels): map by map its means, then its log-variances."""
    found = []
    for one in maps:
        variance, mean = torch.var_mean(one.flatten(2), dim=2, correction=0)
        found += [mean, torch.log(variance + SMALLEST_VARIANCE)]
    return torch.cat(found, dim=1)


class Discriminator(nn.Module):
    """Patches to logits: high for real, low for reconstructed or generated. No sigmoid: it saturates in float.

    A plain one is the paper's: layers that halve the resolution, and one linear layer over a patch's last map. A
    residual one has a stage of blocks in place of each layer but the first, an inverted one in place of each; every
    cell of the map before the last, which is finer, is classified by itself, and a patch by the mean over its cells.
    """

    def __init__(self, architecture: Architecture) -> None:
        super().__init__()
        self.architecture = architecture
        self.head: nn.Linear | nn.Conv2d
        if architecture.kind == "plain":
            self.blocks = nn.ModuleList(
                Block(halving(inputs, outputs), make_norm(architecture.normalisation, outputs))
                for inputs, outputs in pairwise((3, *architecture.hidden))
            )
            self.head = nn.Linear(architecture.flat, 1)
            return
        if architecture.kind == "inverted":
            self.blocks = make_layers(architecture.hidden)
        else:
            stages = (
                Stage(inputs, outputs, blocks=architecture.blocks, normalisation=architecture.normalisation)
                for inputs, outputs in pairwise(architecture.hidden)
            )
            self.blocks = nn.ModuleList((make_stem(architecture), *stages))
        self.head = nn.Conv2d(architecture.hidden[architecture.classified], 1, kernel_size=1)

    def forward(self, x: Tensor, group: int | None = None, *, statistics: bool = False) -> DiscriminatorOutput:
        """(B, 3, S, S) in [-1, 1]; with PatchNorm, every `group` successive patches are normalised together.

        Without a group size the whole batch is one group. `statistics` asks for those of the output, with gradients.
        """
        layers = []
        for block in self.blocks:
            layers.append(block(x, group, statistics=statistics))
            x = layers[-1].features
        features, means, variances = ([getattr(layer, name) for layer in layers] for name in layers[0]._fields)
        logits = self.classify(features[self.architecture.classified])
        return DiscriminatorOutput(logits, features, means, variances)

    def classify(self, features: Tensor) -> Tensor:
        """The feature map that is classified, (B, C, H, W), to logits (B,).

        The map of a larger image holds a patch at every cell: all of them are classified at once, (B, rows, columns),
        with padding at the border of the image where patches that are cut out have it around each.
        """
        cells = self.architecture.cells
        if not isinstance(self.head, nn.Linear):
            dense: Tensor = self.head(features).squeeze(1)
            return dense.mean((1, 2)) if dense.shape[-2:] == (2 * cells, 2 * cells) else dense
        if features.shape[-2:] == (cells, cells):
            logits: Tensor = self.head(features.flatten(1))
            return logits.squeeze(1)
        return F.conv2d(features, self.head.weight.view(1, -1, cells, cells), self.head.bias).squeeze(1)
