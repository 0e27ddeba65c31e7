"""The combined head: every kind of evidence on one scale, so that none drowns another."""

from dataclasses import dataclass, field, replace
from typing import Self

import numpy as np
from numpy.typing import NDArray

from discopatch.files import below
from discopatch.scoring.evidence import Displacements, Evidence
from discopatch.scoring.gaussian import ShrunkGaussian
from discopatch.scoring.heads import Array, Arrays
from discopatch.scoring.statistics import StatisticsHead

FOLDS = 5
ONE_SIGMA = 0.8413  # the quantile one standard deviation above a normal distribution's median
SHARPNESS = (
    1.0  # of the soft maximum: at 1 small surprises of several kinds add up, at infinity only the largest counts
)


@dataclass(frozen=True, eq=False)
class CombinedHead:
    """The soft maximum of three voices: the surprise of each kind of evidence, in standard deviations of normal images.

    - The logit: the paper's score, from the side of what looks less real. Its other side, sketches that look more real
      than photos, is left to the statistics, which see it plainly.
    - The distance: the statistics head, for changes of any kind.
    - The filters: the statistics along the direction in which a known change, such as a blur, moves normal images. A
      distance over thousands of dimensions drowns a small change in all of them; along its own direction it stands out.
      However many there are, they have one voice: the largest of their answers.

    Each part is standardised by what it gives for normal images that it was not fitted on, fold by fold.
    """

    statistics: StatisticsHead = field(default_factory=StatisticsHead)
    names: tuple[str, ...] = ()
    filters: Array = field(default_factory=lambda: np.empty((0, 0)))  # (changes, d)
    centres: Array = field(default_factory=lambda: np.empty(0))  # (2 + changes,)
    spreads: Array = field(default_factory=lambda: np.empty(0))  # (2 + changes,)
    largest: Array = field(default_factory=lambda: np.empty(0))  # (2,): where the largest answer of the filters lies

    def fit(self, normal: Evidence, displacements: Displacements) -> Self:
        """The Gaussian, the directions, and the scale of each part on images held out from both."""
        fold = np.arange(len(normal.logits)) % FOLDS
        held_out = np.empty((len(fold), 2 + len(displacements)))
        for number in range(FOLDS):
            there = self._without_scale(normal.of(fold != number), displacements)
            held_out[fold == number] = there.parts(normal.of(fold == number))
        centres, spreads = centre_and_spread(held_out)
        answers = ((held_out - centres) / spreads)[:, 2:]
        largest = (
            np.concatenate(centre_and_spread(answers.max(1, keepdims=True))) if len(displacements) else np.empty(0)
        )
        fitted = self._without_scale(normal, displacements)
        return replace(fitted, centres=centres, spreads=spreads, largest=largest)

    def _without_scale(self, normal: Evidence, displacements: Displacements) -> Self:
        statistics = StatisticsHead().fit(normal, displacements)
        rows = [matched_filter(statistics.fitted, moved) for moved in displacements.values()]
        filters = np.stack(rows) if rows else np.empty((0, normal.statistics.shape[1]))
        return type(self)(statistics, tuple(displacements), filters)

    def parts(self, evidence: Evidence) -> Array:
        """(images, 2 + changes): minus the mean logit, the distance, and each filter's answer."""
        deviations = evidence.statistics - self.statistics.fitted.mean
        logit = -evidence.logits.astype(np.float64).mean(1)
        return np.column_stack([logit, self.statistics.score(evidence), deviations @ self.filters.T])

    def surprises(self, evidence: Evidence) -> Array:
        """The parts in standard deviations of normal images."""
        result: Array = (self.parts(evidence) - self.centres) / self.spreads
        return result

    def voices(self, evidence: Evidence) -> Array:
        """(images, 3), or 2 where no changes are known: the logit, the distance, the largest answer of the filters."""
        surprises = self.surprises(evidence)
        if not self.names:
            return surprises
        centre, spread = self.largest
        return np.column_stack([surprises[:, :2], (surprises[:, 2:].max(1) - centre) / spread])

    def score(self, evidence: Evidence) -> Array:
        """The soft maximum of the voices."""
        return soft_maximum(self.voices(evidence))

    def changes(self, evidence: Evidence) -> Array:
        """(images, changes)."""
        return self.surprises(evidence)[:, 2:]

    def arrays(self) -> Arrays:
        """The Gaussian's, and our own; the names of the changes travel in the keys."""
        found = {f"statistics/{name}": value for name, value in self.statistics.arrays().items()}
        found |= {f"filters/{place:03d}/{name}": row for place, (name, row) in enumerate(self._named_filters())}
        return {**found, "centres": self.centres, "spreads": self.spreads, "largest": self.largest}

    def _named_filters(self) -> list[tuple[str, Array]]:
        return list(zip(self.names, self.filters, strict=True))

    @classmethod
    def from_arrays(cls, arrays: Arrays) -> Self:
        """The inverse of `arrays`."""
        keys = sorted(name for name in arrays if name.startswith("filters/"))
        filters = np.array([arrays[key] for key in keys], np.float64).reshape(len(keys), -1)
        names = tuple(key.split("/", 2)[2] for key in keys)
        statistics = StatisticsHead.from_arrays(below(arrays, "statistics"))
        scales = (arrays[name] for name in ("centres", "spreads", "largest"))
        return cls(statistics, names, filters, *scales)  # type: ignore[arg-type]


def centre_and_spread(values: Array) -> tuple[Array, Array]:
    """Median and one standard deviation above it, column by column; outliers do not reach either."""
    centres, above = np.quantile(values, [0.5, ONE_SIGMA], axis=0)
    return centres, np.where(above > centres, above - centres, 1.0)


def soft_maximum(surprises: Array) -> Array:
    """(images, voices) -> (images,): log of the sum of exp(sharpness x surprise), over sharpness."""
    largest = surprises.max(1, keepdims=True)
    summed = np.exp(SHARPNESS * (surprises - largest)).sum(1, keepdims=True)
    result: Array = (largest + np.log(summed) / SHARPNESS)[:, 0]
    return result


def matched_filter(gaussian: ShrunkGaussian, moved: NDArray[np.floating]) -> Array:
    """(images, d) -> (d,): the linear function that tells the change from normal images best, all of one variance.

    Every image has one say, however far it moved; a change that moves nothing, as colours do on grey, has no filter.
    """
    standard = moved / gaussian.scale
    length = np.linalg.norm(standard, axis=1, keepdims=True)
    direction = (standard / np.maximum(length, 1e-9)).mean(0) * gaussian.scale
    pull: Array = gaussian.pull(gaussian.mean + direction[None])[0]
    strength = pull @ direction
    return pull / np.sqrt(strength) if strength > 1e-12 else np.zeros_like(pull)
