"""SCALE: all features, scaled by how much of them lies in the largest."""

from dataclasses import KW_ONLY, dataclass
from typing import ClassVar

import numpy as np

from discopatch.baselines.ash import check_percentile, largest, sharpening
from discopatch.baselines.energy import energy
from discopatch.baselines.learning import LearnsNothing
from discopatch.baselines.method import PENULTIMATE, Array, Classifier, Features


@dataclass(frozen=True, eq=False)
class Scale(LearnsNothing):
    """Confidence: E of the head on f exp(s1 / s2), s1 = sum of all of f, s2 = sum of those above its p-th percentile.

    Xu et al., Scaling for Training-Time and Post-hoc Out-of-distribution Detection Enhancement, 2024.
    """

    needs: ClassVar[tuple[str, ...]] = (PENULTIMATE,)

    classifier: Classifier
    _: KW_ONLY
    percentile: float = 85.0

    def __post_init__(self) -> None:
        check_percentile(self.percentile)

    def score(self, features: Features) -> Array:
        """-E(W (f exp(s1 / s2)) + b)."""
        values = np.asarray(features[PENULTIMATE], np.float64)
        return -energy(self.classifier.logits(values * sharpening(values, largest(values, self.percentile))))
