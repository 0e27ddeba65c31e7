"""The metrics agree with scikit-learn, and AUPRO with its definition."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.ndimage import label
from sklearn.metrics import average_precision_score, roc_auc_score, roc_curve

from discopatch.errors import ParameterError
from discopatch.metrics import (
    METRICS,
    PRO_LIMIT,
    STEPS,
    Metric,
    count_pixels,
    draw_resamples,
    fpr95,
    fpr95_in,
    pixel_metrics,
    resample_pixels,
)

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


Maps = list[tuple[np.ndarray, np.ndarray]]  # anomaly maps, and their masks


def random_maps(count: int, *, seed: int, side: int = 24) -> Maps:
    """Maps of noise that is a little higher in some rectangles, with zeros and ties; the first mask is empty."""
    rng, found = np.random.default_rng(seed), []
    for number in range(count):
        mask = np.zeros((side, side + 3), bool)
        for top, left in rng.integers(0, side - 6, (number % 4, 2)):
            mask[top : top + rng.integers(1, 7), left : left + rng.integers(1, 7)] = True
        values = np.maximum(rng.normal(size=mask.shape) + mask, 0)
        found.append((np.where(values > 0, 2.0 ** (np.round(values * STEPS) / STEPS), 0), mask))  # one value a bin
    return found


def reference_aupro(maps: Maps) -> float:
    """By its definition: one threshold after another, one region after another."""
    normal = np.concatenate([values[~mask] for values, mask in maps])
    regions = []
    for values, mask in maps:
        numbers, count = label(mask, np.ones((3, 3)))
        regions += [values[numbers == number + 1] for number in range(count)]
    false, overlap = [0.0], [0.0]
    for threshold in np.unique(np.concatenate([values.ravel() for values, _ in maps]))[::-1]:
        false.append(np.mean(normal >= threshold))
        overlap.append(np.mean([np.mean(region >= threshold) for region in regions]))
    area = 0.0
    for start, end, low, high in zip(false, false[1:], overlap, overlap[1:], strict=False):
        stop = min(end, PRO_LIMIT)
        if start < stop:
            area += (stop - start) * (low + low + (high - low) * (stop - start) / (end - start)) / 2
    return area / PRO_LIMIT


@pytest.mark.parametrize("seed", range(6))
def test_pixel_metrics_are_those_of_a_plain_loop_and_of_scikit_learn(seed: int) -> None:
    maps = random_maps(7, seed=seed)
    aupro, pixel_auroc = pixel_metrics(np.sum([count_pixels(*each) for each in maps], axis=0))
    assert aupro == pytest.approx(reference_aupro(maps), abs=1e-6)
    labels, scores = (np.concatenate([each[place].ravel() for each in maps]) for place in (1, 0))
    assert pixel_auroc == pytest.approx(roc_auc_score(labels, scores), abs=1e-6)


def test_bins_change_pixel_metrics_hardly() -> None:
    rng = np.random.default_rng(0)
    maps = [(np.abs(rng.normal(size=mask.shape) + mask), mask) for _, mask in random_maps(7, seed=1)]
    aupro, pixel_auroc = pixel_metrics(np.sum([count_pixels(*each) for each in maps], axis=0))
    labels, scores = (np.concatenate([each[place].ravel() for each in maps]) for place in (1, 0))
    assert aupro == pytest.approx(reference_aupro(maps), abs=1e-3)
    assert pixel_auroc == pytest.approx(roc_auc_score(labels, scores), abs=1e-4)


def test_a_perfect_map_has_1_and_touching_pixels_are_one_region() -> None:
    mask = np.zeros((8, 8), bool)
    mask[[1, 2, 5], [1, 2, 5]] = True  # the first two touch diagonally
    counts = count_pixels(mask * 1e9, mask)
    assert [float(each) for each in pixel_metrics(counts)] == [1, 1]
    assert counts.sum(axis=1).tolist() == pytest.approx([61, 3, 2])
    assert [float(each) for each in pixel_metrics(count_pixels(~mask * 1e9, mask))] == [0, 0]


def test_resampled_pixels_are_those_of_the_images_drawn() -> None:
    maps = random_maps(9, seed=3)
    normal, defects = ([count_pixels(*each) for each in maps if each[1].any() == wanted] for wanted in (False, True))
    drawn = tuple(draw_resamples(len(each), seed=2, name=str(len(each)), resamples=500) for each in (normal, defects))
    found = resample_pixels(np.stack(normal), np.stack(defects), drawn)  # type: ignore[arg-type]
    assert found[0].shape == found[1].shape == (500,)
    for place in (0, 17, 499):
        chosen = [
            np.repeat(each, counts[place].astype(int), axis=0)
            for each, counts in zip((normal, defects), drawn, strict=True)
        ]
        expected = pixel_metrics(np.concatenate(chosen).sum(axis=0))
        assert [each[place] for each in found] == pytest.approx([float(each) for each in expected], abs=1e-5)
