"""A detector says how many images it rests on, and what that is worth."""

import pytest

from discopatch.decision import Trust
from discopatch.decision.conformal import rate_range


def test_the_likely_rates_are_those_of_the_calibration_images() -> None:
    assert Trust(5000, 199, 0.01).likely_rates == rate_range(199, 0.01)


def test_the_words_name_every_number_that_counts() -> None:
    trust = Trust(fitted=398, calibrated=199, false_alarm_rate=0.01)
    low, high = trust.likely_rates
    for number in ("398", "199", "1.0%", f"{low:.1%}", f"{high:.1%}"):
        assert number in trust.words
    assert low < 0.01 < high


@pytest.mark.parametrize(("fitted", "few"), [(20, True), (99, True), (100, False), (5000, False)])
def test_few_images_are_called_few_with_what_to_do_about_it(fitted: int, few: bool) -> None:
    words = Trust(fitted, 99, 0.01).words
    assert ("Fewer than 100 images" in words) == few
    assert words.endswith("Add images.") == few
