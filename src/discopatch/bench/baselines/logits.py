"""Baselines that score logits: as they are, or after features or weights were changed."""

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp

from discopatch.bench.baselines.base import Baseline, in_double, one_of, percentage
from discopatch.bench.networks.base import PENULTIMATE, RANK_BEFORE, RANK_LAST, RANK_WEIGHT, Array, FeatureDict

MAX_EXPONENT = 500.0  # never met below the 99.8th percentile of relu features; far beyond it exp overflows
BLOCKS = {"3+4": (RANK_LAST, RANK_BEFORE), "4": (RANK_LAST,), "3": (RANK_BEFORE,)}  # of RankFeat, 4 for the last stage


def energy(logits: Array) -> Array:
    """E(l) = log sum exp(l), (images, classes) -> (images,): a confidence, without the papers' minus sign."""
    return np.asarray(logsumexp(logits, axis=1))


class MSP(Baseline):
    """Maximum softmax probability. Confidence: max softmax(l) = exp(max l - E(l)), which never overflows.

    Hendrycks and Gimpel, A Baseline for Detecting Misclassified and Out-of-Distribution Examples, 2017.
    """

    def score(self, features: FeatureDict) -> Array:
        logits = self.classifier.logits(features[PENULTIMATE])
        return np.asarray(-np.exp(logits.max(1) - energy(logits)))


class MaxLogit(Baseline):
    """Confidence: max l. Hendrycks et al., Scaling Out-of-Distribution Detection for Real-World Settings, 2022."""

    def score(self, features: FeatureDict) -> Array:
        return np.asarray(-self.classifier.logits(features[PENULTIMATE]).max(1))


class Energy(Baseline):
    """Confidence: E(l) = log sum exp(l). Liu et al., Energy-based Out-of-distribution Detection, 2020."""

    def score(self, features: FeatureDict) -> Array:
        return -energy(self.classifier.logits(features[PENULTIMATE]))


@dataclass(kw_only=True)
class Scale(Baseline):
    """SCALE. Confidence: E(W (f exp(s1 / s2)) + b), s1 = sum of f, s2 = sum of those above its p-th percentile.

    Xu et al., Scaling for Training-Time and Post-hoc Out-of-distribution Detection Enhancement, 2024.
    """

    options: ClassVar = {"percentile": percentage}

    percentile: float = 85.0

    def score(self, features: FeatureDict) -> Array:
        values = in_double(features[PENULTIMATE])
        return -energy(self.classifier.logits(self.shaped(values, largest_mask(values, self.percentile))))

    def shaped(self, values: Array, kept: NDArray[np.bool_]) -> Array:
        """(images, d) features as the last layer gets them; `kept` marks those above the percentile."""
        return values * sharpening(values, kept)


@dataclass(kw_only=True)
class ASH(Scale):
    """ASH. The energy after features below the p-th percentile of their image were set to 0, and the rest changed.

    ASH-S multiplies the rest by exp(s1 / s2) as SCALE does, ASH-B makes each s1 / their number, ASH-P leaves them.
    Djurisic et al., Extremely Simple Activation Shaping for Out-of-Distribution Detection, 2023.
    """

    options: ClassVar = {"variant": partial(one_of, ("s", "b", "p")), "percentile": percentage}

    variant: str = "s"
    percentile: float = 90.0

    def shaped(self, values: Array, kept: NDArray[np.bool_]) -> Array:
        pruned = np.where(kept, values, 0.0)
        if self.variant == "s":
            return pruned * sharpening(values, kept)
        if self.variant == "b":
            return np.where(kept, values.sum(1, keepdims=True) / kept.sum(1, keepdims=True), 0.0)
        return pruned


def sharpening(values: Array, kept: NDArray[np.bool_]) -> Array:
    """exp(s1 / s2), (images, 1); the quotient is 1 where the kept features sum to 0, as all-zero features do."""
    all_sum, kept_sum = (part.sum(1, keepdims=True) for part in (values, np.where(kept, values, 0.0)))
    quotient = np.divide(all_sum, kept_sum, out=np.ones_like(all_sum), where=kept_sum != 0)
    return np.asarray(np.exp(np.minimum(quotient, MAX_EXPONENT)))


def largest_mask(x: Array, percentile: float) -> NDArray[np.bool_]:
    """Marks each row's d - round(d p / 100) largest values, at least one, and all that equal the least of these."""
    size = x.shape[1]
    count = max(size - round(size * percentile / 100), 1)
    least_kept = np.partition(x, size - count, axis=1)[:, size - count, None]
    return np.asarray(x >= least_kept)


@dataclass(kw_only=True)
class RankFeat(Baseline):
    """Confidence: E((l4 + l3) / 2), the logits when the map X of the last block, or of the one before, lost its rank 1.

    X - s1 u1 v1', X as a matrix of channels x positions; the backbone does this part. Song et al., RankFeat: Rank-1
    Feature Removal for Out-of-distribution Detection, 2022.
    """

    needs = (RANK_LAST, RANK_BEFORE)
    without = "feature maps without their rank 1 are extracted from resnet50 and efficientnet-lite0 alone"
    options: ClassVar = {"blocks": partial(one_of, BLOCKS)}

    blocks: str = "3+4"

    def score(self, features: FeatureDict) -> Array:
        logits = [self.classifier.logits(features[kind]) for kind in BLOCKS[self.blocks]]
        return -energy(np.mean(logits, axis=0))


class RankFeatAndWeight(Baseline):
    """Confidence: E(l4), when both the map of the last block and the weights that make it lost their rank 1.

    The weights W of the last block's last two convolutions, as matrices of outputs x the rest, become W - s1 u1 v1';
    the backbone does this part, too. Song et al., RankFeat & RankWeight: Rank-1 Feature/Weight Removal for
    Out-of-distribution Detection, 2024.
    """

    needs = (RANK_WEIGHT,)
    without = "RankWeight's authors change the last bottleneck block of a ResNet, and it has none"

    def score(self, features: FeatureDict) -> Array:
        return -energy(self.classifier.logits(features[RANK_WEIGHT]))
