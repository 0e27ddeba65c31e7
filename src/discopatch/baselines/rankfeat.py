"""RankFeat: energy without the one direction that dominates a feature map, and with RankWeight the last layer."""

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np
from scipy.linalg import eigh

from discopatch.baselines.energy import energy
from discopatch.baselines.learning import LearnsNothing
from discopatch.baselines.method import RANK_BEFORE, RANK_LAST, Array, Classifier, Features


@dataclass(frozen=True, eq=False)
class RankFeat(LearnsNothing):
    """Confidence: E((l4 + l3) / 2), logits when the map X of the last block, or of the one before, has lost its rank 1.

    X - s1 u1 v1' with X as channels x places. Song et al., RankFeat: Rank-1 Feature Removal for Out-of-distribution
    Detection, 2022. The backbone removes the part from the maps; here are the logits.
    """

    needs: ClassVar[tuple[str, ...]] = (RANK_LAST, RANK_BEFORE)

    classifier: Classifier

    @property
    def head(self) -> Classifier:
        """The last layer that the features go through."""
        return self.classifier

    def score(self, features: Features) -> Array:
        """-E of the mean logits."""
        last, before = (self.head.logits(features[kind]) for kind in self.needs)
        return -energy((last + before) / 2)


@dataclass(frozen=True, eq=False)
class RankFeatAndWeight(RankFeat):
    """RankFeat with W - s1 u1 v1' in place of W: the last layer's parameter matrix loses its rank 1, too.

    Song et al., RankFeat & RankWeight: Rank-1 Feature/Weight Removal for Out-of-distribution Detection, 2024.
    """

    @cached_property
    def head(self) -> Classifier:
        """The last layer without the rank-1 part of its weight."""
        return without_rank_one(self.classifier)


def without_rank_one(classifier: Classifier) -> Classifier:
    """W less u1 u1' W, u1 the top eigenvector of WW': the part of its largest singular value; the bias stays."""
    weight = classifier.weight.astype(np.float64)
    last = len(weight) - 1
    top = eigh(weight @ weight.T, subset_by_index=(last, last))[1]
    return Classifier(weight - top @ (top.T @ weight), classifier.bias)
