"""Heads: what the discriminator shows of an image becomes one number, higher for more out-of-distribution."""

from collections.abc import Mapping, Sequence
from typing import Protocol, Self

import numpy as np
from numpy.typing import NDArray

from discopatch.scoring.evidence import Displacements, Evidence

Array = NDArray[np.float64]
Arrays = Mapping[str, NDArray[np.floating]]


class Head(Protocol):
    """A new head is one small class with these; what it learns from normal images is a few named arrays."""

    def fit(self, normal: Evidence, displacements: Displacements) -> Self:
        """Learns what is normal; a head that has nothing to learn returns itself."""

    def score(self, evidence: Evidence) -> Array:
        """(images,), each from its own evidence alone."""

    def changes(self, evidence: Evidence) -> Array:
        """(images, names): how much each looks like each known change, in standard deviations of normal images."""

    @property
    def names(self) -> Sequence[str]:
        """The known changes in words; a head need not know any."""

    def arrays(self) -> Arrays:
        """What it has learnt, to be stored."""

    @classmethod
    def from_arrays(cls, arrays: Arrays) -> Self:
        """The inverse of `arrays`."""


class Wordless:
    """What heads share that only say how strange an image is."""

    names: Sequence[str] = ()

    def changes(self, evidence: Evidence) -> Array:
        """None."""
        return np.empty((len(evidence.logits), 0))


class PaperHead(Wordless):
    """What the paper's two ways to write its score share: they learn nothing from normal images."""

    def fit(self, normal: Evidence, displacements: Displacements) -> Self:
        """Nothing to learn."""
        return self

    def arrays(self) -> Arrays:
        """Nothing to store."""
        return {}

    @classmethod
    def from_arrays(cls, arrays: Arrays) -> Self:
        """A new one."""
        return cls()


class LogitHead(PaperHead):
    """The mean logit, turned round: the paper's order of images, without its saturation."""

    def score(self, evidence: Evidence) -> Array:
        """-mean(logit)."""
        mean: Array = evidence.logits.astype(np.float64).mean(1)
        return -mean


class SigmoidHead(PaperHead):
    """The paper's score: one minus the mean probability of being real. Float64, since sigmoids saturate."""

    def score(self, evidence: Evidence) -> Array:
        """1 - mean(sigmoid(logit)), as the mean of sigmoid(-logit) so that small scores keep their digits."""
        logits = evidence.logits.astype(np.float64)
        shrunk = np.exp(-np.abs(logits))
        result: Array = (np.where(logits > 0, shrunk, 1.0) / (1 + shrunk)).mean(1)
        return result
