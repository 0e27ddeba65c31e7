"""MSP: how probable the likeliest class is."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from scipy.special import logsumexp

from discopatch.baselines.learning import LearnsNothing
from discopatch.baselines.method import PENULTIMATE, Array, Classifier, Features


@dataclass(frozen=True, eq=False)
class MSP(LearnsNothing):
    """Confidence: max softmax(l).

    Hendrycks and Gimpel, A Baseline for Detecting Misclassified and Out-of-Distribution Examples, 2017.
    """

    needs: ClassVar[tuple[str, ...]] = (PENULTIMATE,)

    classifier: Classifier

    def score(self, features: Features) -> Array:
        """-exp(max l - logsumexp l), which never overflows."""
        logits = self.classifier.logits(features[PENULTIMATE])
        probability: Array = np.exp(logits.max(1) - logsumexp(logits, axis=1))
        return -probability
