"""What every baseline promises, whatever its formula."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray
from sklearn.metrics import roc_auc_score

from discopatch.baselines import BASELINES, Method, find_baseline

from .samples import SIZE, all_kinds, rows, some_classifier, some_features

FITTED = ("nnguide", "fdbd", "vim", "mahalanobis", "knn", "statistics")
EVERY = pytest.mark.parametrize("name", BASELINES)
SMALL = some_classifier(size=6)
WILD = arrays(
    np.float32,
    st.tuples(st.integers(1, 12), st.just(6)),
    elements=st.floats(allow_nan=False, allow_infinity=False, width=32),
)


def fitted(name: str, *, images: int = 120) -> Method:
    return find_baseline(name)(some_classifier()).fit(some_features(images))


@EVERY
def test_neighbours_never_change_a_score(name: str) -> None:
    method, new = fitted(name), some_features(9, seed=1)
    alone = np.concatenate([method.score(rows(new, slice(place, place + 1))) for place in range(9)])
    np.testing.assert_allclose(method.score(new), alone, rtol=1e-9, atol=1e-12)


@EVERY
def test_a_score_is_one_double_an_image_and_the_same_twice(name: str) -> None:
    method, new = fitted(name), some_features(9, seed=1)
    scores = method.score(new)
    assert scores.shape == (9,)
    assert scores.dtype == np.float64
    assert np.array_equal(scores, method.score(new))
    assert method.score(rows(new, slice(0))).shape == (0,)


@EVERY
def test_a_method_looks_at_nothing_but_what_it_needs(name: str) -> None:
    method = BASELINES[name]
    normal, new = ({kind: some_features(count, seed=count)[kind] for kind in method.needs} for count in (120, 9))
    assert np.isfinite(method(some_classifier()).fit(normal).score(new)).all()


@EVERY
def test_what_belongs_to_no_class_is_stranger(name: str) -> None:
    method = fitted(name, images=300)
    usual, strange = (method.score(some_features(200, seed=1, strange=strange)) for strange in (False, True))
    assert roc_auc_score(np.repeat([0, 1], 200), np.concatenate([usual, strange])) > 0.9


@pytest.mark.parametrize("name", ["vim", "mahalanobis", "statistics"])
def test_the_farther_away_the_stranger(name: str) -> None:
    method, new = fitted(name), some_features(9, seed=1)
    away = np.random.default_rng(0).normal(size=100)
    scores = [
        method.score({kind: values + far * away[: values.shape[1]] for kind, values in new.items()})
        for far in (10, 100, 1000)
    ]
    assert (np.diff(scores, axis=0) > 0).all()


@EVERY
def test_all_zero_features_have_a_score(name: str) -> None:
    zeros = all_kinds(np.zeros((3, SIZE), np.float32))
    method = BASELINES[name](some_classifier())
    sizes = {kind: values.shape[1] for kind, values in some_features(1).items()}
    blank = {kind: np.zeros((3, size), np.float32) for kind, size in sizes.items()}
    assert np.isfinite(method.fit(some_features(50)).score(blank)).all()
    assert np.isfinite(method.fit(zeros).score(zeros)).all()


@EVERY
@pytest.mark.parametrize("images", [1, 2, 5])
def test_a_handful_of_normal_images_is_enough_for_a_number(name: str, images: int) -> None:
    normal = some_features(images)
    method = BASELINES[name](some_classifier()).fit(normal)
    for features in (normal, some_features(20, seed=1)):
        assert np.isfinite(method.score(features)).all()


@settings(max_examples=20, deadline=None)
@given(wild=WILD)
@EVERY
def test_any_finite_features_have_a_finite_score(name: str, wild: NDArray[np.float32]) -> None:
    method = BASELINES[name](SMALL).fit(all_kinds(np.abs(some_features(30, size=6)["penultimate"])))
    assert np.isfinite(method.score(all_kinds(wild))).all()


@settings(max_examples=20, deadline=None)
@given(wild=WILD, other=WILD)
@EVERY
def test_any_finite_normal_images_give_finite_scores(
    name: str, wild: NDArray[np.float32], other: NDArray[np.float32]
) -> None:
    method = BASELINES[name](SMALL).fit(all_kinds(wild))
    for features in (wild, other):
        assert np.isfinite(method.score(all_kinds(features))).all()


@pytest.mark.parametrize("name", FITTED)
def test_an_unfitted_method_says_what_to_do_and_stays_unfitted(name: str) -> None:
    method = BASELINES[name](some_classifier())
    assert method.fit(some_features(20)) is not method
    with pytest.raises(ValueError, match=r"not been fitted: call fit with .*normal images first"):
        method.score(some_features(3))


@pytest.mark.parametrize("name", FITTED)
def test_no_normal_images_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match="no normal images to learn from"):
        BASELINES[name](some_classifier()).fit(some_features(0))


@pytest.mark.parametrize("name", [name for name in BASELINES if name not in FITTED])
def test_a_method_that_has_nothing_to_learn_scores_at_once(name: str) -> None:
    method, new = BASELINES[name](some_classifier()), some_features(4, seed=1)
    assert method.fit(some_features(5)) is method
    assert np.isfinite(method.score(new)).all()


def test_an_unknown_name_is_answered_with_the_names() -> None:
    with pytest.raises(ValueError, match=r"unknown baseline 'odin': choose one of msp, maxlogit, .*, knn, statistics"):
        find_baseline("odin")


def test_the_names_are_those_of_the_papers_table() -> None:
    assert " ".join(BASELINES) == (
        "msp maxlogit energy ash scale nnguide rankfeat rankfeat-weight fdbd vim mahalanobis knn statistics"
    )
