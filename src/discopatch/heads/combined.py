"""The combined head: every component as a z-score over normal images, so that none drowns another."""

from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from discopatch.calibration import fold_numbers
from discopatch.encoders import Features
from discopatch.errors import ParameterError, WeightsError
from discopatch.heads.base import (
    LARGEST,
    NO_SHIFTS,
    STATISTICS,
    Array,
    GroupNumbers,
    Head,
    ProbeShifts,
    Size,
    Stored,
    declare,
)
from discopatch.heads.gaussian import ShrunkGaussian
from discopatch.heads.statistics import StatisticsHead

PROBES, COMPONENTS, MAXIMUM = Size("probes", 1000), Size("components", 1002), Size("maximum", 2)
ONE_SIGMA = 0.8413  # the quantile one standard deviation above a normal distribution's median
SHARPNESS = 1.0  # of the soft maximum: at 1 small z-scores of several components add up, at infinity the largest counts


class CombinedHead(Head):
    """The soft maximum of up to three components, each a z-score over normal images.

    - The logit: the paper's score, from the side of what looks less real. Its other side, sketches that look more real
      than photos, is left to the distance, which tells them plainly. Features of other networks have none.
    - The distance: the statistics head, for changes of any kind.
    - The probes: the statistics along the direction in which a known change, such as a blur, moves normal images (a
      matched filter). A distance over thousands of dimensions drowns a small change in all of them; along its own
      direction it stands out. However many probes there are, they are one component: the largest of them.

    Centre and spread of each come from normal images that it was not fitted on, fold by fold.
    """

    filters: Tensor  # (probes, d)
    centres: Tensor  # (2 + probes,): of the logit, the distance and each probe; (1 + probes,) without logits
    spreads: Tensor  # the same
    maximum: Tensor  # (2,): centre and spread of the largest probe; (0,) without probes

    def __init__(self) -> None:
        super().__init__()
        self.statistics = StatisticsHead()
        declare(
            self,
            filters=Stored(PROBES, STATISTICS),
            centres=Stored(COMPONENTS),
            spreads=Stored(COMPONENTS, positive=True),
            maximum=Stored(MAXIMUM),
        )

    def sizes(self, statistics: int | None = None) -> dict[str, int]:
        count = len(self.probes)
        found = {**super().sizes(statistics), PROBES.name: count, MAXIMUM.name: 2 if count else 0}
        return found if statistics is None else {**found, COMPONENTS.name: 2 + count}

    def derive(self) -> None:
        if len(self.centres) - len(self.probes) not in (1, 2):
            raise WeightsError(f"{len(self.centres)} components do not belong to {len(self.probes)} probes")
        if len(self.maximum) and not self.maximum[1] >= 1 / LARGEST:
            raise WeightsError("maximum has a spread that is not above 0")

    def fit(self, features: Features, shifts: ProbeShifts = NO_SHIFTS, *, groups: GroupNumbers = None) -> Self:
        return self.fit_and_score(features, shifts, groups=groups)[0]

    def fit_and_score(
        self, features: Features, shifts: ProbeShifts = NO_SHIFTS, *, groups: GroupNumbers = None
    ) -> tuple[Self, Array]:
        """The fitted head, and the scores that the same images have where they are not fitted on, fold by fold."""
        fold = fold_numbers(len(features.logits), groups)
        singles = 2 if features.logits.shape[1] else 1
        held_out = np.empty((len(fold), singles + len(shifts)))
        for number in np.unique(fold):
            part = self._without_scale(features.select(fold != number), shifts)
            held_out[fold == number] = part.evaluate(part.raw_components, features.select(fold == number))
        head = self._without_scale(features, shifts).hold_scale(held_out)
        z = (torch.from_numpy(held_out) - head.centres) / head.spreads
        return head, soft_maximum(head.joined(z)).numpy()

    def hold_scale(self, held_out: Array) -> Self:
        """Takes centres and spreads from the components (images, 2 + probes) of images that were not fitted on."""
        centres, spreads = centre_and_spread(held_out)
        probes = ((held_out - centres) / spreads)[:, held_out.shape[1] - len(self.probes) :]
        maximum = np.concatenate(centre_and_spread(probes.max(1, keepdims=True))) if self.probes else np.empty(0)
        return self.hold(centres=centres, spreads=spreads, maximum=maximum)

    def _without_scale(self, features: Features, shifts: ProbeShifts) -> Self:
        head = type(self)()
        head.probes = tuple(shifts)
        head.statistics = self.statistics.fit(features)
        filters = [matched_filter(head.statistics.gaussian, moved) for moved in shifts.values()]
        return head.hold(filters=np.stack(filters) if filters else np.empty((0, features.statistics.shape[1])))

    def raw_components(self, logits: Tensor, statistics: Tensor) -> Tensor:
        """(B, 2 + probes): minus the mean logit, if there are logits, the distance, each matched filter's response."""
        distance = self.statistics(logits, statistics)[:, None]
        responses = (statistics.double() - self.statistics.gaussian.mean) @ self.filters.T
        logit = [-logits.double().mean(1, keepdim=True)] if logits.shape[1] else []
        return torch.cat([*logit, distance, responses], 1)

    def z_scores(self, logits: Tensor, statistics: Tensor) -> Tensor:
        """(B, 2 + probes), or (B, 1 + probes) without logits: the components as z-scores over normal images."""
        components = self.raw_components(logits, statistics)
        if components.shape[1] != len(self.centres):
            fitted, given = ("without", "with") if logits.shape[1] else ("with", "without")
            raise ParameterError(
                f"features {given} logits, and the head was fitted on features {fitted} them: take the same encoder"
            )
        return (components - self.centres) / self.spreads

    def components(self, logits: Tensor, statistics: Tensor) -> Tensor:
        """(B, 1 to 3): the z-scores of the logit, if there are logits, of the distance, and of the largest probe."""
        return self.joined(self.z_scores(logits, statistics))

    def joined(self, z: Tensor) -> Tensor:
        """The largest probe in the place of all."""
        if not len(self.maximum):
            return z
        (centre, spread), singles = self.maximum, z.shape[1] - len(self.probes)
        return torch.cat([z[:, :singles], (z[:, singles:].amax(1, keepdim=True) - centre) / spread], 1)

    def forward(self, logits: Tensor, statistics: Tensor) -> Tensor:
        return soft_maximum(self.components(logits, statistics))

    def probe_scores(self, features: Features) -> Array:
        self.check_fitted()
        z = self.evaluate(self.z_scores, features)
        return z[:, z.shape[1] - len(self.probes) :]


def centre_and_spread(values: Array, upper: float = ONE_SIGMA, sigmas: float = 1.0) -> tuple[Array, Array]:
    """Median, and one standard deviation by the quantile above it, column by column; outliers do not reach either.

    `upper` is so many standard deviations above a normal distribution's median. NaN are left out; without other values,
    and where they do not spread, the centre is 0 or theirs, and the spread 1.
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

    The largest is taken out before the exponential, which float32 could not hold.
    """
    largest = components.amax(1, keepdim=True)
    total = (SHARPNESS * (components - largest)).exp().sum(1)
    return largest[:, 0] + total.log() / SHARPNESS


def matched_filter(gaussian: ShrunkGaussian, shifts: NDArray[np.floating]) -> Array:
    """The linear function (d,) that tells a change from normal images best, from its shifts (images, d).

    Every image counts once, however far it moved; a change that moves nothing, as colours do on grey images, has a
    filter of zeros.
    """
    scale = gaussian.scale.numpy()
    standard = shifts / scale
    length = np.linalg.norm(standard, axis=1, keepdims=True)
    direction = (standard / np.maximum(length, 1e-9)).mean(0) * scale
    gradient = gaussian.gradient(direction)
    strength = gradient @ direction
    return gradient / np.sqrt(strength) if strength > 1e-12 else np.zeros_like(gradient)
