"""Baselines that change the features before the energy is taken: ASH, SCALE, RankFeat and RankFeat & Weight."""

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import eigh

from discopatch.bench.baselines.base import (
    PENULTIMATE,
    RANK_BEFORE,
    RANK_LAST,
    Array,
    Classifier,
    ClassifierBaseline,
    FeatureDict,
)
from discopatch.bench.baselines.logits import energy
from discopatch.errors import ParameterError

MAX_EXPONENT = 500.0  # never met below the 99.8th percentile of relu features; far beyond it exp overflows


@dataclass(frozen=True, eq=False, kw_only=True)
class Scale(ClassifierBaseline):
    """SCALE. Confidence: E(W (f exp(s1 / s2)) + b), s1 = sum of f, s2 = sum of those above its p-th percentile.

    Xu et al., Scaling for Training-Time and Post-hoc Out-of-distribution Detection Enhancement, 2024.
    """

    prunes: ClassVar[bool] = False

    percentile: float = 85.0

    def __post_init__(self) -> None:
        if not 0 <= self.percentile < 100:
            raise ParameterError(f"percentile is {self.percentile}: choose one from 0 to below 100; the rest is kept")

    def score(self, features: FeatureDict) -> Array:
        values = np.asarray(features[PENULTIMATE], np.float64)
        kept = largest_mask(values, self.percentile)
        pruned = np.where(kept, values, 0.0)
        all_sum, kept_sum = (part.sum(1, keepdims=True) for part in (values, pruned))
        # The quotient is 1 where the kept features sum to 0, as all-zero features do.
        quotient = np.divide(all_sum, kept_sum, out=np.ones_like(all_sum), where=kept_sum != 0)
        factor = np.exp(np.minimum(quotient, MAX_EXPONENT))
        return -energy(self.classifier.logits((pruned if self.prunes else values) * factor))


@dataclass(frozen=True, eq=False, kw_only=True)
class ASH(Scale):
    """ASH-S. SCALE's confidence after all features below the p-th percentile of their image were set to 0.

    Djurisic et al., Extremely Simple Activation Shaping for Out-of-Distribution Detection, 2023.
    """

    prunes: ClassVar[bool] = True

    percentile: float = 90.0


def largest_mask(x: Array, percentile: float) -> NDArray[np.bool_]:
    """Marks each row's d - round(d p / 100) largest values, at least one, and all that equal the least of these."""
    size = x.shape[1]
    count = max(size - round(size * percentile / 100), 1)
    least_kept = np.partition(x, size - count, axis=1)[:, size - count, None]
    result: NDArray[np.bool_] = x >= least_kept
    return result


class RankFeat(ClassifierBaseline):
    """Confidence: E((l4 + l3) / 2), the logits when the map X of the last block, or of the one before, lost its rank 1.

    X - s1 u1 v1', X as a matrix of channels x positions; the backbone does this part. Song et al., RankFeat: Rank-1
    Feature Removal for Out-of-distribution Detection, 2022.
    """

    needs = (RANK_LAST, RANK_BEFORE)

    @property
    def head(self) -> Classifier:
        """The last layer that the features pass through."""
        return self.classifier

    def score(self, features: FeatureDict) -> Array:
        last, before = (self.head.logits(features[kind]) for kind in self.needs)
        return -energy((last + before) / 2)


class RankFeatAndWeight(RankFeat):
    """RankFeat with W - s1 u1 v1' in place of W: the weight of the last layer loses its rank 1, too.

    After Song et al., RankFeat & RankWeight: Rank-1 Feature/Weight Removal for Out-of-distribution Detection, 2024,
    whose own program removes it from the last convolutions of the last block instead.
    """

    @cached_property
    def head(self) -> Classifier:
        """W less u1 u1' W, u1 the top eigenvector of WW', which is the part of W's largest singular value; b stays."""
        weight = self.classifier.weight.astype(np.float64)
        last = len(weight) - 1
        top = eigh(weight @ weight.T, subset_by_index=(last, last))[1]
        return Classifier(weight - top @ (top.T @ weight), self.classifier.bias)
