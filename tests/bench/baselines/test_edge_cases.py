"""Edge cases of fitted baselines, and their memory; `test_references.py` compares their formulas."""

import tracemalloc

import numpy as np
import pytest

from discopatch.bench.baselines import Baseline, neighbours
from discopatch.bench.baselines.distances import FDBD, ViM
from discopatch.bench.baselines.neighbours import KNN, NNGuide
from discopatch.bench.networks.base import PENULTIMATE, Classifier, FeatureDict

from .samples import random_classifier, random_features

HEAD = random_classifier()
NORMAL, NEW = random_features(150), random_features(25, seed=1)


def test_a_twin_of_the_likeliest_class_changes_nothing_in_fdbd() -> None:
    """Between two classes of one weight there is no boundary."""
    alone = FDBD(HEAD).fit(NORMAL)
    best = HEAD.logits(NEW[PENULTIMATE]).argmax(1)
    which = int(np.bincount(best).argmax())
    twins = Classifier(np.vstack([HEAD.weight, HEAD.weight[which]]), np.append(HEAD.bias, HEAD.bias[which] - 3))
    of_the_class = {PENULTIMATE: NEW[PENULTIMATE][best == which]}
    np.testing.assert_allclose(FDBD(twins).fit(NORMAL).score(of_the_class), alone.score(of_the_class), rtol=1e-9)


def test_fdbd_has_no_array_of_images_by_classes_by_dimensions() -> None:
    head = random_classifier(classes=200, size=200)
    features = random_features(400, size=200)
    assert 10 * peak_bytes(FDBD(head).fit(features), features) < 400 * 200 * 200 * 8


@pytest.mark.parametrize(("size", "dimensions"), [(2048, 1000), (1280, 512), (512, 256)])
def test_vim_has_the_dimensions_of_its_paper(size: int, dimensions: int) -> None:
    head = Classifier(np.zeros((2, size), np.float32), np.zeros(2, np.float32))
    assert ViM(head).n_axes(10**6) == dimensions
    assert ViM(head).n_axes(100) == 50


def test_an_all_zero_normal_image_is_as_far_from_everything_as_it_is() -> None:
    """Though its product with others is larger than that of an opposite."""
    opposite, zero = np.full((1, 40), -1.0), np.zeros((1, 40))
    new = {PENULTIMATE: np.ones((1, 40))}
    assert KNN(HEAD).fit({PENULTIMATE: np.vstack([opposite, zero])}).score(new)[0] == pytest.approx(1)
    assert KNN(HEAD).fit({PENULTIMATE: opposite}).score(new)[0] == pytest.approx(2)


@pytest.mark.parametrize("baseline", [KNN, NNGuide])
@pytest.mark.parametrize("rows", [1, 7])
def test_scores_in_chunks_are_the_scores_of_all(
    baseline: type[KNN | NNGuide], rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    fitted = baseline(HEAD).fit(NORMAL)
    at_once = fitted.score(NEW)
    monkeypatch.setattr(neighbours, "MAX_PRODUCTS", rows * 150)
    np.testing.assert_allclose(fitted.score(NEW), at_once, rtol=1e-12)


@pytest.mark.parametrize("baseline", [KNN, NNGuide])
def test_memory_does_not_grow_with_the_scored_images(
    baseline: type[KNN | NNGuide], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(neighbours, "MAX_PRODUCTS", 2**16)
    features = random_features(1500)
    assert 4 * peak_bytes(baseline(HEAD).fit(features), features) < 1500 * 1500 * 8


def peak_bytes(baseline: Baseline, features: FeatureDict) -> int:
    tracemalloc.start()
    try:
        baseline.score(features)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
