"""Resamples are what a plain loop would draw, and their intervals hold the truth as often as they say."""

from math import erf

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import ArrayLike
from scipy.integrate import quad
from scipy.stats import norm
from sklearn.metrics import roc_auc_score

from discopatch.bench import bootstrap
from discopatch.bench.bootstrap import (
    Counts,
    Estimate,
    difference,
    draw_resamples,
    estimate_all,
    estimate_auroc,
    mean_and_std,
)
from discopatch.errors import ParameterError
from discopatch.metrics import METRICS, auroc

SCORES = st.lists(st.integers(-3, 3) | st.floats(-1e6, 1e6), min_size=1, max_size=20)  # integers, for ties


def scores(rng: np.random.Generator, normal: int, shifted: int) -> tuple[np.ndarray, np.ndarray]:
    return rng.normal(size=normal).round(1), rng.normal(0.7, size=shifted).round(1)  # rounded, for ties


def drawn_for(normal: int, shifted: int, *, seed: int = 0, resamples: int = 40) -> tuple[Counts, Counts]:
    return draw_resamples(normal, seed=seed, name="a", resamples=resamples), draw_resamples(
        shifted, seed=seed, name="b", resamples=resamples
    )


def samples(normal: ArrayLike, shifted: ArrayLike, drawn: tuple[Counts, Counts]) -> dict[str, np.ndarray]:
    return {name: each.samples for name, each in estimate_all(normal, shifted, drawn).items()}


def one_by_one(name: str, normal: np.ndarray, shifted: np.ndarray, drawn: tuple[Counts, Counts]) -> list[float]:
    """The plain metric on scores repeated as often as their images were drawn."""
    pairs = zip(*(counts.astype(int) for counts in drawn), strict=True)
    return [METRICS[name](np.repeat(normal, first), np.repeat(shifted, second)) for first, second in pairs]


def test_a_resample_is_the_auroc_of_the_images_drawn() -> None:
    normal, shifted = scores(np.random.default_rng(0), 23, 17)
    these, those = draw_resamples(23, seed=1, resamples=40), draw_resamples(17, seed=2, resamples=40)
    found = estimate_auroc(normal, shifted, (these, those)).samples
    for value, first, second in zip(found, these.astype(int), those.astype(int), strict=True):
        drawn = np.repeat(normal, first), np.repeat(shifted, second)
        labels = [0] * len(drawn[0]) + [1] * len(drawn[1])
        assert value == pytest.approx(roc_auc_score(labels, np.concatenate(drawn)), abs=1e-12)
        assert value == pytest.approx(auroc(*drawn), abs=1e-12)


@settings(max_examples=60, deadline=None)
@given(normal=SCORES, shifted=SCORES, seed=st.integers(0, 1000))
def test_a_resample_of_any_metric_is_that_of_the_images_drawn(
    normal: list[float], shifted: list[float], seed: int
) -> None:
    drawn = drawn_for(len(normal), len(shifted), seed=seed, resamples=8)
    for name, found in samples(normal, shifted, drawn).items():
        slow = one_by_one(name, np.asarray(normal, float), np.asarray(shifted, float), drawn)
        assert found == pytest.approx(slow, abs=1e-6), name


@pytest.mark.parametrize("digits", [1, 12])
def test_a_resample_of_many_images_is_as_exact(digits: int) -> None:
    rng = np.random.default_rng(5)
    normal, shifted = rng.normal(size=3000).round(digits), rng.normal(0.7, size=2000).round(digits)
    drawn = drawn_for(3000, 2000, resamples=5)
    for name, found in samples(normal, shifted, drawn).items():
        exact = 1e-6 if name.startswith("aupr") else 1e-12  # precision is no whole number
        assert found == pytest.approx(one_by_one(name, normal, shifted, drawn), abs=exact), name


def test_a_resample_may_have_more_or_fewer_images_than_the_set() -> None:
    rng = np.random.default_rng(6)
    normal, shifted = scores(rng, 30, 20)
    drawn = rng.integers(0, 4, (12, 30)).astype(np.float32), rng.integers(0, 3, (12, 20)).astype(np.float32)
    for name, found in samples(normal, shifted, drawn).items():
        assert found == pytest.approx(one_by_one(name, normal, shifted, drawn), abs=1e-6), name


def test_all_images_drawn_once_give_the_plain_metric() -> None:
    normal, shifted = scores(np.random.default_rng(7), 60, 40)
    once = np.ones((1, 60), np.float32), np.ones((1, 40), np.float32)
    for name, each in estimate_all(normal, shifted, once).items():
        assert each.value == METRICS[name](normal, shifted)
        assert each.samples == pytest.approx([each.value], abs=1e-6)


def test_resamples_do_not_depend_on_the_blocks_they_are_worked_on_in(monkeypatch: pytest.MonkeyPatch) -> None:
    normal, shifted = scores(np.random.default_rng(8), 23, 17)
    drawn = drawn_for(23, 17, resamples=50)
    expected = samples(normal, shifted, drawn)
    for block in (1, 7 * 40, 49 * 40, 50 * 40):
        monkeypatch.setattr(bootstrap, "BLOCK", block)
        for name, found in samples(normal, shifted, drawn).items():
            assert np.array_equal(found, expected[name]), name


def test_resamples_do_not_depend_on_how_the_draws_lie_in_memory() -> None:
    normal, shifted = scores(np.random.default_rng(9), 23, 17)
    drawn = drawn_for(23, 17)
    other = np.ascontiguousarray(drawn[0]), np.ascontiguousarray(drawn[1])
    for name, found in samples(normal, shifted, drawn).items():
        assert np.array_equal(found, samples(normal, shifted, other)[name]), name


def test_all_metrics_are_estimated_together_or_only_those_asked_for() -> None:
    normal, shifted = scores(np.random.default_rng(1), 30, 30)
    drawn = drawn_for(30, 30)
    every = estimate_all(normal, shifted, drawn)
    assert list(every) == list(METRICS)
    assert {name: each.value for name, each in every.items()} == {
        name: metric(normal, shifted) for name, metric in METRICS.items()
    }
    some = estimate_all(normal, shifted, drawn, metrics=["fpr95", "auroc"])
    assert list(some) == ["fpr95", "auroc"]
    assert np.array_equal(some["fpr95"].samples, every["fpr95"].samples)
    alone = estimate_auroc(normal, shifted, drawn)
    assert alone.value == every["auroc"].value
    assert np.array_equal(alone.samples, every["auroc"].samples)


def test_estimating_leaves_scores_and_draws_as_they_were() -> None:
    normal, shifted = scores(np.random.default_rng(2), 9, 8)
    drawn = drawn_for(9, 8)
    before = [each.copy() for each in (normal, shifted, *drawn)]
    estimate_all(normal, shifted, drawn)
    assert all(np.array_equal(old, new) for old, new in zip(before, (normal, shifted, *drawn), strict=True))


def test_sets_that_lie_apart_lie_apart_in_every_resample() -> None:
    found = estimate_all(np.arange(20), np.arange(30) + 20, drawn_for(20, 30))
    perfect = {"auroc": 1, "fpr95": 0, "fpr95_in": 0, "aupr_in": 1, "aupr_out": 1}
    assert {name: each.value for name, each in found.items()} == perfect
    assert {name: each.interval for name, each in found.items()} == {
        name: (value, value) for name, value in perfect.items()
    }


@pytest.mark.parametrize(
    ("normal", "shifted", "drawn"),
    [
        ([], [1.0], (1, 1)),
        ([1.0], [], (1, 1)),
        ([1.0, np.nan], [1.0], (2, 1)),
        ([1.0], [np.nan], (1, 1)),
        ([1.0, 2.0], [1.0], (3, 1)),
        ([1.0, 2.0], [1.0], (2, 4)),
    ],
)
def test_what_cannot_be_resampled_is_refused(normal: list[float], shifted: list[float], drawn: tuple[int, int]) -> None:
    with pytest.raises(ParameterError):
        estimate_all(normal, shifted, drawn_for(*drawn))


def test_draws_of_unequal_number_are_refused() -> None:
    with pytest.raises(ParameterError):
        estimate_all([1.0], [2.0], (draw_resamples(1, seed=0, resamples=5), draw_resamples(1, seed=0, resamples=6)))


def test_an_unknown_metric_is_refused_by_name() -> None:
    with pytest.raises(ParameterError):
        estimate_all([1.0], [2.0], drawn_for(1, 1), metrics=["auroc", "accuracy"])


def test_every_resample_has_as_many_images_as_the_set() -> None:
    counts = draw_resamples(50, seed=0, resamples=200)
    assert counts.shape == (200, 50)
    assert (counts.sum(1) == 50).all()
    assert counts.std(0).min() > 0, "each image is drawn more often in some resamples than in others"


def test_sets_of_other_names_draw_other_images_and_one_set_always_the_same() -> None:
    first = draw_resamples(30, seed=0, name="steel")
    assert np.array_equal(first, draw_resamples(30, seed=0, name="steel"))
    assert not np.array_equal(first, draw_resamples(30, seed=0, name="receipts"))
    assert not np.array_equal(first, draw_resamples(30, seed=1, name="steel"))


def test_a_mean_is_resampled_with_the_same_images_in_all_its_cells() -> None:
    rng = np.random.default_rng(3)
    normal, counts = rng.normal(size=20), draw_resamples(20, seed=0, resamples=30)
    sets = [rng.normal(0.5, size=20) for _ in range(3)]
    found = Estimate.mean([estimate_auroc(normal, each, (counts, counts)) for each in sets])
    for number, drawn in enumerate(counts.astype(int)):
        slow = np.mean([auroc(np.repeat(normal, drawn), np.repeat(each, drawn)) for each in sets])
        assert found.samples[number] == pytest.approx(slow, abs=1e-12)
    assert found.value == pytest.approx(np.mean([auroc(normal, each) for each in sets]))


def test_an_interval_holds_the_middle_of_the_resamples() -> None:
    assert Estimate(0.5, np.linspace(0, 1, 1001)).interval == pytest.approx((0.025, 0.975))


def test_a_difference_is_taken_resample_by_resample() -> None:
    found = difference(Estimate(0.9, np.array([0.8, 0.9, 0.95])), Estimate(0.7, np.array([0.6, 0.8, 0.7])))
    assert found.value == pytest.approx(0.2)
    assert found.samples == pytest.approx([0.2, 0.1, 0.25])


@pytest.mark.parametrize("name", METRICS)
def test_the_same_draws_make_a_difference_of_like_methods_sharper(name: str) -> None:
    rng = np.random.default_rng(4)
    normal, shifted = rng.normal(size=200), rng.normal(1, size=200)
    other = normal + rng.normal(0, 0.1, size=200), shifted + rng.normal(0, 0.1, size=200)  # a method much like it
    first = estimate_all(normal, shifted, drawn_for(200, 200, resamples=400))[name]
    paired = difference(first, estimate_all(*other, drawn_for(200, 200, resamples=400))[name])
    unpaired = difference(first, estimate_all(*other, drawn_for(200, 200, seed=1, resamples=400))[name])
    assert paired.value == unpaired.value
    assert np.ptp(paired.interval) < 0.7 * np.ptp(unpaired.interval)


def test_a_method_differs_from_itself_by_nothing() -> None:
    normal, shifted = scores(np.random.default_rng(5), 30, 30)
    same = [estimate_auroc(normal, shifted, drawn_for(30, 30)) for _ in range(2)]
    assert difference(*same).interval == (0, 0)


def test_a_difference_of_other_draws_is_refused() -> None:
    with pytest.raises(ParameterError):
        difference(Estimate(0.5, np.zeros(3)), Estimate(0.5, np.zeros(4)))


def test_seeds_have_a_mean_and_a_spread() -> None:
    assert mean_and_std([0.8, 0.9, 1.0]) == pytest.approx((0.9, 0.1))
    assert mean_and_std([0.8]) == (0.8, 0)
    with pytest.raises(ParameterError):
        mean_and_std([])


def true_values(normal: int, shifted: int, apart: float) -> dict[str, float]:
    """Of every metric, for scores from N(0, 1) and N(apart, 1)."""

    def average_precision(positive: int, negative: int) -> float:
        def precision(threshold: float) -> float:
            hits = positive * norm.sf(threshold - apart)
            return float(norm.pdf(threshold - apart) * hits / (hits + negative * norm.sf(threshold)))

        return float(quad(precision, -8, 8)[0])

    false_positive_rate = float(norm.sf(apart + norm.ppf(0.05)))
    return {
        "auroc": 0.5 * (1 + erf(apart / 2)),  # P(N(apart, 1) > N(0, 1))
        "fpr95": false_positive_rate,
        "fpr95_in": false_positive_rate,
        "aupr_in": average_precision(normal, shifted),
        "aupr_out": average_precision(shifted, normal),
    }


def test_intervals_hold_the_truth_about_nineteen_times_in_twenty() -> None:
    rng = np.random.default_rng(0)
    truth, held = true_values(150, 120, 0.8), dict.fromkeys(METRICS, 0)
    for trial in range(250):
        drawn = drawn_for(150, 120, seed=trial, resamples=200)
        for name, each in estimate_all(rng.normal(size=150), rng.normal(0.8, size=120), drawn).items():
            low, high = each.interval
            held[name] += low <= truth[name] <= high
    for name, times in held.items():
        assert 0.9 <= times / 250 <= 0.98, f"{name}: {times} times in 250"


def test_all_scores_of_an_image_are_drawn_together() -> None:
    """As if every image of a resample brought all of its scores along."""
    rng = np.random.default_rng(3)
    normal, shifted = rng.normal(size=(12, 5)), rng.normal(0.5, size=(9, 5))
    drawn = drawn_for(12, 9, resamples=20)
    found = estimate_all(normal, shifted, drawn)
    for number in range(20):
        repeated = [
            np.repeat(scores, counts[number].astype(int), axis=0).ravel()
            for scores, counts in zip((normal, shifted), drawn, strict=True)
        ]
        for name, metric in METRICS.items():
            assert found[name].samples[number] == pytest.approx(metric(*repeated), abs=1e-6)
            assert found[name].value == metric(normal.ravel(), shifted.ravel())
