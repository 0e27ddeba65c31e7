"""Our statistics head on another network: what its normalisations take out of an image."""

from dataclasses import KW_ONLY, dataclass, field, replace
from typing import ClassVar, Self

import numpy as np

from discopatch.baselines.learning import of_normal
from discopatch.baselines.method import STATISTICS, Array, Classifier, Features
from discopatch.scoring.evidence import Evidence
from discopatch.scoring.statistics import StatisticsHead


@dataclass(frozen=True, eq=False)
class Statistics:
    """Score: log of the squared Mahalanobis distance a dimension, of the channels' means and log-variances.

    The `StatisticsHead` of this package, with a classifier's layers in place of the discriminator's.
    """

    needs: ClassVar[tuple[str, ...]] = (STATISTICS,)

    classifier: Classifier
    _: KW_ONLY
    head: StatisticsHead = field(default_factory=StatisticsHead)

    def fit(self, normal: Features) -> Self:
        """Mean and shrunk covariance of normal images."""
        of_normal(normal, STATISTICS)
        return replace(self, head=self.head.fit(evidence(normal), {}))

    def score(self, features: Features) -> Array:
        """log(d^2 / dimensions)."""
        return self.head.score(evidence(features))


def evidence(features: Features) -> Evidence:
    """What the head looks at; of logits there are none."""
    statistics = np.asarray(features[STATISTICS], np.float32)
    return Evidence(np.empty((len(statistics), 0), np.float32), statistics)
