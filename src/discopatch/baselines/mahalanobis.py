"""Mahalanobis: how far the features lie from those of normal images, in units of how these vary."""

from dataclasses import KW_ONLY, dataclass, replace
from typing import ClassVar, Self

import numpy as np

from discopatch.baselines.learning import learnt, of_normal
from discopatch.baselines.method import PENULTIMATE, Array, Classifier, Features
from discopatch.scoring.gaussian import ShrunkGaussian

SMALLEST_SHARE = 0.01  # of the usual standard deviation, so that a feature which is always 0 does not decide alone
SMALLEST_SCALE = 1e-6  # when no feature varies at all


@dataclass(frozen=True, eq=False)
class Mahalanobis:
    """Score: (f - m)' C^-1 (f - m), one Gaussian for all normal images, C shrunk as Ledoit and Wolf do.

    Lee et al., A Simple Unified Framework for Detecting Out-of-Distribution Samples and Adversarial Attacks, 2018, who
    have a mean a class; here normal images need no labels.
    """

    needs: ClassVar[tuple[str, ...]] = (PENULTIMATE,)

    classifier: Classifier
    _: KW_ONLY
    gaussian: ShrunkGaussian | None = None

    def fit(self, normal: Features) -> Self:
        """Mean and shrunk covariance of normal images."""
        values = of_normal(normal, PENULTIMATE)
        smallest = max(SMALLEST_SHARE * float(np.sqrt(values.var(0).mean())), SMALLEST_SCALE)
        return replace(self, gaussian=ShrunkGaussian.fit(values, smallest_scale=smallest))

    def score(self, features: Features) -> Array:
        """The squared distance."""
        gaussian = learnt(self.gaussian)
        return gaussian.distance(np.asarray(features[PENULTIMATE], np.float64)) * len(gaussian.mean)
