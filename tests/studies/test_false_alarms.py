"""The ranges are those of the distributions, and random splits keep within them."""

import numpy as np
import pytest
from scipy.stats import betabinom, binom

from calibration.false_alarms import (
    Changes,
    Split,
    binomial_range,
    check_rates,
    conformal_range,
    count_alarms,
    fitted_scores,
    random_splits,
    summarise_alarms,
)
from discopatch.encoders import Features
from discopatch.errors import TooFewImagesError
from discopatch.heads.trials import Trials


def test_the_binomial_range_holds_99_percent_and_no_wider_one_is_needed() -> None:
    low, high = (round(share * 908) for share in binomial_range(908, 0.01))
    assert binom.cdf(high, 908, 0.01) - binom.cdf(low - 1, 908, 0.01) >= 0.99
    assert binom.cdf(low - 1, 908, 0.01) < 0.005
    assert binom.cdf(high - 1, 908, 0.01) < 0.995


def test_one_split_is_beta_binomial() -> None:
    low, high = conformal_range(251, 199, 0.01)
    assert (low * 251, high * 251) == pytest.approx(tuple(betabinom.ppf([0.005, 0.995], 251, 2, 198)))


def test_few_calibration_images_widen_the_range_and_many_splits_narrow_it() -> None:
    _, exact = binomial_range(908, 0.05)
    _, few = conformal_range(908, 19, 0.05)
    _, many = conformal_range(908, 1999, 0.05)
    assert few > many > exact
    assert conformal_range(908, 19, 0.05, splits=10)[1] < few


def test_splits_part_the_images_and_differ() -> None:
    splits = random_splits(50, splits=4, fit=20, calibration=10, always_fit=(0, 7), seed=0)
    for split in splits:
        parts = [split.fit, split.calibration, split.test]
        assert [len(part) for part in parts] == [20, 10, 20]
        assert sorted(np.concatenate(parts)) == list(range(50))
        assert {0, 7} <= set(split.fit)
    assert len({tuple(split.test) for split in splits}) == 4
    without_fit = random_splits(30, splits=1, calibration=10, seed=0)[0]
    assert (len(without_fit.fit), len(without_fit.calibration), len(without_fit.test)) == (0, 10, 20)


def test_an_alarm_lies_above_the_threshold() -> None:
    scores = np.array([1.0, 2.0, 3.0, 4.0, 3.0, 3.5, 9.0])
    split = Split(np.arange(0), np.arange(4), np.arange(4, 7))
    assert count_alarms(scores, split, 0.2) == 1
    assert count_alarms(scores, split, 0.4) == 2
    assert count_alarms(scores, split, 0.1) == 0, "four images are too few for a tenth"


def test_random_splits_of_any_scores_keep_within_the_range() -> None:
    scores = np.random.default_rng(0).standard_cauchy(450)
    splits = random_splits(450, splits=300, calibration=199, seed=0)
    alarms = [count_alarms(scores, each, 0.05) for each in splits]
    found = summarise_alarms(alarms, tests=251, calibration=199, rate=0.05)
    assert found["splits_within"] >= 0.975 * 300
    low, high = found["pooled_conformal"]
    assert low <= found["pooled"] <= high
    assert high - low < 0.01


def test_only_rates_for_which_there_are_enough_calibration_images_are_checked() -> None:
    scores = {"logit": np.random.default_rng(0).normal(size=60)}
    splits = random_splits(60, splits=2, calibration=30, seed=0)
    found = check_rates([scores, scores], splits, (0.01, 0.1))
    assert set(found["logit"]) == {"0.1"}
    assert found["logit"]["0.1"]["alarms"] == [count_alarms(scores["logit"], each, 0.1) for each in splits]
    with pytest.raises(TooFewImagesError):
        check_rates([scores], random_splits(60, splits=1, calibration=60, seed=0), (0.1,))


def test_scores_of_a_split_come_from_a_head_fitted_on_its_own_images() -> None:
    rng = np.random.default_rng(0)
    features = Features(rng.normal(size=(60, 4)).astype(np.float32), rng.normal(size=(60, 12)).astype(np.float32))
    split = random_splits(60, splits=1, fit=30, calibration=15, seed=0)[0]
    tried = np.concatenate([split.fit[:6], split.test[:6]])
    trials = Trials(features.select(tried), tried, np.arange(12) % 2 == 0)
    changes = Changes({"brighter": rng.normal(1, size=(3, 12)).astype(np.float32)}, trials, (8, 4))
    found = fitted_scores(features, changes, split)
    assert set(found) == {"logit", "statistics", "combined", "components"}
    assert all(each.shape == (60,) for each in found.values())
    changed = Features(features.logits.copy(), features.statistics.copy())
    changed.statistics[split.test[0]] += 5
    others = np.setdiff1d(np.arange(60), split.test[:1])
    again = fitted_scores(changed, changes, split)
    assert all(np.array_equal(found[head][others], again[head][others]) for head in found)
