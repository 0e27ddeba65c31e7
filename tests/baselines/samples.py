"""A made-up classifier, and features of images of its classes and of none."""

import numpy as np
from numpy.typing import NDArray

from discopatch.baselines.method import PENULTIMATE, RANK_BEFORE, RANK_LAST, STATISTICS, Array, Classifier, Features

CLASSES, SIZE = 7, 40
KINDS = (PENULTIMATE, RANK_LAST, RANK_BEFORE, STATISTICS)


def some_classifier(*, classes: int = CLASSES, size: int = SIZE) -> Classifier:
    rng = np.random.default_rng([classes, size])
    weight, bias = rng.normal(size=(classes, size)) / size**0.5, rng.normal(0, 0.1, classes)
    return Classifier(weight.astype(np.float32), bias.astype(np.float32))


def some_features(count: int, *, seed: int = 0, size: int = SIZE, strange: bool = False) -> Features:
    """As after a relu, each image near its class; strange ones are near none."""
    rng = np.random.default_rng(seed)
    classifier = some_classifier(size=size)

    def near_a_class() -> Array:
        towards = (0 if strange else 8) * classifier.weight[rng.integers(CLASSES, size=count)]
        return np.maximum(towards + rng.normal(0.1, 0.4, (count, size)), 0)

    statistics = rng.normal(size=(count, 3)) @ np.ones((3, 20)) + rng.normal(size=(count, 20))
    statistics[:, ::2] += 4 * strange
    values = (near_a_class(), near_a_class(), near_a_class(), statistics)
    return {kind: value.astype(np.float32) for kind, value in zip(KINDS, values, strict=True)}


def all_kinds(values: NDArray[np.floating]) -> Features:
    """The same numbers as every kind of features."""
    return dict.fromkeys(KINDS, values)


def rows(features: Features, which: slice) -> Features:
    return {kind: values[which] for kind, values in features.items()}


def in_double(features: Features, kind: str = PENULTIMATE) -> Array:
    return features[kind].astype(np.float64)
