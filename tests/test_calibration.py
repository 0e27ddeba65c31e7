"""Among normal images, no larger a share is flagged than was asked for: of new groups, too, where images have them."""

import re
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.spatial.distance import cdist
from scipy.stats import beta, binom

from discopatch.calibration import (
    Guarantee,
    alarms_allowed,
    calibration_size,
    check_calibration,
    check_rate,
    choose_rate,
    fold_numbers,
    images_needed,
    least_selected,
    p_values,
    select,
    smallest_rate,
    split_images,
    sure_images,
    sure_level,
    sure_rate,
    threshold,
    usual_level,
)
from discopatch.errors import ParameterError, TooFewImagesError

# Few different values, so that ties are the rule.
tied_scores = st.lists(st.integers(-3, 3).map(float), max_size=40)
any_scores = st.lists(st.floats(-1e6, 1e6), max_size=40)
rates = st.fractions(Fraction(1, 500), Fraction(99, 100), max_denominator=500)


@settings(deadline=None)
@given(tied_scores | any_scores, tied_scores | any_scores)
def test_a_p_value_is_the_share_of_normal_images_that_score_at_least_as_high(scores, calibration) -> None:
    expected = []
    for score in scores:
        at_least = 1
        for normal in calibration:
            at_least += normal >= score
        expected.append(at_least / (len(calibration) + 1))
    assert p_values(scores, calibration).tolist() == expected


@settings(deadline=None)
@given(tied_scores | any_scores, tied_scores | any_scores, rates)
def test_an_image_is_flagged_exactly_when_its_p_value_is_within_the_rate(scores, calibration, rate) -> None:
    """The rate in whole numbers, where nothing is rounded; ties with the threshold are not flagged."""
    limit = threshold(calibration, float(rate))
    for score in [*scores, *calibration]:
        within = Fraction(1 + sum(normal >= score for normal in calibration), 1 + len(calibration)) <= rate
        assert (score > limit) == within


@settings(deadline=None)
@given(st.integers(0, 3000), rates)
def test_the_alarms_allowed_are_the_most_that_keep_the_rate(images, rate) -> None:
    allowed = alarms_allowed(images, float(rate))
    assert Fraction(allowed, images + 1) <= rate
    assert Fraction(allowed + 1, images + 1) > rate


@pytest.mark.parametrize("rate", [0.01, 0.05, 0.1, 0.25])
def test_a_threshold_that_no_score_can_reach_is_infinite(rate: float) -> None:
    needed = images_needed(rate)
    assert threshold(np.arange(needed - 1), rate) == np.inf
    assert threshold(np.arange(needed), rate) == needed - 1


@settings(deadline=None)
@given(rates)
def test_with_the_images_needed_a_p_value_reaches_the_rate_and_with_one_less_it_does_not(rate) -> None:
    needed = images_needed(float(rate))
    assert Fraction(1, needed + 1) <= rate
    assert Fraction(1, needed) > rate


@pytest.mark.parametrize(("images", "rate"), [(99, 0.01), (19, 0.05), (39, 0.05), (9, 0.1), (3, 0.5)])
def test_the_rate_is_exact_for_exchangeable_images(images: int, rate: float) -> None:
    """Any distribution will do, a skewed one here; a p-value is uniform over its steps."""
    draws = 20_000
    scores = np.random.default_rng(images).lognormal(size=(draws, images + 1))
    flagged = sum(bool(new > threshold(calibration, rate)) for *calibration, new in scores)
    low, high = binom.ppf([1e-4, 1 - 1e-4], draws, rate)
    assert low <= flagged <= high


def test_ties_only_make_false_alarms_rarer() -> None:
    draws, images, rate = 20_000, 19, 0.1
    scores = np.random.default_rng(0).integers(0, 4, size=(draws, images + 1))
    flagged = sum(bool(new > threshold(calibration, rate)) for *calibration, new in scores)
    assert flagged <= binom.ppf(1 - 1e-4, draws, rate)


@settings(deadline=None)
@given(st.integers(30, 5000), st.fractions(Fraction(1, 100), Fraction(1, 2), max_denominator=100))
def test_the_images_held_out_meet_the_rate_as_nearly_as_whole_numbers_can(images, rate) -> None:
    needed = images_needed(float(rate))
    assume(images - needed >= 20)
    held_out = calibration_size(images, float(rate), min_fit=20)
    assert needed <= held_out < max(needed, images / 3) + 1
    assert images - held_out >= 20
    alarms = alarms_allowed(held_out, float(rate))
    assert alarms_allowed(held_out - 1, float(rate)) < alarms, "the last image held out brings nothing"
    assert images / 3 < (alarms + 1) / rate, "a third would allow one alarm more, and be more exact"


def numbers_of(error: BaseException) -> list[float]:
    """The numbers that a message names, in order."""
    return [float(each.replace(",", "")) for each in re.findall(r"\d+(?:,\d{3})*(?:\.\d+)?", str(error))]


def test_too_few_images_for_a_rate_are_counted_and_another_rate_is_named() -> None:
    with pytest.raises(TooFewImagesError, match="false_alarm_rate") as raised:
        calibration_size(30, 0.01, min_fit=20)
    assert numbers_of(raised.value) == [30, 1.00, 119, 99, 20, 0.091]
    with pytest.raises(TooFewImagesError) as raised:
        calibration_size(118, 0.01, min_fit=20)
    assert numbers_of(raised.value)[-1] == pytest.approx(0.0102)


def size(images: int, rate: float) -> int:
    return calibration_size(images, rate, min_fit=20)


def size_in_groups(groups: int, rate: float) -> int:
    """With ten images each."""
    _, held_out = split_images(np.arange(10 * groups) % groups, rate, seed=0, min_fit=20)
    return len(held_out)


@pytest.mark.parametrize(("held_out", "fewest"), [(size, 30), (size_in_groups, 3)])
@settings(deadline=None, max_examples=50)
@given(data=st.data(), rate=st.floats(1e-3, 0.08))
def test_the_rate_and_the_number_that_an_error_names_really_work(
    held_out: Callable[[int, float], int], fewest: int, data: st.DataObject, rate: float
) -> None:
    least_to_fit = 20 if held_out is size else min(20, images_needed(rate) - 1)
    images = data.draw(st.integers(fewest, images_needed(rate) + least_to_fit - 1))
    with pytest.raises(TooFewImagesError) as raised:
        held_out(images, rate)
    counted, _, needed, *_, other_rate = numbers_of(raised.value)
    assert counted == images
    assert other_rate > rate
    assert images - held_out(images, other_rate) >= 1
    assert held_out(int(needed), rate) == images_needed(rate)
    with pytest.raises(TooFewImagesError):
        held_out(int(needed) - 1, rate)


@pytest.mark.parametrize("rate", [0.01, 0.05, 0.2])
def test_a_calibration_that_cannot_keep_the_rate_is_refused_with_the_number_it_needs(rate: float) -> None:
    needed = images_needed(rate)
    check_calibration(needed, rate)
    with pytest.raises(TooFewImagesError, match=str(needed)):
        check_calibration(needed - 1, rate)


@pytest.mark.parametrize("rate", [0.0, 1.0, -0.1, 1.5, float("nan")])
def test_what_is_no_rate_is_refused(rate: float) -> None:
    with pytest.raises(ParameterError, match=f"false_alarm_rate is {rate}"):
        check_rate(rate)


@pytest.mark.parametrize(("images", "rate"), [(99, 0.01), (199, 0.01), (19, 0.05), (999, 0.05)])
def test_the_likely_rates_hold_nine_detectors_in_ten(images: int, rate: float) -> None:
    """For uniform scores the rate of one detector is just what lies above its threshold."""
    low, high = Guarantee(images, images, rate).likely_rates
    allowed = round(rate * (images + 1))
    assert (low, high) == pytest.approx(beta.interval(0.9, allowed, images + 1 - allowed))
    calibrations = np.random.default_rng(0).random((4000, images))
    above = np.array([1 - threshold(calibration, rate) for calibration in calibrations])
    assert above.mean() == pytest.approx(rate, abs=4 * above.std() / np.sqrt(len(above)))
    inside = int(((low <= above) & (above <= high)).sum())
    assert binom.ppf(1e-4, 4000, 0.9) <= inside <= binom.ppf(1 - 1e-4, 4000, 0.9)


@pytest.mark.parametrize(("images", "rate"), [(1, 0.5), (9, 0.9), (99, 0.99), (50_000, 0.1), (1_000_000, 0.00001)])
def test_the_likely_rates_are_those_of_a_beta_distribution(images: int, rate: float) -> None:
    allowed = round(rate * (images + 1))
    expected = beta.interval(0.9, allowed, images + 1 - allowed)
    assert Guarantee(images, images, rate).likely_rates == pytest.approx(expected, rel=1e-9)


# Splits


@settings(deadline=None)
@given(st.integers(30, 300), st.integers(0, 9))
def test_every_image_is_either_fitted_or_held_out(images: int, seed: int) -> None:
    fit, held_out = split_images(np.arange(images), 0.1, seed=seed, min_fit=20)
    assert sorted([*fit, *held_out]) == list(range(images))
    assert len(held_out) == calibration_size(images, 0.1, min_fit=20)
    assert fit.tolist() == sorted(fit)
    assert held_out.tolist() == sorted(held_out)


def test_the_seed_decides_what_is_held_out_and_every_image_may_be() -> None:
    splits = [split_images(np.arange(60), 0.1, seed=seed, min_fit=20)[1].tolist() for seed in range(200)]
    assert splits[3] == split_images(np.arange(60), 0.1, seed=3, min_fit=20)[1].tolist()
    counts = np.bincount(np.concatenate(splits), minlength=60)
    low, high = binom.ppf([1e-5, 1 - 1e-5], 200, 19 / 60)
    assert ((low <= counts) & (counts <= high)).all()


def test_what_must_be_fitted_is_never_held_out() -> None:
    for seed in range(30):
        fit, held_out = split_images(np.arange(60), 0.1, seed=seed, min_fit=20, fitted=range(20))
        assert held_out.min() >= 20
        assert sorted([*fit, *held_out]) == list(range(60))
    with pytest.raises(TooFewImagesError, match="--resolution"):
        split_images(np.arange(60), 0.05, seed=0, min_fit=20, fitted=range(45))


def shuffled_groups(sizes: list[int]) -> NDArray[np.intp]:
    """The group of each image; the images of a group do not lie together."""
    return np.random.default_rng(0).permutation(np.repeat(np.arange(len(sizes)), sizes))


@settings(deadline=None)
@given(st.lists(st.integers(2, 8), min_size=25, max_size=60), st.integers(0, 9))
def test_of_every_group_that_is_held_out_one_image_calibrates_and_none_is_fitted(sizes: list[int], seed: int) -> None:
    groups = shuffled_groups(sizes)
    fit, held_out = split_images(groups, 0.1, seed=seed, min_fit=20)
    assert len(set(groups[held_out])) == len(held_out) == calibration_size(len(sizes), 0.1, min_fit=1)
    assert fit.tolist() == np.flatnonzero(~np.isin(groups, groups[held_out])).tolist()
    assert held_out.tolist() == sorted(held_out)


def test_any_image_of_a_group_may_calibrate_and_the_seed_decides_which() -> None:
    groups = shuffled_groups([4] * 30)

    def held_out(seed: int) -> list[int]:
        return list(split_images(groups, 0.1, seed=seed, min_fit=20)[1])

    assert held_out(3) == held_out(3) != held_out(4)
    assert {place for seed in range(100) for place in held_out(seed)} == set(range(len(groups)))


@pytest.mark.parametrize(
    ("sizes", "rate", "counted"),
    [
        ([100] * 10, 0.1, 10),  # too few groups for the rate
        ([1] * 30, 0.01, 30),
        ([1] * 36, 0.05, 36),
        ([2] + [1] * 29, 0.1, 22),  # enough groups, and too few images are left to fit
    ],
)
def test_too_few_images_or_groups_are_counted(sizes: list[int], rate: float, counted: int) -> None:
    with pytest.raises(TooFewImagesError) as raised:
        split_images(shuffled_groups(sizes), rate, seed=0, min_fit=25)
    assert numbers_of(raised.value)[0] == counted


@settings(deadline=None)
@given(st.integers(1, 500), st.lists(st.integers(0, 30), min_size=1, max_size=100))
def test_no_group_is_in_two_folds(images: int, groups: list[int]) -> None:
    assert fold_numbers(images).tolist() == [image % 5 for image in range(images)]
    folds = fold_numbers(len(groups), np.array(groups))
    if len(set(groups)) > 1:
        assert all(len(set(folds[np.array(groups) == group])) == 1 for group in groups)
    else:
        assert len(set(folds)) == min(5, len(groups)), "one group alone is no reason to have nothing to fit on"


# The rate that is chosen


@pytest.mark.parametrize(
    ("images", "rate"),
    [(30, 0.1), (37, 0.1), (39, 0.05), (97, 0.05), (98, 0.02), (197, 0.02), (198, 0.01), (9999, 0.01)],
)
def test_auto_takes_the_smallest_rate_for_which_at_most_half_is_held_out(images: int, rate: float) -> None:
    assert choose_rate("auto", np.arange(images), min_fit=20) == rate
    fit, held_out = split_images(np.arange(images), rate, seed=0, min_fit=20)
    assert len(held_out) <= images / 2
    assert len(fit) >= 20


def test_auto_counts_groups_and_leaves_a_rate_of_ones_own_alone() -> None:
    assert choose_rate("auto", np.arange(1000) // 10, min_fit=20) == 0.02
    assert choose_rate("auto", np.arange(1000) // 50, min_fit=20) == 0.1
    assert choose_rate(0.07, np.arange(1000), min_fit=20) == 0.07
    assert [smallest_rate(count) for count in (9, 19, 49, 99)] == [0.1, 0.05, 0.02, 0.01]


def test_the_guarantee_says_k_of_n_and_what_allows_the_next_rate() -> None:
    guarantee = Guarantee(20, 10, 0.1)
    assert (guarantee.alarms, guarantee.bound) == (1, 1 / 11)
    assert "9.1%" in guarantee.text
    assert "39 images would allow 5%" in guarantee.next_rate_text(min_fit=20)
    assert [choose_rate("auto", np.arange(count), min_fit=20) for count in (38, 39)] == [0.1, 0.05]
    assert "198 groups would allow 1%" in Guarantee(100, 49, 0.02, 98).next_rate_text(min_fit=20)
    assert Guarantee(100, 99, 0.01).next_rate_text(min_fit=20) == ""
    assert "10 other groups" in Guarantee(20, 10, 0.1, 30).text


def test_with_bursts_of_near_copies_the_rate_for_new_bursts_holds_by_groups_and_by_them_alone() -> None:
    """An image is a point, a burst a cluster of points, and its score the distance to the nearest point fitted."""
    rate, bursts, length, dimensions = 0.1, 60, 5, 8
    groups = np.repeat(np.arange(bursts), length)
    flagged: dict[str, list[float]] = {"groups": [], "images": []}
    for seed in range(200):
        rng = np.random.default_rng(seed)
        centres = rng.normal(size=(2 * bursts, dimensions))
        known = np.repeat(centres[:bursts], length, axis=0) + 0.01 * rng.normal(size=(len(groups), dimensions))
        new = centres[bursts:]
        splits = {
            "groups": split_images(groups, rate, seed=seed, min_fit=20),
            "images": split_images(np.arange(len(groups)), rate, seed=seed, min_fit=20),
        }
        for name, (fit, held_out) in splits.items():
            scores = [cdist(points, known[fit]).min(1) for points in (known[held_out], new)]
            flagged[name].append(float(np.mean(scores[1] > threshold(scores[0], rate))))
    # A detector's own rate follows Beta(2, 18) with 19 held out, whose deviation is 0.065.
    assert np.mean(flagged["groups"]) == pytest.approx(rate, abs=4 * 0.065 / np.sqrt(200))
    assert np.mean(flagged["images"]) > 0.9


@pytest.mark.parametrize(("images", "spared"), [(19, 0), (60, 0), (60, 1), (199, 0)])
def test_few_new_images_exceed_the_usual_level(images: int, spared: int) -> None:
    rng = np.random.default_rng(images)
    above = [
        (rng.normal(size=50) > usual_level(rng.normal(size=images), 0.05, spared=spared)).mean() for _ in range(400)
    ]
    assert np.mean(above) <= 0.055
    assert np.mean(above) > 0.02


def test_the_usual_level_of_too_few_images_is_beyond_all_and_of_a_group_one_counts() -> None:
    values = np.arange(12.0)
    assert usual_level(values, 0.05) > 11
    groups = np.repeat(np.arange(40), 2)
    values = np.repeat(np.arange(40.0), 2) + np.tile([0, 0.5], 40)
    assert usual_level(values, 0.05, groups) == 38


@pytest.mark.parametrize(("rate", "confidence"), [(0.01, 0.95), (0.05, 0.95), (0.1, 0.99), (0.1, 0.8)])
def test_the_fewest_images_for_a_confidence_are_those_of_the_binomial_distribution(
    rate: float, confidence: float
) -> None:
    """The largest of n scores is exceeded by more than the rate with chance (1 - rate) ** n."""
    needed = sure_images(rate, confidence)
    assert (1 - rate) ** needed <= 1 - confidence < (1 - rate) ** (needed - 1)
    assert sure_level(needed, rate, confidence) == 1 / (needed + 1)
    assert sure_level(needed - 1, rate, confidence) == 0


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 2000), st.sampled_from([0.01, 0.05, 0.1]), st.sampled_from([0.8, 0.95]))
def test_a_level_is_the_largest_that_keeps_the_rate_with_the_confidence(images, rate, confidence) -> None:
    alarms = round(sure_level(images, rate, confidence) * (images + 1))
    for k, kept in ((alarms, True), (alarms + 1, False)):
        if 0 < k <= images:
            assert (beta.ppf(confidence, k, images + 1 - k) <= rate * (1 + 1e-9)) == kept


def test_with_a_confidence_few_detectors_have_a_higher_rate() -> None:
    rng, level = np.random.default_rng(0), sure_level(120, 0.05, 0.95)
    rates = np.array(
        [(rng.exponential(size=20_000) > threshold(rng.exponential(size=120), level)).mean() for _ in range(400)]
    )
    on_average = np.array(
        [(rng.exponential(size=20_000) > threshold(rng.exponential(size=120), 0.05)).mean() for _ in range(400)]
    )
    assert (rates > 0.05).mean() < 0.08
    assert (on_average > 0.05).mean() > 0.3


def test_too_few_images_for_a_confidence_name_the_number() -> None:
    with pytest.raises(TooFewImagesError, match="needs 299"):
        sure_rate(0.01, 0.95, 298)
    assert sure_rate("auto", 0.95, 298) == 0.02
    with pytest.raises(TooFewImagesError, match="needs 29"):
        sure_rate("auto", 0.95, 28)


@settings(deadline=None)
@given(st.lists(st.integers(1, 20).map(lambda each: each / 20) | st.just(float("nan")), max_size=30), rates)
def test_selected_images_are_those_of_the_step_up_procedure(values, fdr) -> None:
    """The largest k for which k p-values are at most fdr * k / m, in whole numbers."""
    known = [round(20 * each) for each in values if each == each]
    fits = [k for k in range(1, len(known) + 1) if Fraction(sorted(known)[k - 1], 20) <= fdr * k / len(known)]
    found = select(values, float(fdr))
    assert len(found) == max(fits, default=0)
    assert sorted(known)[: len(found)] == [round(20 * values[index]) for index in found]


def test_few_of_the_selected_images_are_normal() -> None:
    rng, shares = np.random.default_rng(1), []
    for _ in range(600):
        scores = np.concatenate([rng.normal(size=180), rng.normal(4, 1, size=20)])
        found = select(p_values(scores, rng.normal(size=999)), 0.2)
        shares.append((found < 180).mean() if len(found) else 0.0)
    assert 0.12 < np.mean(shares) < 0.2


@pytest.mark.parametrize(("images", "calibration", "fdr"), [(500, 99, 0.1), (20, 199, 0.1), (7, 9, 0.05), (1, 9, 0.1)])
def test_the_fewest_selected_images_are_those_above_all_calibration_scores(images, calibration, fdr) -> None:
    least, smallest = least_selected(images, calibration, fdr), 1 / (calibration + 1)
    for above in range(images + 1):
        p = [smallest] * above + [1.0] * (images - above)
        assert bool(len(select(p, fdr))) == (above >= least)
