"""The discriminator with the two further outputs that exist in training alone."""

from typing import NamedTuple, Self

import torch
from torch import Tensor, nn

from discopatch.corruptions.degradations import DEGRADATIONS
from discopatch.model import Discriminator, DiscriminatorOutput
from discopatch.training.config import TrainingConfig


class AuxiliaryOutput(NamedTuple):
    """The logits of a batch, and the auxiliary outputs where they were asked for."""

    logits: Tensor  # (B,) of patches, (B, rows, columns) of larger images
    classes: Tensor | None = None  # logits of no degradation and of each degradation, (B, 1 + D)
    statistics: Tensor | None = None  # the prediction of the teacher's statistics, (B, 2 x its channels)


class AuxiliaryDiscriminator(nn.Module):
    """A discriminator with a classifier of degradations and a linear prediction of a teacher's statistics.

    The classifier keeps the degradations apart in the features: a discriminator that only learns real from fake may map
    all of them to one. The prediction makes its statistics hold the information that the teacher's do. Neither layer is
    saved with the discriminator.
    """

    def __init__(self, discriminator: Discriminator, *, degradations: int = 0, teacher_statistics: int = 0) -> None:
        super().__init__()
        self.discriminator = discriminator
        hidden = discriminator.architecture.hidden
        self.classifier = nn.Linear(hidden[-1], 1 + degradations) if degradations else None
        self.predictor = nn.Linear(2 * sum(hidden), teacher_statistics) if teacher_statistics else None

    @classmethod
    def from_config(cls, discriminator: Discriminator, config: TrainingConfig, *, teacher_statistics: int = 0) -> Self:
        """The auxiliary layers that the config gives weight to, initialised by its seed."""
        degradations = len(DEGRADATIONS) if config.weight_degraded and config.weight_classified else 0
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(config.seed)
            return cls(discriminator, degradations=degradations, teacher_statistics=teacher_statistics)

    def forward(self, x: Tensor, group: int | None = None, *, auxiliary: bool = False) -> AuxiliaryOutput:
        """The discriminator's logits and, with `auxiliary`, what the further layers say of whole images.

        Several devices train through `forward` alone: whatever takes part in learning has to pass here.
        """
        with_statistics = auxiliary and self.predictor is not None
        output: DiscriminatorOutput = self.discriminator(x, group, statistics=with_statistics)
        classes = statistics = None
        if auxiliary and self.classifier is not None:
            classes = self.classifier(output.features[-1].float().mean((2, 3)))
        if auxiliary and self.predictor is not None:
            statistics = self.predictor(output.statistics)
        return AuxiliaryOutput(output.logits, classes, statistics)
