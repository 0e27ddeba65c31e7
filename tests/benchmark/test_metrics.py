"""Metrics agree with scikit-learn."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score

from discopatch.benchmark.metrics import auroc

SCORES = st.lists(st.integers(-3, 3) | st.floats(-1e6, 1e6), min_size=1, max_size=30)  # integers, for ties


@settings(max_examples=200, deadline=None)
@given(normal=SCORES, shifted=SCORES)
def test_auroc_is_that_of_scikit_learn_with_ties(normal: list[float], shifted: list[float]) -> None:
    labels = [0] * len(normal) + [1] * len(shifted)
    expected = roc_auc_score(labels, [*normal, *shifted])
    assert auroc(normal, shifted) == pytest.approx(expected, abs=1e-12)


def test_auroc_of_many_scores_is_that_of_scikit_learn() -> None:
    rng = np.random.default_rng(0)
    normal, shifted = rng.normal(size=5000).round(1), rng.normal(0.3, size=3000).round(1)
    expected = roc_auc_score([0] * 5000 + [1] * 3000, np.concatenate([normal, shifted]))
    assert auroc(normal, shifted) == pytest.approx(expected, abs=1e-12)


def test_higher_means_more_out_of_distribution() -> None:
    assert auroc([0, 1, 2], [3, 4]) == 1
    assert auroc([3, 4], [0, 1, 2]) == 0
    assert auroc([1, 1], [1, 1, 1]) == 0.5


def test_infinite_scores_have_their_place() -> None:
    assert auroc([-np.inf, 0], [np.inf, 1]) == 1


@pytest.mark.parametrize(("normal", "shifted"), [([], [1.0]), ([1.0], []), ([], [])])
def test_nothing_to_compare_is_an_error(normal: list[float], shifted: list[float]) -> None:
    with pytest.raises(ValueError, match="at least one normal and one shifted"):
        auroc(normal, shifted)


@pytest.mark.parametrize(("normal", "shifted"), [([np.nan, 1.0], [1.0]), ([1.0], [2.0, np.nan])])
def test_nan_is_an_error_and_no_score(normal: list[float], shifted: list[float]) -> None:
    with pytest.raises(ValueError, match="NaN"):
        auroc(normal, shifted)


def test_the_scores_are_left_as_they_were() -> None:
    normal, shifted = np.array([3.0, 1.0, 2.0]), np.array([5.0, 4.0])
    auroc(normal, shifted)
    assert normal.tolist() == [3, 1, 2]
    assert shifted.tolist() == [5, 4]
