"""A random classifier, and features of images of its classes and of none."""

import numpy as np
from numpy.typing import NDArray

from discopatch.bench.baselines import (
    BASELINES,
    PENULTIMATE,
    RANK_BEFORE,
    RANK_LAST,
    STATISTICS,
    Array,
    Baseline,
    Classifier,
    FeatureDict,
    get_baseline,
)

CLASSES, SIZE = 7, 40
KINDS = (PENULTIMATE, RANK_LAST, RANK_BEFORE, STATISTICS)
FITTED = ("nnguide", "fdbd", "vim", "mahalanobis", "knn", "statistics")
UNFITTED = tuple(name for name in BASELINES if name not in FITTED)


def random_classifier(*, classes: int = CLASSES, size: int = SIZE) -> Classifier:
    rng = np.random.default_rng([classes, size])
    weight, bias = rng.normal(size=(classes, size)) / size**0.5, rng.normal(0, 0.1, classes)
    return Classifier(weight.astype(np.float32), bias.astype(np.float32))


def random_features(count: int, *, seed: int = 0, size: int = SIZE, is_ood: bool = False) -> FeatureDict:
    """As after a relu, each image near its class; out-of-distribution ones are near none."""
    rng = np.random.default_rng(seed)
    classifier = random_classifier(size=size)

    def near_a_class() -> Array:
        towards = (0 if is_ood else 8) * classifier.weight[rng.integers(CLASSES, size=count)]
        return np.maximum(towards + rng.normal(0.1, 0.4, (count, size)), 0)

    statistics = rng.normal(size=(count, 3)) @ np.ones((3, 20)) + rng.normal(size=(count, 20))
    statistics[:, ::2] += 4 * is_ood
    values = (near_a_class(), near_a_class(), near_a_class(), statistics)
    return {kind: value.astype(np.float32) for kind, value in zip(KINDS, values, strict=True)}


def fitted_baseline(name: str, *, images: int = 120) -> Baseline:
    return get_baseline(name)(random_classifier()).fit(random_features(images))


def as_every_kind(values: NDArray[np.floating]) -> FeatureDict:
    return dict.fromkeys(KINDS, values)


def select_images(features: FeatureDict, which: slice) -> FeatureDict:
    return {kind: values[which] for kind, values in features.items()}


def in_double(features: FeatureDict, kind: str = PENULTIMATE) -> Array:
    return features[kind].astype(np.float64)
