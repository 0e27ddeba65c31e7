"""Baselines that score logits: as they are, or after features or weights were changed."""

from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from discopatch.bench.baselines.base import Baseline, below_hundred, energy, one_of
from discopatch.bench.networks.base import (
    PENULTIMATE,
    PERTURBED,
    RANK_BEFORE,
    RANK_LAST,
    RANK_WEIGHT,
    Array,
    FeatureDict,
)

MAX_EXPONENT = 500.0  # never met below the 99.8th percentile of relu features; far beyond it exp overflows
BLOCKS = {"3+4": (RANK_LAST, RANK_BEFORE), "4": (RANK_LAST,), "3": (RANK_BEFORE,)}  # of RankFeat, 4 for the last stage


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

    options: ClassVar = {"percentile": below_hundred}

    percentile: float = 85.0

    def score(self, features: FeatureDict) -> Array:
        values = self.values(features)
        size = values.shape[1]
        below = np.minimum(np.rint(size * self.percentiles(features) / 100).astype(np.intp), size - 1)
        least_kept = np.take_along_axis(np.sort(values, axis=1), below[:, None], axis=1)
        return -energy(self.classifier.logits(self.shaped(values, values >= least_kept)))

    def percentiles(self, features: FeatureDict) -> Array:
        """p for each image, (images,)."""
        return np.full(len(features[PENULTIMATE]), self.percentile)

    def shaped(self, values: Array, kept: NDArray[np.bool_]) -> Array:
        """(images, d) features as the last layer gets them; `kept` marks those above the percentile."""
        return values * sharpening(values, kept)


@dataclass(kw_only=True)
class ASH(Scale):
    """ASH. The energy after features below the p-th percentile of their image were set to 0, and the rest changed.

    ASH-S multiplies the rest by exp(s1 / s2) as SCALE does, ASH-B makes each s1 / their number, ASH-P leaves them. A
    feature that is 0 stays 0: where fewer are positive than are to be kept, the authors' ASH-B fills zeros besides,
    and which of the equal ones is left to the sort.
    Djurisic et al., Extremely Simple Activation Shaping for Out-of-Distribution Detection, 2023.
    """

    options: ClassVar = {"variant": partial(one_of, ("s", "b", "p")), "percentile": below_hundred}

    variant: str = "s"
    percentile: float = 90.0

    def shaped(self, values: Array, kept: NDArray[np.bool_]) -> Array:
        pruned = np.where(kept, values, 0.0)
        if self.variant == "s":
            return pruned * sharpening(values, kept)
        if self.variant == "b":
            count = max(values.shape[1] - round(values.shape[1] * self.percentile / 100), 1)
            return np.where(pruned != 0, values.sum(1, keepdims=True) / count, 0.0)
        return pruned


def sharpening(values: Array, kept: NDArray[np.bool_]) -> Array:
    """exp(s1 / s2), (images, 1); the quotient is 1 where the kept features sum to 0, as all-zero features do."""
    all_sum, kept_sum = (part.sum(1, keepdims=True) for part in (values, np.where(kept, values, 0.0)))
    quotient = np.divide(all_sum, kept_sum, out=np.ones_like(all_sum), where=kept_sum != 0)
    return np.asarray(np.exp(np.minimum(quotient, MAX_EXPONENT)))


class AdaScale(Scale):
    """AdaSCALE-A. SCALE with p = 80 + 5 (1 - F(q)): images that change more when they are perturbed are scaled less.

    q = sum of relu(f') over the largest 5 % of f, plus 10 times the sum of |f - f'| over its largest 1 %, f' the
    features of the perturbed image; F is the share of normal images up to q. s1 and s2 are sums of relu(f).
    Regmi, AdaSCALE: Adaptive Scaling for OOD Detection, 2025, with the settings for ResNet-50. They are those of
    OpenOOD; the authors' program fits F with the 5 % and the 1 % exchanged.
    """

    needs = (PENULTIMATE, PERTURBED)
    without = "it is no classifier whose input can be perturbed along a gradient"
    options: ClassVar = {}

    def fit(self, normal: FeatureDict) -> Self:
        self.reference = np.sort(shift_sizes(normal))
        return self

    def percentiles(self, features: FeatureDict) -> Array:
        share = np.searchsorted(self.reference, shift_sizes(features), side="right") / len(self.reference)
        return np.asarray(80 + 5 * (1 - share))

    def shaped(self, values: Array, kept: NDArray[np.bool_]) -> Array:
        return values * sharpening(np.maximum(values, 0), kept)


def shift_sizes(features: FeatureDict) -> Array:
    """q of AdaSCALE, (images,)."""
    values, perturbed = (features[kind].astype(np.float64) for kind in (PENULTIMATE, PERTURBED))
    order, size = np.argsort(-values, axis=1, kind="stable"), values.shape[1]
    raised = np.take_along_axis(np.maximum(perturbed, 0), order[:, : 5 * size // 100], axis=1)
    shifts = np.take_along_axis(np.abs(values - perturbed), order[:, : size // 100], axis=1)
    return np.asarray(raised.sum(1) + 10 * shifts.sum(1))


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
