"""The statistics head: how far an image's layer statistics lie from those of normal images."""

from dataclasses import asdict, dataclass
from typing import Self

import numpy as np

from discopatch.scoring.evidence import Displacements, Evidence
from discopatch.scoring.gaussian import ShrunkGaussian
from discopatch.scoring.heads import Array, Arrays, Wordless

SMALLEST_DISTANCE = 1e-9  # of an image that is the mean itself, so that its logarithm is a number
SMALLEST_SCALE = 0.01  # of a mean or a log-variance: one percent, below which a difference is no difference


@dataclass(frozen=True, eq=False)
class StatisticsHead(Wordless):
    """A Gaussian over the mean and log-variance of every channel before each normalisation, over one image.

    These are what the normalisation takes out of the image, and what the logit therefore never sees: the level, the
    contrast, the noise. Score: the logarithm of the squared Mahalanobis distance a dimension, 0 for what is usual.
    """

    gaussian: ShrunkGaussian | None = None

    def fit(self, normal: Evidence, displacements: Displacements) -> Self:
        """Mean and shrunk covariance of normal images."""
        return type(self)(ShrunkGaussian.fit(normal.statistics, smallest_scale=SMALLEST_SCALE))

    @property
    def fitted(self) -> ShrunkGaussian:
        """The Gaussian, once there is one."""
        if self.gaussian is None:
            raise ValueError("this head has not been fitted: call fit with normal images first")
        return self.gaussian

    def score(self, evidence: Evidence) -> Array:
        """log(d^2 / dimensions)."""
        result: Array = np.log(np.maximum(self.fitted.distance(evidence.statistics), SMALLEST_DISTANCE))
        return result

    def arrays(self) -> Arrays:
        """The parts of the Gaussian."""
        return {name: np.asarray(value) for name, value in asdict(self.fitted).items()}

    @classmethod
    def from_arrays(cls, arrays: Arrays) -> Self:
        """The inverse of `arrays`."""
        numbers = {name: float(arrays[name]) for name in ("rest", "shrinkage")}
        return cls(ShrunkGaussian(**{**arrays, **numbers}))  # type: ignore[arg-type]
