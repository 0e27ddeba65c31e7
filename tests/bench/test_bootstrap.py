"""Resamples are what a plain loop would draw, and their intervals hold the truth as often as they say."""

from math import erf

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm

from discopatch import metrics
from discopatch.bench.summary import Estimate, difference, estimate_all, estimate_auroc
from discopatch.metrics import METRICS, Counts, Floats, auroc, draw_resamples, middle

RESAMPLED = ("auroc", "fpr95")
SCORES = st.lists(st.integers(-3, 3) | st.floats(-1e6, 1e6), min_size=1, max_size=20)  # integers, for ties


def drawn_for(normal: int, shifted: int, *, seed: int = 0, resamples: int = 40) -> tuple[Counts, Counts]:
    first = draw_resamples(normal, seed=seed, name="a", resamples=resamples)
    return first, draw_resamples(shifted, seed=seed, name="b", resamples=resamples)


def check_resamples(normal: Floats, shifted: Floats, drawn: tuple[Counts, Counts]) -> None:
    """Each is the plain metric on scores repeated as often as their images were drawn; the value is of all once."""
    found = estimate_all(normal, shifted, drawn)
    for name, metric in METRICS.items():
        assert found[name].value == metric(normal, shifted)
    pairs = [(np.repeat(normal, one), np.repeat(shifted, two)) for one, two in zip(*map(whole, drawn), strict=True)]
    for name in RESAMPLED:
        assert found[name].samples == pytest.approx([METRICS[name](*pair) for pair in pairs], abs=1e-12), name


def whole(counts: Counts) -> np.ndarray:
    return counts.astype(int)


@settings(max_examples=60, deadline=None)
@given(normal=SCORES, shifted=SCORES, seed=st.integers(0, 1000))
def test_a_resample_is_that_of_the_images_drawn(normal: list[float], shifted: list[float], seed: int) -> None:
    drawn = drawn_for(len(normal), len(shifted), seed=seed, resamples=8)
    check_resamples(np.asarray(normal, float), np.asarray(shifted, float), drawn)


def test_resamples_do_not_depend_on_the_blocks_they_are_worked_on_in(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(8)
    normal, shifted, drawn = rng.normal(size=23), rng.normal(0.7, size=17), drawn_for(23, 17, resamples=50)
    for block in (1, 7 * 40, 49 * 40, 50 * 40):
        monkeypatch.setattr(metrics, "BLOCK", block)
        check_resamples(normal, shifted, drawn)


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
    for number, drawn in enumerate(whole(counts)):
        slow = np.mean([auroc(np.repeat(normal, drawn), np.repeat(each, drawn)) for each in sets])
        assert found.samples[number] == pytest.approx(slow, abs=1e-12)
    assert found.value == pytest.approx(np.mean([auroc(normal, each) for each in sets]))


@pytest.mark.parametrize("name", RESAMPLED)
def test_the_same_draws_make_a_difference_of_like_methods_sharper(name: str) -> None:
    rng = np.random.default_rng(4)
    normal, shifted = rng.normal(size=200), rng.normal(1, size=200)
    other = normal + rng.normal(0, 0.1, size=200), shifted + rng.normal(0, 0.1, size=200)  # a method much like it
    first = estimate_all(normal, shifted, drawn_for(200, 200, resamples=400))[name]
    paired = difference(first, estimate_all(*other, drawn_for(200, 200, resamples=400))[name])
    unpaired = difference(first, estimate_all(*other, drawn_for(200, 200, seed=1, resamples=400))[name])
    assert paired.value == unpaired.value
    assert np.ptp(middle(paired.samples)) < 0.7 * np.ptp(middle(unpaired.samples))


@pytest.mark.slow
def test_intervals_hold_the_truth_about_nineteen_times_in_twenty() -> None:
    """For scores from N(0, 1) and N(0.8, 1)."""
    rng = np.random.default_rng(0)
    truth = {"auroc": 0.5 * (1 + erf(0.8 / 2)), "fpr95": float(norm.sf(0.8 + norm.ppf(0.05)))}
    held = dict.fromkeys(truth, 0)
    for trial in range(250):
        drawn = drawn_for(150, 120, seed=trial, resamples=200)
        found = estimate_all(rng.normal(size=150), rng.normal(0.8, size=120), drawn)
        for name in held:
            low, high = middle(found[name].samples)
            held[name] += low <= truth[name] <= high
    for name, times in held.items():
        assert 0.9 <= times / 250 <= 0.98, f"{name}: {times} times in 250"
