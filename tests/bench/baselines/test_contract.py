"""What every baseline guarantees, whatever its formula."""

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray
from sklearn.metrics import roc_auc_score

from discopatch.bench.baselines import BASELINES, make_baseline
from discopatch.bench.baselines.distances import FDBD, KNN, ViM
from discopatch.bench.networks.base import PENULTIMATE, Classifier
from discopatch.errors import ParameterError

from .samples import as_every_kind, fitted_baseline, random_classifier, random_features, select_images

every_baseline = pytest.mark.parametrize("name", BASELINES)
SMALL = random_classifier(size=6)
ANY_FINITE = arrays(
    np.float32,
    st.tuples(st.integers(1, 12), st.just(6)),
    elements=st.floats(allow_nan=False, allow_infinity=False, width=32),
)


@every_baseline
def test_a_score_is_one_double_an_image_from_it_alone_and_the_same_twice(name: str) -> None:
    baseline, new = fitted_baseline(name), random_features(9, seed=1)
    scores = baseline.score(new)
    assert scores.shape == (9,)
    assert scores.dtype == np.float64
    assert np.array_equal(scores, baseline.score(new))
    alone = np.concatenate([baseline.score(select_images(new, slice(place, place + 1))) for place in range(9)])
    np.testing.assert_allclose(scores, alone, rtol=1e-9, atol=1e-12)


@every_baseline
def test_what_belongs_to_no_class_scores_higher(name: str) -> None:
    baseline = fitted_baseline(name, images=300)
    normal, shifted = (baseline.score(random_features(200, seed=1, is_ood=is_ood)) for is_ood in (False, True))
    least = 0.8 if name == "dfm" else 0.9  # the noise here leaves no axis of little variance
    assert roc_auc_score(np.repeat([0, 1], 200), np.concatenate([normal, shifted])) > least


@settings(max_examples=20, deadline=None)
@given(wild=ANY_FINITE, other=ANY_FINITE)
@example(wild=np.zeros((3, 6), np.float32), other=np.zeros((1, 6), np.float32))
@every_baseline
def test_any_finite_normal_images_give_finite_scores(
    name: str, wild: NDArray[np.float32], other: NDArray[np.float32]
) -> None:
    baseline = BASELINES[name](SMALL).fit(as_every_kind(wild))
    for features in (wild, other):
        assert np.isfinite(baseline.score(as_every_kind(features))).all()


@pytest.mark.parametrize(
    ("text", "settings"),
    [
        ("ash", {"variant": "s", "percentile": 90}),
        ("ash:percentile=65:variant=b", {"variant": "b", "percentile": 65}),
        ("nnguide", {"k": 100}),
        ("rankfeat", {"blocks": "3+4"}),
        ("vim", {"dimensions": 20}),
        ("knn", {"k": 3}),
        ("knn:k=50", {"k": 50}),
    ],
)
def test_options_are_read_off_the_name_and_the_settings_are_what_is_used(
    text: str, settings: dict[str, int | float | str]
) -> None:
    assert make_baseline(text, random_classifier()).settings(300) == settings
    few = {name: make_baseline(name, random_classifier()).settings(20) for name in ("nnguide", "vim", "knn")}
    assert few == {"nnguide": {"k": 20}, "vim": {"dimensions": 10}, "knn": {"k": 1}}


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("knn:K=5", "'K'"),
        ("energy:k=5", "'k'"),
        ("knn:", "''"),
        ("ash:variant=r", "variant is"),
        ("scale:percentile=100", "below 100"),
        ("ash:percentile=nan", "below 100"),
        ("knn:k=0", "from 1"),
    ],
)
def test_an_option_or_a_value_that_there_is_not_is_refused(text: str, named: str) -> None:
    with pytest.raises(ParameterError, match=f"{text}: .*{named}"):
        make_baseline(text, random_classifier())


# Edge cases

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
