"""MaxLogit: how large the largest logit is."""

from dataclasses import dataclass
from typing import ClassVar

from discopatch.baselines.learning import LearnsNothing
from discopatch.baselines.method import PENULTIMATE, Array, Classifier, Features


@dataclass(frozen=True, eq=False)
class MaxLogit(LearnsNothing):
    """Confidence: max l. Hendrycks et al., Scaling Out-of-Distribution Detection for Real-World Settings, 2022."""

    needs: ClassVar[tuple[str, ...]] = (PENULTIMATE,)

    classifier: Classifier

    def score(self, features: Features) -> Array:
        """-max l."""
        largest: Array = self.classifier.logits(features[PENULTIMATE]).max(1)
        return -largest
