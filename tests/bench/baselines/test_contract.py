"""What every baseline guarantees, whatever its formula."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray
from sklearn.metrics import roc_auc_score

from discopatch.bench.baselines import BASELINES, PENULTIMATE, get_baseline
from discopatch.errors import NotFittedError, ParameterError, TooFewImagesError

from .samples import (
    FITTED,
    SIZE,
    UNFITTED,
    as_every_kind,
    fitted_baseline,
    random_classifier,
    random_features,
    select_images,
)

every_baseline = pytest.mark.parametrize("name", BASELINES)
SMALL = random_classifier(size=6)
ANY_FINITE = arrays(
    np.float32,
    st.tuples(st.integers(1, 12), st.just(6)),
    elements=st.floats(allow_nan=False, allow_infinity=False, width=32),
)


@every_baseline
def test_neighbours_never_change_a_score(name: str) -> None:
    baseline, new = fitted_baseline(name), random_features(9, seed=1)
    alone = np.concatenate([baseline.score(select_images(new, slice(place, place + 1))) for place in range(9)])
    np.testing.assert_allclose(baseline.score(new), alone, rtol=1e-9, atol=1e-12)


@every_baseline
def test_a_score_is_one_double_an_image_and_the_same_twice(name: str) -> None:
    baseline, new = fitted_baseline(name), random_features(9, seed=1)
    scores = baseline.score(new)
    assert scores.shape == (9,)
    assert scores.dtype == np.float64
    assert np.array_equal(scores, baseline.score(new))
    assert baseline.score(select_images(new, slice(0))).shape == (0,)


@every_baseline
def test_only_the_kinds_that_it_needs_are_read(name: str) -> None:
    baseline = BASELINES[name]
    normal, new = ({kind: random_features(count, seed=count)[kind] for kind in baseline.needs} for count in (120, 9))
    assert np.isfinite(baseline(random_classifier()).fit(normal).score(new)).all()


@every_baseline
def test_what_belongs_to_no_class_scores_higher(name: str) -> None:
    baseline = fitted_baseline(name, images=300)
    normal, shifted = (baseline.score(random_features(200, seed=1, is_ood=is_ood)) for is_ood in (False, True))
    assert roc_auc_score(np.repeat([0, 1], 200), np.concatenate([normal, shifted])) > 0.9


@pytest.mark.parametrize("name", ["vim", "mahalanobis", "statistics"])
def test_the_score_grows_with_the_distance(name: str) -> None:
    baseline, new = fitted_baseline(name), random_features(9, seed=1)
    direction = np.random.default_rng(0).normal(size=100)
    scores = [
        baseline.score({kind: values + far * direction[: values.shape[1]] for kind, values in new.items()})
        for far in (10, 100, 1000)
    ]
    assert (np.diff(scores, axis=0) > 0).all()


@every_baseline
def test_all_zero_features_have_a_score(name: str) -> None:
    zeros = as_every_kind(np.zeros((3, SIZE), np.float32))
    baseline = BASELINES[name](random_classifier())
    sizes = {kind: values.shape[1] for kind, values in random_features(1).items()}
    blank = {kind: np.zeros((3, size), np.float32) for kind, size in sizes.items()}
    assert np.isfinite(baseline.fit(random_features(50)).score(blank)).all()
    assert np.isfinite(baseline.fit(zeros).score(zeros)).all()


@every_baseline
@pytest.mark.parametrize("images", [1, 2, 5])
def test_a_handful_of_normal_images_is_enough_for_a_number(name: str, images: int) -> None:
    normal = random_features(images)
    baseline = BASELINES[name](random_classifier()).fit(normal)
    for features in (normal, random_features(20, seed=1)):
        assert np.isfinite(baseline.score(features)).all()


@settings(max_examples=20, deadline=None)
@given(wild=ANY_FINITE)
@every_baseline
def test_any_finite_features_have_a_finite_score(name: str, wild: NDArray[np.float32]) -> None:
    baseline = BASELINES[name](SMALL).fit(as_every_kind(np.abs(random_features(30, size=6)[PENULTIMATE])))
    assert np.isfinite(baseline.score(as_every_kind(wild))).all()


@settings(max_examples=20, deadline=None)
@given(wild=ANY_FINITE, other=ANY_FINITE)
@every_baseline
def test_any_finite_normal_images_give_finite_scores(
    name: str, wild: NDArray[np.float32], other: NDArray[np.float32]
) -> None:
    baseline = BASELINES[name](SMALL).fit(as_every_kind(wild))
    for features in (wild, other):
        assert np.isfinite(baseline.score(as_every_kind(features))).all()


@pytest.mark.parametrize("name", FITTED)
def test_fit_returns_a_new_baseline_and_the_old_stays_unfitted(name: str) -> None:
    baseline = BASELINES[name](random_classifier())
    assert baseline.fit(random_features(20)) is not baseline
    with pytest.raises(NotFittedError):
        baseline.score(random_features(3))


@pytest.mark.parametrize("name", FITTED)
def test_no_normal_images_are_refused(name: str) -> None:
    with pytest.raises(TooFewImagesError):
        BASELINES[name](random_classifier()).fit(random_features(0))


@pytest.mark.parametrize("name", UNFITTED)
def test_a_baseline_without_parameters_scores_at_once(name: str) -> None:
    baseline, new = BASELINES[name](random_classifier()), random_features(4, seed=1)
    assert baseline.fit(random_features(5)) is baseline
    assert np.isfinite(baseline.score(new)).all()


def test_an_unknown_name_is_answered_with_the_names() -> None:
    with pytest.raises(ParameterError, match=r"'odin'.* msp, maxlogit, .*, knn, statistics"):
        get_baseline("odin")


def test_the_names_are_those_of_the_papers_table() -> None:
    assert " ".join(BASELINES) == (
        "msp maxlogit energy ash scale nnguide rankfeat rankfeat-weight fdbd vim mahalanobis knn statistics"
    )
