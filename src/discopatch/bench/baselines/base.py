"""The base class of baselines, and how the options of a user are read."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np
from scipy.special import logsumexp

from discopatch.bench.networks.base import PENULTIMATE, Array, Classifier, FeatureDict

Setting = int | float | str

CLASSES = "classes"  # (images,): the class numbers of normal images, beside their features where they are known


@dataclass
class Baseline(ABC):
    """Base class of the baselines: features of normal images in, scores of any images out.

    Constructed from a classifier, with the settings of the method's paper as defaults.
    Below, f are penultimate features, l = W f + b the logits and E(l) = log sum exp(l). A confidence is high for
    normal images, so that the score is its negative.
    """

    needs: ClassVar[tuple[str, ...]] = (PENULTIMATE,)  # the kinds of features that it scores
    needs_classes: ClassVar[bool] = False  # whether it is fitted on CLASSES, too
    needs_classifier: ClassVar[bool] = True  # whether it uses the last layer
    without: ClassVar[str] = "it does not extract what this method needs"  # of a network that lacks `needs`
    options: ClassVar[Mapping[str, Callable[[str], Setting]]] = {}  # fields that a user may set, and how text is read

    classifier: Classifier

    def settings(self, images: int) -> dict[str, Setting]:
        """The value of each option when fitted on so many normal images."""
        return {name: getattr(self, name) for name in self.options}

    def fit(self, normal: FeatureDict) -> Self:
        """Fits the baseline and returns it; many only need the classifier, and have nothing to fit."""
        return self

    def values(self, features: FeatureDict) -> Array:
        """f in double precision, (images, d)."""
        return features[PENULTIMATE].astype(np.float64)

    @abstractmethod
    def score(self, features: FeatureDict) -> Array:
        """Returns (images,) scores, higher for more out-of-distribution, each from its own image alone."""


def whole(text: str) -> int:
    """Reads a whole number from 1."""
    if not text.isdecimal() or int(text) < 1:
        raise ValueError("choose a whole number from 1")
    return int(text)


def below_hundred(text: str) -> float:
    """Reads a number from 0 to below 100."""
    if not 0 <= float(text) < 100:
        raise ValueError("choose a number from 0 to below 100")
    return float(text)


def one_of(choices: Collection[str], text: str) -> str:
    """Reads one of some names."""
    if text not in choices:
        raise ValueError(f"choose one of {', '.join(choices)}")
    return text


def energy(logits: Array) -> Array:
    """E(l) = log sum exp(l), (images, classes) -> (images,): a confidence, without the papers' minus sign."""
    return np.asarray(logsumexp(logits, axis=1))
