"""Baselines that score the logits as they are: MSP, MaxLogit and Energy."""

from typing import cast

import numpy as np
from scipy.special import logsumexp

from discopatch.bench.baselines.base import ClassifierBaseline
from discopatch.bench.networks.base import PENULTIMATE, Array, FeatureDict


def energy(logits: Array) -> Array:
    """E(l) = log sum exp(l), (images, classes) -> (images,): a confidence, without the papers' minus sign."""
    return cast(Array, logsumexp(logits, axis=1))


class MSP(ClassifierBaseline):
    """Maximum softmax probability. Confidence: max softmax(l) = exp(max l - E(l)), which never overflows.

    Hendrycks and Gimpel, A Baseline for Detecting Misclassified and Out-of-Distribution Examples, 2017.
    """

    def score(self, features: FeatureDict) -> Array:
        logits = self.classifier.logits(features[PENULTIMATE])
        return cast(Array, -np.exp(logits.max(1) - energy(logits)))


class MaxLogit(ClassifierBaseline):
    """Confidence: max l. Hendrycks et al., Scaling Out-of-Distribution Detection for Real-World Settings, 2022."""

    def score(self, features: FeatureDict) -> Array:
        return cast(Array, -self.classifier.logits(features[PENULTIMATE]).max(1))


class Energy(ClassifierBaseline):
    """Confidence: E(l) = log sum exp(l). Liu et al., Energy-based Out-of-distribution Detection, 2020."""

    def score(self, features: FeatureDict) -> Array:
        return -energy(self.classifier.logits(features[PENULTIMATE]))
