"""Energy: the logarithm of the sum over classes that softmax divides by."""

from dataclasses import dataclass
from typing import ClassVar

from scipy.special import logsumexp

from discopatch.baselines.learning import LearnsNothing
from discopatch.baselines.method import PENULTIMATE, Array, Classifier, Features


def energy(logits: Array) -> Array:
    """E(l) = log sum exp(l), (images, classes) -> (images,): a confidence, without the papers' minus sign."""
    result: Array = logsumexp(logits, axis=1)
    return result


@dataclass(frozen=True, eq=False)
class Energy(LearnsNothing):
    """Confidence: E(l) = logsumexp(l). Liu et al., Energy-based Out-of-distribution Detection, 2020."""

    needs: ClassVar[tuple[str, ...]] = (PENULTIMATE,)

    classifier: Classifier

    def score(self, features: Features) -> Array:
        """-E(l)."""
        return -energy(self.classifier.logits(features[PENULTIMATE]))
