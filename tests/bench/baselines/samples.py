"""A random classifier, and features of images of its classes and of none."""

import numpy as np
from numpy.typing import NDArray

from discopatch.bench.baselines import BASELINES, CLASSES, Baseline
from discopatch.bench.networks.base import (
    DISTRIBUTIONS,
    EXTREMES,
    LOCAL,
    PENULTIMATE,
    PERTURBED,
    RANK_BEFORE,
    RANK_LAST,
    RANK_WEIGHT,
    SCENE,
    STATISTICS,
    Array,
    Classifier,
    FeatureDict,
)

N_CLASSES, SIZE = 7, 40
KINDS = (PENULTIMATE, RANK_LAST, RANK_BEFORE, RANK_WEIGHT, PERTURBED, STATISTICS, EXTREMES)
LARGEST_HALF = float(np.finfo(np.float16).max)


def random_classifier(*, classes: int = N_CLASSES, size: int = SIZE) -> Classifier:
    rng = np.random.default_rng([classes, size])
    weight, bias = rng.normal(size=(classes, size)) / size**0.5, rng.normal(0, 0.1, classes)
    return Classifier(weight.astype(np.float32), bias.astype(np.float32))


def random_features(count: int, *, seed: int = 0, size: int = SIZE, is_ood: bool = False) -> FeatureDict:
    """As after a relu, each image near its class, which is known; out-of-distribution ones are near none."""
    rng = np.random.default_rng(seed)
    classifier = random_classifier(size=size)

    classes = rng.integers(N_CLASSES, size=count)

    def near_the_class() -> Array:
        towards = (0 if is_ood else 8) * classifier.weight[classes]
        return np.maximum(towards + rng.normal(0.1, 0.4, (count, size)), 0)

    statistics = rng.normal(size=(count, 3)) @ np.ones((3, 20)) + rng.normal(size=(count, 20))
    statistics[:, ::2] += 4 * is_ood
    found: dict[str, NDArray[np.floating]] = {
        kind: (statistics if kind in (STATISTICS, EXTREMES) else near_the_class()).astype(np.float32) for kind in KINDS
    }
    found[PERTURBED] = found[PENULTIMATE] + rng.normal(0, 0.1 + is_ood, (count, size)).astype(np.float32)
    channels = rng.normal(1 + 4 * is_ood, 1, (count, 5, 1)) * np.linspace(0, 1, 9)
    blocks = rng.normal(4 * is_ood, 1, (count, 6, 8))
    places = rng.normal(size=(count, 3, 3, 12))
    places[:, 1, 1] += 4 * is_ood
    found |= {LOCAL: places.astype(np.float16), DISTRIBUTIONS: channels.astype(np.float16), SCENE: blocks}
    return {**found, CLASSES: classes.astype(np.float64)}


def fitted_baseline(name: str, *, images: int = 120) -> Baseline:
    return BASELINES[name](random_classifier()).fit(random_features(images))


def as_every_kind(values: NDArray[np.floating]) -> FeatureDict:
    places = np.clip(values, -LARGEST_HALF, LARGEST_HALF).astype(np.float16)[:, None]
    by_place = {LOCAL: places[:, None], DISTRIBUTIONS: np.sort(places), SCENE: np.abs(places)}
    return {**dict.fromkeys(KINDS, values), **by_place, CLASSES: np.arange(len(values)) % 3.0}


def select_images(features: FeatureDict, which: slice) -> FeatureDict:
    return {kind: values[which] for kind, values in features.items()}
