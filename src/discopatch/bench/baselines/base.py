"""The interface of all baselines, and those that score the logits as they are: MSP, MaxLogit and Energy."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar, Protocol, Self, TypeVar, cast

import numpy as np
from scipy.special import logsumexp

from discopatch.bench.networks.base import PENULTIMATE, Array, Classifier, FeatureDict
from discopatch.errors import NotFittedError

T = TypeVar("T")

CLASSES = "classes"  # (images,): the class numbers of normal images, beside their features where they are known

Setting = int | float | str


class Baseline(Protocol):
    """A method: features of normal images in, scores of any images out."""

    @property
    def needs(self) -> tuple[str, ...]:
        """The kinds of features that it scores."""

    def fit(self, normal: FeatureDict) -> Self:
        """Returns the method fitted on the features of normal images; itself where it has no parameters to fit."""

    def score(self, features: FeatureDict) -> Array:
        """Returns (images,) scores, higher for more out-of-distribution, each from its own image alone."""


@dataclass(frozen=True, eq=False)
class ClassifierBaseline(ABC):
    """Base class of the baselines: constructed from a classifier, with the settings of the method's paper as defaults.

    Below, f are penultimate features, l = W f + b the logits and E(l) = log sum exp(l). A confidence is high for
    normal images, so that the score is its negative.
    """

    needs: ClassVar[tuple[str, ...]] = (PENULTIMATE,)
    needs_classes: ClassVar[bool] = False  # whether it is fitted on CLASSES, too
    needs_classifier: ClassVar[bool] = True  # whether it uses the last layer
    without: ClassVar[str] = "it does not extract what this method needs"  # of a network that lacks `needs`
    options: ClassVar[Mapping[str, Callable[[str], Setting]]] = {}  # fields that a user may set, and how text is read

    classifier: Classifier

    def settings(self, images: int) -> dict[str, Setting]:
        """The value of each option when fitted on so many normal images."""
        return {name: getattr(self, name) for name in self.options}

    def fit(self, normal: FeatureDict) -> Self:
        """Returns the fitted baseline; here itself, for the many that only need the classifier."""
        return self

    @abstractmethod
    def score(self, features: FeatureDict) -> Array:
        """Returns (images,) scores, higher for more out-of-distribution."""


def check_fitted(part: T | None) -> T:
    """Returns the parameters that `fit` has estimated; NotFittedError where there are none."""
    if part is None:
        raise NotFittedError("this baseline has not been fitted: call fit with the features of normal images first")
    return part


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
