"""Heads over logits and statistics: the paper's score, the distance of the statistics, and both combined."""

from typing import ClassVar, Self

import numpy as np
import torch
from torch import Tensor

from discopatch.calibration import fold_numbers
from discopatch.encoders import Features, FeatureSizes
from discopatch.errors import WeightsError
from discopatch.heads.base import LARGEST, NO_SHIFTS, Array, GroupNumbers, Head, ProbeShifts, Shapes
from discopatch.heads.gaussian import ShrunkGaussian
from discopatch.heads.parts import centre_and_spread, soft_maximum


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


class StatisticsHead(Head):
    """A Gaussian over the mean and log-variance of every channel before each normalisation, over one image.

    The normalisation removes these from the image, so that the logit does not depend on them: level, contrast, noise.
    The score is the logarithm of the squared Mahalanobis distance per dimension, about 0 for normal images.
    """

    def __init__(self) -> None:
        super().__init__()
        self.gaussian = ShrunkGaussian()

    def fit(self, features: Features, shifts: ProbeShifts = NO_SHIFTS, *, groups: GroupNumbers = None) -> Self:
        head = type(self)()
        head.gaussian = ShrunkGaussian.fit(features.statistics)
        return head

    def forward(self, logits: Tensor, statistics: Tensor) -> Tensor:
        return self.gaussian.log_distance(statistics)

    def check_sizes(self, sizes: FeatureSizes) -> None:
        check_statistics(len(self.gaussian.mean), sizes)


class CombinedHead(Head):
    """The soft maximum of up to three parts, each a z-score over normal images.

    - The logit: minus the mean logit, the paper's score. Features of other networks have none.
    - The distance: the statistics head, for changes of any kind.
    - The probes: the statistics along the direction in which a known change, such as a blur, moves normal images (a
      matched filter). A small change stands out along its own direction, and not in a distance over thousands of
      dimensions. The largest of all probes is one part.

    Centre and spread of each come from normal images that it was not fitted on, fold by fold.
    """

    shapes: ClassVar[Shapes] = {
        "filters": ("probes", "statistics"),
        "centres": ("values",),  # of the logit, if there are logits, the distance and each probe
        "spreads": ("values",),
        "maximum": ("maximum",),  # centre and spread of the largest probe; empty without probes
    }
    positive = ("spreads",)

    def __init__(self) -> None:
        super().__init__()
        self.statistics = StatisticsHead()

    def derive(self) -> None:
        if len(self.centres) - len(self.probes) not in (1, 2) or len(self.maximum) != (2 if self.probes else 0):
            raise WeightsError(f"{len(self.centres)} values do not belong to {len(self.probes)} probes")
        if len(self.maximum) and not self.maximum[1] >= 1 / LARGEST:
            raise WeightsError("maximum has a spread that is not above 0")

    def check_sizes(self, sizes: FeatureSizes) -> None:
        self.statistics.check_sizes(sizes)
        check_statistics(self.filters.shape[1], sizes)
        if len(self.centres) != 1 + sizes.logits + len(self.probes):
            raise WeightsError(f"{len(self.centres)} values do not belong to its networks")

    def fit(self, features: Features, shifts: ProbeShifts = NO_SHIFTS, *, groups: GroupNumbers = None) -> Self:
        return self.fit_and_score(features, shifts, groups=groups)[0]

    def fit_and_score(
        self, features: Features, shifts: ProbeShifts = NO_SHIFTS, *, groups: GroupNumbers = None
    ) -> tuple[Self, Array]:
        """The fitted head, and the cross-fitted scores of the same images, fold by fold."""
        fold = fold_numbers(len(features.logits), groups)
        singles = 2 if features.logits.shape[1] else 1
        held_out = np.empty((len(fold), singles + len(shifts)))
        for number in np.unique(fold):
            part, own = self._without_scale(features.select(fold != number), shifts), fold == number
            with torch.inference_mode():
                held_out[own] = part.values(**part.tensors(features.select(own))).numpy()
        centres, spreads = centre_and_spread(held_out)
        largest = ((held_out - centres) / spreads)[:, singles:].max(1, keepdims=True, initial=-np.inf)
        maximum = np.concatenate(centre_and_spread(largest)) if shifts else np.empty(0)
        head = self._without_scale(features, shifts).hold(centres=centres, spreads=spreads, maximum=maximum)
        return head, soft_maximum(head.joined(torch.from_numpy(held_out))).numpy()

    def _without_scale(self, features: Features, shifts: ProbeShifts) -> Self:
        head = type(self)()
        head.probes = tuple(shifts)
        head.statistics = self.statistics.fit(features)
        return head.hold(filters=head.statistics.gaussian.matched_filters(shifts))

    def values(self, logits: Tensor, statistics: Tensor) -> Tensor:
        """(B, values): minus the mean logit, if there are logits, the distance, the response of each filter."""
        distance = self.statistics(logits, statistics)[:, None]
        responses = (statistics.double() - self.statistics.gaussian.mean) @ self.filters.T
        logit = [-logits.double().mean(1, keepdim=True)] if logits.shape[1] else []
        return torch.cat([*logit, distance, responses], 1)

    def joined(self, values: Tensor) -> Tensor:
        """(B, 1 to 3): the z-scores of the logit, if there are logits, of the distance, and of the largest probe."""
        z = (values - self.centres) / self.spreads
        if not len(self.maximum):
            return z
        (centre, spread), singles = self.maximum, z.shape[1] - len(self.probes)
        return torch.cat([z[:, :singles], (z[:, singles:].amax(1, keepdim=True) - centre) / spread], 1)

    def forward(self, logits: Tensor, statistics: Tensor) -> Tensor:
        return soft_maximum(self.joined(self.values(logits, statistics)))


def check_statistics(found: int, sizes: FeatureSizes) -> None:
    """Raises WeightsError unless the networks give so many statistics."""
    if found != sizes.statistics:
        raise WeightsError(f"it takes {found} statistics, and its networks give {sizes.statistics}")
