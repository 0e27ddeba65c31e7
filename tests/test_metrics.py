"""The metrics agree with scikit-learn."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score, roc_auc_score, roc_curve

from discopatch.errors import ParameterError
from discopatch.metrics import METRICS, Metric, fpr95, fpr95_in

SCORES = st.lists(st.integers(-3, 3) | st.floats(-1e6, 1e6), min_size=1, max_size=50)  # integers, for ties
EVERY = pytest.mark.parametrize("metric", METRICS.values(), ids=METRICS.keys())


def false_positive_rate(labels: np.ndarray, scores: np.ndarray) -> float:
    false, true, _ = roc_curve(labels, scores, drop_intermediate=False)
    return float(false[np.argmax(true >= 0.95)])


SHIFTED_IS_POSITIVE: dict[str, Callable[[np.ndarray, np.ndarray], float]] = {
    "auroc": roc_auc_score,
    "fpr95": false_positive_rate,
    "aupr_out": average_precision_score,
}
NORMAL_IS_POSITIVE = {"fpr95_in": false_positive_rate, "aupr_in": average_precision_score}


def reference(name: str, normal: list[float] | np.ndarray, shifted: list[float] | np.ndarray) -> float:
    labels, scores = np.repeat([0, 1], [len(normal), len(shifted)]), np.concatenate([normal, shifted])
    if name in NORMAL_IS_POSITIVE:
        return float(NORMAL_IS_POSITIVE[name](1 - labels, -scores))
    return float(SHIFTED_IS_POSITIVE[name](labels, scores))


@pytest.mark.parametrize("name", METRICS)
@settings(max_examples=60, deadline=None)
@given(normal=SCORES, shifted=SCORES)
def test_a_metric_is_that_of_scikit_learn_with_ties(name: str, normal: list[float], shifted: list[float]) -> None:
    assert METRICS[name](normal, shifted) == pytest.approx(reference(name, normal, shifted), abs=1e-12)


@pytest.mark.parametrize("name", METRICS)
@pytest.mark.parametrize("digits", [1, 12])
def test_a_metric_of_many_scores_is_that_of_scikit_learn(name: str, digits: int) -> None:
    rng = np.random.default_rng(0)
    normal, shifted = rng.normal(size=5000).round(digits), rng.normal(0.3, size=3000).round(digits)
    assert METRICS[name](normal, shifted) == pytest.approx(reference(name, normal, shifted), abs=1e-12)


def test_95_percent_are_counted_as_scikit_learn_counts_them() -> None:
    for images in range(1, 101):
        shifted, normal = np.arange(images), np.arange(images) - 0.5
        assert fpr95(normal, shifted) == reference("fpr95", normal, shifted)
        assert fpr95_in(shifted, normal) == reference("fpr95_in", shifted, normal)


@pytest.mark.parametrize(
    ("normal", "shifted", "expected"),
    [
        ([0, 1, 2], [3, 4], (1, 0, 0, 1, 1)),
        ([7, 7, 7], [7], (0.5, 1, 1, 0.75, 0.25)),
        ([1, 2], [0], (0, 1, 1, 0.58, 0.33)),
    ],
    ids=["apart", "all the same", "the other way round"],
)
def test_higher_means_more_out_of_distribution(
    normal: list[int], shifted: list[int], expected: tuple[float, ...]
) -> None:
    assert tuple(round(metric(normal, shifted), 2) for metric in METRICS.values()) == expected


@EVERY
def test_infinite_scores_have_their_place(metric: Metric) -> None:
    assert metric([-np.inf, 0], [np.inf, 1]) == metric([-9, 0], [9, 1])
    assert metric([-np.inf, np.inf], [np.inf, 1]) == metric([-9, 9], [9, 1])


@EVERY
def test_wrong_scores_are_refused_and_right_ones_left_as_they_were(metric: Metric) -> None:
    for normal, shifted in (([], [1.0]), ([1.0], []), ([np.nan, 1.0], [1.0]), ([1.0], [2.0, np.nan]), ([[1.0]], [3.0])):
        with pytest.raises(ParameterError):
            metric(normal, shifted)
    known, new = np.array([3.0, 1.0, 2.0]), np.array([5.0, 4.0])
    metric(known, new)
    assert (known.tolist(), new.tolist()) == ([3, 1, 2], [5, 4])
