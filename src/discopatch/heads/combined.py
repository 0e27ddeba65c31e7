"""The combined head: the soft maximum of z-scores over normal images."""

from typing import ClassVar, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from discopatch.calibration import fold_numbers
from discopatch.encoders import Features, FeatureSizes
from discopatch.errors import WeightsError
from discopatch.heads.base import LARGEST, NO_SHIFTS, Array, GroupNumbers, Head, ProbeShifts, Shapes
from discopatch.heads.gaussian import ShrunkGaussian
from discopatch.heads.statistics import StatisticsHead, check_statistics

ONE_SIGMA = 0.8413  # the quantile one standard deviation above a normal distribution's median
SHARPNESS = (
    1.0  # of the soft maximum: at 1 small z-scores of several components add up, at infinity only the largest counts
)


class CombinedHead(Head):
    """The soft maximum of up to three components, each a z-score over normal images.

    - The logit: minus the mean logit, the paper's score. Features of other networks have none.
    - The distance: the statistics head, for changes of any kind.
    - The probes: the statistics along the direction in which a known change, such as a blur, moves normal images (a
      matched filter). A small change stands out along its own direction, and not in a distance over thousands of
      dimensions. The largest of all probes is one component.

    Centre and spread of each come from normal images that it was not fitted on, fold by fold.
    """

    shapes: ClassVar[Shapes] = {
        "filters": ("probes", "statistics"),
        "centres": ("components",),
        "spreads": ("components",),
        "maximum": ("maximum",),
    }
    positive = ("spreads",)

    filters: Tensor
    centres: Tensor  # of the logit, if there are logits, the distance and each probe
    spreads: Tensor
    maximum: Tensor  # (2,): centre and spread of the largest probe; (0,) without probes

    def __init__(self) -> None:
        super().__init__()
        self.statistics = StatisticsHead()

    def lengths(self) -> dict[str, int]:
        return {"probes": len(self.probes), "maximum": 2 if self.probes else 0}

    def derive(self) -> None:
        if len(self.centres) - len(self.probes) not in (1, 2):
            raise WeightsError(f"{len(self.centres)} components do not belong to {len(self.probes)} probes")
        if len(self.maximum) and not self.maximum[1] >= 1 / LARGEST:
            raise WeightsError("maximum has a spread that is not above 0")

    def check_sizes(self, sizes: FeatureSizes) -> None:
        self.statistics.check_sizes(sizes)
        check_statistics(self.filters.shape[1], sizes)
        if len(self.centres) != 1 + sizes.logits + len(self.probes):
            raise WeightsError(f"{len(self.centres)} components do not belong to its networks")

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
            part = self._without_scale(features.select(fold != number), shifts)
            held_out[fold == number] = part.evaluate(part.raw_components, features.select(fold == number))
        centres, spreads = centre_and_spread(held_out)
        probes = ((held_out - centres) / spreads)[:, singles:]
        maximum = np.concatenate(centre_and_spread(probes.max(1, keepdims=True))) if shifts else np.empty(0)
        head = self._without_scale(features, shifts).hold(centres=centres, spreads=spreads, maximum=maximum)
        z = (torch.from_numpy(held_out) - head.centres) / head.spreads
        return head, soft_maximum(head.joined(z)).numpy()

    def _without_scale(self, features: Features, shifts: ProbeShifts) -> Self:
        head = type(self)()
        head.probes = tuple(shifts)
        head.statistics = self.statistics.fit(features)
        filters = [matched_filter(head.statistics.gaussian, moved) for moved in shifts.values()]
        return head.hold(filters=np.stack(filters) if filters else np.empty((0, features.statistics.shape[1])))

    def raw_components(self, logits: Tensor, statistics: Tensor) -> Tensor:
        """(B, 2 + probes): minus the mean logit, if there are logits, the distance, the response of each filter."""
        distance = self.statistics(logits, statistics)[:, None]
        responses = (statistics.double() - self.statistics.gaussian.mean) @ self.filters.T
        logit = [-logits.double().mean(1, keepdim=True)] if logits.shape[1] else []
        return torch.cat([*logit, distance, responses], 1)

    def z_scores(self, logits: Tensor, statistics: Tensor) -> Tensor:
        """(B, 2 + probes), or (B, 1 + probes) without logits: the raw components as z-scores."""
        return (self.raw_components(logits, statistics) - self.centres) / self.spreads

    def components(self, logits: Tensor, statistics: Tensor) -> Tensor:
        """(B, 1 to 3): the z-scores of the logit, if there are logits, of the distance, and of the largest probe."""
        return self.joined(self.z_scores(logits, statistics))

    def joined(self, z: Tensor) -> Tensor:
        """The z-scores with the largest probe in place of all probes."""
        if not len(self.maximum):
            return z
        (centre, spread), singles = self.maximum, z.shape[1] - len(self.probes)
        return torch.cat([z[:, :singles], (z[:, singles:].amax(1, keepdim=True) - centre) / spread], 1)

    def forward(self, logits: Tensor, statistics: Tensor) -> Tensor:
        return soft_maximum(self.components(logits, statistics))


def centre_and_spread(values: Array, upper: float = ONE_SIGMA, sigmas: float = 1.0) -> tuple[Array, Array]:
    """Median, and one standard deviation from a quantile above it, column by column, both robust to outliers.

    The quantile `upper` is `sigmas` standard deviations above a normal distribution's median. NaN are left out. The
    spread is 1 of columns that do not vary, and the centre 0 of columns without values.
    """
    centres, spreads = np.zeros(values.shape[1]), np.ones(values.shape[1])
    for column, found in enumerate(values.T):
        known = found[~np.isnan(found)]
        if len(known):
            centres[column], above = np.quantile(known, [0.5, upper])
            if above > centres[column]:
                spreads[column] = (above - centres[column]) / sigmas
    return centres, spreads


def soft_maximum(components: Tensor) -> Tensor:
    """(B, components) to (B,): log(sum(exp(sharpness * z))) / sharpness.

    The largest is subtracted before the exponential, which would overflow in float32.
    """
    largest = components.amax(1, keepdim=True)
    total = (SHARPNESS * (components - largest)).exp().sum(1)
    return largest[:, 0] + total.log() / SHARPNESS


def matched_filter(gaussian: ShrunkGaussian, shifts: NDArray[np.floating]) -> Array:
    """The linear function (d,) that separates a change from normal images best, from its shifts (images, d).

    Every image has the same weight. A change that moves nothing, such as saturation of grey images, has a filter of
    zeros.
    """
    scale = gaussian.scale.numpy()
    standard = shifts / scale
    length = np.linalg.norm(standard, axis=1, keepdims=True)
    direction = (standard / np.maximum(length, 1e-9)).mean(0) * scale
    gradient = gaussian.gradient(direction)
    strength = gradient @ direction
    return gradient / np.sqrt(strength) if strength > 1e-12 else np.zeros_like(gradient)
