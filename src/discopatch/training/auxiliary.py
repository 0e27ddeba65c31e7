"""The discriminator with the further outputs that exist in training alone."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple, Self

import torch
from torch import Tensor, nn

from discopatch.corruptions.degradations import DEGRADATIONS
from discopatch.model import Architecture, Discriminator, DiscriminatorOutput
from discopatch.training.config import TrainingConfig
from discopatch.training.distill import MAPS, POOLED, STATISTICS, Targets, kind_of


class AuxiliaryOutput(NamedTuple):
    """The logits of a batch, and the auxiliary outputs where they were asked for."""

    logits: Tensor  # (B,) of patches, (B, rows, columns) of larger images
    classes: Tensor | None = None  # logits of no degradation and of each degradation, (B, 1 + D)
    predictions: Targets | None = None  # of the teachers' outputs; a map may have another grid
    features: list[Tensor] | None = None  # after each layer


class AuxiliaryDiscriminator(nn.Module):
    """A discriminator with a classifier of degradations and linear predictions of what teachers give.

    The classifier keeps the degradations apart in the features: a discriminator that only learns real from fake may map
    all of them to one. The predictions make its statistics and maps hold the information that the teachers' do. None of
    these layers is saved with the discriminator.
    """

    def __init__(
        self, discriminator: Discriminator, *, degradations: int = 0, targets: Mapping[str, int] | None = None
    ) -> None:
        """`targets` has the number of channels of every output that is predicted."""
        super().__init__()
        self.discriminator = discriminator
        architecture = discriminator.architecture
        self.classifier = nn.Linear(architecture.hidden[-1], 1 + degradations) if degradations else None
        self.predictors = nn.ModuleDict(
            {target: predictor(architecture, kind_of(target), width) for target, width in (targets or {}).items()}
        )

    @classmethod
    def from_config(
        cls, discriminator: Discriminator, config: TrainingConfig, *, targets: Mapping[str, int] | None = None
    ) -> Self:
        """The auxiliary layers that the config gives weight to, initialised by its seed."""
        degradations = len(DEGRADATIONS) if config.weight_degraded and config.weight_classified else 0
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(config.seed)
            return cls(discriminator, degradations=degradations, targets=targets)

    def forward(self, x: Tensor, group: int | None = None, *, auxiliary: bool = False) -> AuxiliaryOutput:
        """The discriminator's logits and, with `auxiliary`, what the further layers say of whole images.

        Several devices train through `forward` alone: whatever takes part in learning has to pass here.
        """
        if not auxiliary:
            with running_statistics(self.discriminator):
                return AuxiliaryOutput(self.discriminator(x, group).logits)
        output: DiscriminatorOutput = self.discriminator(x, group, statistics=bool(self.predictors))
        pooled = output.features[-1].float().mean((2, 3))
        classes = None if self.classifier is None else self.classifier(pooled)
        predictions = {}
        for target, layer in self.predictors.items():
            kind = kind_of(target)
            if kind in MAPS:
                predictions[target] = layer(output.features[layer_of(self.discriminator.architecture, kind)])
            else:
                predictions[target] = layer(pooled if kind == POOLED else output.statistics)
        return AuxiliaryOutput(output.logits, classes, predictions, output.features)


def predictor(architecture: Architecture, kind: str, width: int) -> nn.Module:
    """A linear layer to so many channels: from the statistics, from the last features averaged, or cell by cell."""
    if kind in MAPS:
        return nn.Conv2d(architecture.hidden[layer_of(architecture, kind)], width, kernel_size=1)
    inputs = {STATISTICS: architecture.statistics, POOLED: architecture.hidden[-1]}[kind]
    return nn.Linear(inputs, width)


def layer_of(architecture: Architecture, kind: str) -> int:
    """The number of the layer whose map is as fine as one of that kind, or of the coarsest there is."""
    return min(MAPS[kind].bit_length() - 2, len(architecture.hidden) - 1)


@contextmanager
def running_statistics(discriminator: Discriminator) -> Iterator[None]:
    """Within, the BatchNorm of a residual network normalises as in scoring, and learns no statistics.

    Real and fake patches would else be told apart, or not, by what each batch has in common, and patches would leave
    their mark on the statistics of whole images.
    """
    residual = discriminator.architecture.kind == "residual" and discriminator.training
    norms = [each for each in discriminator.modules() if residual and isinstance(each, nn.BatchNorm2d)]
    for norm in norms:
        norm.eval()
    try:
        yield
    finally:
        for norm in norms:
            norm.train()
