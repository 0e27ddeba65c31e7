"""The interface of all baselines, which score the kinds of features that `bench/networks/base.py` names."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar, Protocol, Self, TypeVar

import numpy as np

from discopatch.bench.networks.base import (
    PENULTIMATE,
    Array,
    Classifier,
    FeatureDict,
)
from discopatch.errors import NotFittedError, TooFewImagesError

T = TypeVar("T")

CLASSES = (
    "classes"  # (images,): the numbers of the classes of normal images; beside their features where they are known
)

Setting = int | float | str

# For those baselines that use none, on networks that have none.
NO_CLASSES = Classifier(np.empty((0, 0), np.float32), np.empty(0, np.float32))


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
    """What every baseline in this folder is: constructed from a classifier, with its paper's settings as defaults.

    Below, f are penultimate features, l = W f + b the logits and E(l) = log sum exp(l). A confidence is high for
    normal images, so that the score is its negative.
    """

    needs: ClassVar[tuple[str, ...]] = (PENULTIMATE,)
    needs_classes: ClassVar[bool] = False  # whether it is fitted on CLASSES, too
    without: ClassVar[str] = "it does not extract what this method needs"  # of a network that lacks `needs`
    options: ClassVar[Mapping[str, Callable[[str], Setting]]] = {}  # fields that a user may set, and how text is read

    classifier: Classifier

    def settings(self, images: int) -> dict[str, Setting]:
        """The value of each option when fitted on so many normal images."""
        return {name: getattr(self, name) for name in self.options}

    def fit(self, normal: FeatureDict) -> Self:
        """Returns the fitted baseline; here itself, for the many that need the classifier alone."""
        return self

    @abstractmethod
    def score(self, features: FeatureDict) -> Array:
        """Returns (images,) scores, higher for more out-of-distribution."""


def check_fitted(part: T | None) -> T:
    """What `fit` has estimated, or NotFittedError."""
    if part is None:
        raise NotFittedError("this baseline has not been fitted: call fit with the features of normal images first")
    return part


def normal_features(normal: FeatureDict, kind: str) -> Array:
    """The (images, d) features of one kind to fit on, in double precision and of at least one image."""
    values = np.asarray(normal[kind], np.float64)
    if not len(values):
        raise TooFewImagesError("no normal images to fit on: fit needs the features of at least one, better hundreds")
    return values
