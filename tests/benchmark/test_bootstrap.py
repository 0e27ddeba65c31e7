"""Resamples are what a plain loop would draw, and their intervals hold the truth as often as they say."""

from math import erf

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from discopatch.benchmark.metrics import Estimate, auroc, draw, estimate_auroc, resampled_auroc


def scores(rng: np.random.Generator, normal: int, shifted: int) -> tuple[np.ndarray, np.ndarray]:
    return rng.normal(size=normal).round(1), rng.normal(0.7, size=shifted).round(1)  # rounded, for ties


def test_a_resample_is_the_auroc_of_the_images_drawn() -> None:
    normal, shifted = scores(np.random.default_rng(0), 23, 17)
    these, those = draw(23, seed=1, resamples=40), draw(17, seed=2, resamples=40)
    found = resampled_auroc(normal, shifted, these, those)
    for value, first, second in zip(found, these.astype(int), those.astype(int), strict=True):
        drawn = np.repeat(normal, first), np.repeat(shifted, second)
        labels = [0] * len(drawn[0]) + [1] * len(drawn[1])
        assert value == pytest.approx(roc_auc_score(labels, np.concatenate(drawn)), abs=1e-12)
        assert value == pytest.approx(auroc(*drawn), abs=1e-12)


def test_every_resample_has_as_many_images_as_the_set() -> None:
    counts = draw(50, seed=0, resamples=200)
    assert counts.shape == (200, 50)
    assert (counts.sum(1) == 50).all()
    assert counts.std(0).min() > 0, "each image is drawn more often in some resamples than in others"


def test_sets_of_other_names_draw_other_images_and_one_set_always_the_same() -> None:
    first = draw(30, seed=0, name="steel")
    assert np.array_equal(first, draw(30, seed=0, name="steel"))
    assert not np.array_equal(first, draw(30, seed=0, name="receipts"))
    assert not np.array_equal(first, draw(30, seed=1, name="steel"))


def test_a_mean_is_resampled_with_the_same_images_in_all_its_cells() -> None:
    rng = np.random.default_rng(3)
    normal, counts = rng.normal(size=20), draw(20, seed=0, resamples=30)
    cells = [rng.normal(0.5, size=20) for _ in range(3)]
    found = Estimate.mean([estimate_auroc(normal, each, (counts, counts)) for each in cells])
    for number, drawn in enumerate(counts.astype(int)):
        slow = np.mean([auroc(np.repeat(normal, drawn), np.repeat(each, drawn)) for each in cells])
        assert found.samples[number] == pytest.approx(slow, abs=1e-12)
    assert found.value == pytest.approx(np.mean([auroc(normal, each) for each in cells]))


def test_an_interval_holds_the_middle_of_the_resamples() -> None:
    assert Estimate(0.5, np.linspace(0, 1, 1001)).interval == pytest.approx((0.025, 0.975))


def test_intervals_hold_the_truth_about_nineteen_times_in_twenty() -> None:
    rng = np.random.default_rng(0)
    truth = 0.5 * (1 + erf(0.8 / 2))  # P(N(0.8, 1) > N(0, 1))
    held = 0
    for trial in range(300):
        drawn = draw(80, seed=trial, name="a", resamples=300), draw(60, seed=trial, name="b", resamples=300)
        low, high = estimate_auroc(rng.normal(size=80), rng.normal(0.8, size=60), drawn).interval
        held += low <= truth <= high
    assert 0.91 <= held / 300 <= 0.98
