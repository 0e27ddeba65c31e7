"""The paper's score, in two forms that order images alike but for saturation; neither learns from normal images."""

from typing import Self

import torch
from torch import Tensor

from discopatch.encoders import Features
from discopatch.heads.base import NO_SHIFTS, GroupNumbers, Head, ProbeShifts


class LogitHead(Head):
    """Minus the mean logit: the paper's order of images, without its saturation."""

    def fit(self, features: Features, shifts: ProbeShifts = NO_SHIFTS, *, groups: GroupNumbers = None) -> Self:
        return self

    def forward(self, logits: Tensor, statistics: Tensor) -> Tensor:
        return -logits.double().mean(1)


class SigmoidHead(LogitHead):
    """The paper's score, one minus the mean probability of being real, written so that small scores keep their digits.

    1 - mean(sigmoid(logit)) = mean(sigmoid(-logit)), in float64, since sigmoids saturate.
    """

    def forward(self, logits: Tensor, statistics: Tensor) -> Tensor:
        return torch.sigmoid(-logits.double()).mean(1)
