"""The paper's score, in two forms that order images alike except for saturation; neither has fitted parameters."""

from typing import Self

import torch
from torch import Tensor

from discopatch.encoders import Features, FeatureSizes
from discopatch.errors import WeightsError
from discopatch.heads.base import NO_SHIFTS, GroupNumbers, Head, ProbeShifts


class LogitHead(Head):
    """Minus the mean logit: the paper's order of images, without its saturation."""

    def fit(self, features: Features, shifts: ProbeShifts = NO_SHIFTS, *, groups: GroupNumbers = None) -> Self:
        return self

    def forward(self, logits: Tensor, statistics: Tensor) -> Tensor:
        return -logits.double().mean(1)

    def check_sizes(self, sizes: FeatureSizes) -> None:
        if not sizes.logits:
            raise WeightsError("it scores logits, and its networks have none")


class SigmoidHead(LogitHead):
    """The paper's score: one minus the mean probability of being real.

    It is computed as 1 - mean(sigmoid(logit)) = mean(sigmoid(-logit)), in float64, so that small scores keep their
    digits.
    """

    def forward(self, logits: Tensor, statistics: Tensor) -> Tensor:
        return torch.sigmoid(-logits.double()).mean(1)
