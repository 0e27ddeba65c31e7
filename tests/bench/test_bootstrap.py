"""Resamples are what a plain loop would draw, and their intervals hold the truth as often as they say."""

from math import erf

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import ArrayLike
from scipy.integrate import quad
from scipy.stats import norm

from discopatch.bench import summary
from discopatch.bench.summary import (
    Counts,
    Estimate,
    difference,
    draw_resamples,
    estimate_all,
    estimate_auroc,
)
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


def test_resamples_do_not_depend_on_the_blocks_they_are_worked_on_in(monkeypatch: pytest.MonkeyPatch) -> None:
    normal, shifted = scores(np.random.default_rng(8), 23, 17)
    drawn = drawn_for(23, 17, resamples=50)
    expected = samples(normal, shifted, drawn)
    for block in (1, 7 * 40, 49 * 40, 50 * 40):
        monkeypatch.setattr(summary, "BLOCK", block)
        for name, found in samples(normal, shifted, drawn).items():
            assert np.array_equal(found, expected[name]), name


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


@pytest.mark.slow
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
