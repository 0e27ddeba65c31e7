"""What is said about an image: a verdict or a reason why not, and the changes that stand out in words."""

from typing import Any

import pytest

from discopatch.results import Prediction
from discopatch.decision.explanation import MOST_REASONS, STANDS_OUT, in_words

QUIET = {"blurred": 0.5, "noisy": -1.0, "darker": 2.9, "hazy": 0.0}


def test_a_usual_image_has_no_reasons() -> None:
    assert in_words(QUIET, QUIET) == ()
    assert in_words({}, QUIET) == ()


def test_what_stands_out_is_named_the_strongest_first() -> None:
    assert in_words({**QUIET, "noisy": 8.0, "hazy": 12.0}, QUIET) == ("hazy", "noisy")


def test_what_is_less_than_half_as_surprising_as_the_strongest_stays_unsaid() -> None:
    assert in_words({**QUIET, "noisy": 20.0, "hazy": 9.9, "darker": 10.0}, QUIET) == ("noisy", "darker")


def test_a_change_is_named_from_where_it_begins_to_stand_out() -> None:
    assert in_words({**QUIET, "noisy": STANDS_OUT}, QUIET) == ("noisy",)
    assert in_words({**QUIET, "noisy": STANDS_OUT - 1e-9}, QUIET) == ()


def test_a_change_of_a_corner_alone_is_named_too() -> None:
    assert in_words(QUIET, {**QUIET, "noisy": 6.0}) == ("noisy",)


def test_a_change_counts_once_by_where_it_shows_most() -> None:
    assert in_words({**QUIET, "noisy": 4.0, "hazy": 7.0}, {**QUIET, "noisy": 9.0, "hazy": 1.0}) == ("noisy", "hazy")


def test_no_more_than_a_few_reasons_are_given() -> None:
    loud = {f"change {number}": 10.0 + number for number in range(6)}
    reasons = in_words(loud, dict.fromkeys(loud, 0.0))
    assert reasons == ("change 5", "change 4", "change 3")
    assert len(reasons) == MOST_REASONS


def test_a_head_without_words_leaves_them_to_the_regions() -> None:
    assert in_words({}, {**QUIET, "hazy": 5.0}) == ("hazy",)


@pytest.mark.parametrize(
    "wrong",
    [
        {"score": None, "p_value": None, "is_ood": None},
        {"score": 1.0, "p_value": 0.5, "is_ood": False, "error": "truncated"},
        {"score": None, "p_value": 0.5, "is_ood": None, "error": "truncated"},
        {"score": None, "p_value": None, "is_ood": False, "error": "truncated"},
    ],
)
def test_a_prediction_is_a_verdict_or_an_error_never_both_never_neither(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"a\.jpg: "):
        Prediction("a.jpg", **wrong)


def test_a_verdict_and_an_error_are_predictions() -> None:
    assert Prediction("a.jpg", 1.5, 0.01, True).error is None
    assert Prediction("b.jpg", None, None, None, "truncated: the file ends early").score is None
