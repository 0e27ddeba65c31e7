"""The promise: among normal images, no larger a share is flagged than was asked for."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy.stats import beta, binom

from discopatch.calibration import (
    TooFewImagesError,
    alarms_allowed,
    calibration_size,
    check_rate,
    images_needed,
    p_values,
    rate_range,
    threshold,
)

# Few different values, so that ties are the rule.
tied_scores = st.lists(st.integers(-3, 3).map(float), max_size=40)
any_scores = st.lists(st.floats(-1e6, 1e6), max_size=40)
rates = st.fractions(Fraction(1, 500), Fraction(99, 100), max_denominator=500)


@settings(deadline=None)
@given(tied_scores | any_scores, tied_scores | any_scores)
def test_a_p_value_is_the_share_of_normal_images_at_least_this_strange(scores, calibration) -> None:
    expected = []
    for score in scores:
        at_least = 1
        for normal in calibration:
            at_least += normal >= score
        expected.append(at_least / (len(calibration) + 1))
    assert p_values(scores, calibration).tolist() == expected


def test_the_order_of_the_calibration_images_does_not_matter() -> None:
    calibration, scores = np.random.default_rng(0).normal(size=(2, 50))
    assert np.array_equal(p_values(scores, calibration), p_values(scores, np.sort(calibration)[::-1]))
    assert threshold(calibration, 0.1) == threshold(np.sort(calibration)[::-1], 0.1)


def test_the_strangest_of_all_has_the_smallest_p_value_that_there_is() -> None:
    assert p_values([5.0, -5.0], np.zeros(99)).tolist() == [1 / 100, 1.0]


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


@pytest.mark.parametrize(("rate", "images"), [(0.01, 99), (0.05, 19), (0.1, 9), (0.2, 4), (0.5, 1), (0.03, 33)])
def test_so_many_images_are_needed(rate: float, images: int) -> None:
    assert images_needed(rate) == images


@settings(deadline=None)
@given(rates)
def test_with_the_images_needed_a_p_value_reaches_the_rate_and_with_one_less_it_does_not(rate) -> None:
    needed = images_needed(float(rate))
    assert Fraction(1, needed + 1) <= rate
    assert Fraction(1, needed) > rate


@pytest.mark.parametrize(("images", "rate"), [(99, 0.01), (19, 0.05), (39, 0.05), (9, 0.1), (3, 0.5)])
def test_the_promise_is_exact_for_exchangeable_images(images: int, rate: float) -> None:
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
    held_out = calibration_size(images, float(rate), fewest_to_fit=20)
    assert needed <= held_out < max(needed, images / 3) + 1
    assert images - held_out >= 20
    alarms = alarms_allowed(held_out, float(rate))
    assert alarms_allowed(held_out - 1, float(rate)) < alarms, "the last image held out brings nothing"
    assert images / 3 < (alarms + 1) / rate, "a third would allow one alarm more, and be more exact"


@pytest.mark.parametrize(
    ("images", "rate", "held_out"),
    [
        (119, 0.01, 99),
        (300, 0.01, 99),
        (597, 0.01, 199),
        (596, 0.01, 99),
        (57, 0.05, 19),
        (117, 0.05, 39),
        (30, 0.1, 9),
    ],
)
def test_a_multiple_of_the_rate_is_met_to_the_digit(images: int, rate: float, held_out: int) -> None:
    assert calibration_size(images, rate, fewest_to_fit=20) == held_out
    assert alarms_allowed(held_out, rate) / (held_out + 1) == pytest.approx(rate, rel=1e-12)


def test_too_few_images_for_a_rate_are_counted_and_another_rate_is_named() -> None:
    with pytest.raises(TooFewImagesError) as told:
        calibration_size(30, 0.01, fewest_to_fit=20)
    assert str(told.value) == (
        "30 images; a false-alarm rate of 1.00% needs at least 119 (99 held out to calibrate, 20 to fit): "
        "add images, or raise false_alarm_rate to 0.091"
    )


@settings(deadline=None)
@given(st.integers(30, 3000), st.floats(1e-4, 0.1))
def test_the_rate_that_an_error_names_really_works(images: int, rate: float) -> None:
    assume(images - images_needed(rate) < 20)
    with pytest.raises(TooFewImagesError) as told:
        calibration_size(images, rate, fewest_to_fit=20)
    named = float(str(told.value).rsplit(" ", 1)[1])
    assert named > rate
    assert images - calibration_size(images, named, fewest_to_fit=20) >= 20


@settings(deadline=None)
@given(st.integers(30, 3000), st.floats(1e-3, 0.1))
def test_the_number_of_images_that_an_error_names_really_works(images: int, rate: float) -> None:
    assume(images - images_needed(rate) < 20)
    with pytest.raises(TooFewImagesError) as told:
        calibration_size(images, rate, fewest_to_fit=20)
    named = int(str(told.value).split("at least ")[1].split(" ")[0])
    assert named - calibration_size(named, rate, fewest_to_fit=20) >= 20
    with pytest.raises(TooFewImagesError):
        calibration_size(named - 1, rate, fewest_to_fit=20)


@pytest.mark.parametrize("rate", [0.0, 1.0, -0.1, 1.5, float("nan")])
def test_what_is_no_rate_is_refused(rate: float) -> None:
    with pytest.raises(ValueError, match=r"false_alarm_rate is .*must lie between 0 and 1, such as 0\.01"):
        check_rate(rate)


@pytest.mark.parametrize(("images", "rate"), [(99, 0.01), (199, 0.01), (19, 0.05), (999, 0.05)])
def test_the_likely_rates_hold_nine_detectors_in_ten(images: int, rate: float) -> None:
    """For uniform scores the rate of one detector is just what lies above its threshold."""
    low, high = rate_range(images, rate)
    allowed = round(rate * (images + 1))
    assert (low, high) == pytest.approx(beta.interval(0.9, allowed, images + 1 - allowed))
    calibrations = np.random.default_rng(0).random((4000, images))
    above = np.array([1 - threshold(calibration, rate) for calibration in calibrations])
    assert above.mean() == pytest.approx(rate, abs=4 * above.std() / np.sqrt(len(above)))
    inside = int(((low <= above) & (above <= high)).sum())
    assert binom.ppf(1e-4, 4000, 0.9) <= inside <= binom.ppf(1 - 1e-4, 4000, 0.9)


def test_the_likely_rates_narrow_with_more_images() -> None:
    widths = [high - low for low, high in (rate_range(images, 0.05) for images in (19, 99, 399, 1999))]
    assert widths == sorted(widths, reverse=True)


def test_a_detector_that_can_flag_nothing_has_no_false_alarms() -> None:
    assert rate_range(5, 0.01) == (0.0, 0.0)
