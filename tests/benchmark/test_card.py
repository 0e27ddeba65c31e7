"""The card says what the reports say, and refuses reports of other weights."""

import json

import numpy as np
import pytest

from discopatch.benchmark.card import LIKE_A_DEFECT, card_figures, check_digests, small_figures
from discopatch.images.corrupt import CORRUPTIONS

from .report_samples import Report, make_report

NATURAL, SOLAR = make_report(seed=0), make_report(seed=1)
PROMISES: Report = {
    "made": {"weights digest": NATURAL["made"]["weights digest"]},
    "false alarms": {
        suite: {head: {"0.01": {"pooled": share}, "0.05": {"pooled": 5 * share}} for head in ("logit", "combined")}
        for suite, share in (("solar", 0.0098), ("natural", 0.008))
    },
}


def test_means_are_those_of_the_matched_protocol_with_their_intervals() -> None:
    found = card_figures(SOLAR, NATURAL, PROMISES)
    for suite, report in (("solar", SOLAR), ("natural", NATURAL)):
        means = report["protocols"]["matched"]["means"]["covariate"]
        assert found[f"{suite}, 19 corruptions x 5 severities"] == {
            head: means[f"discopatch/{head}"]["auroc"] for head in ("combined", "statistics", "logit")
        }


def test_corruptions_unlike_any_defect_of_the_training_stand_apart() -> None:
    corruptions = NATURAL["protocols"]["matched"]["corruptions"]
    assert LIKE_A_DEFECT.issubset(CORRUPTIONS)
    values = [
        level["discopatch/logit"]["auroc"][0]
        for name in CORRUPTIONS
        if name not in LIKE_A_DEFECT
        for level in corruptions[name].values()
    ]
    found = card_figures(SOLAR, NATURAL, PROMISES)["natural, corruptions unlike any training defect, mean alone"]
    assert found["logit"] == pytest.approx(np.mean(values), abs=1e-5)


def test_other_sets_come_with_their_control_and_promises_with_what_was_found() -> None:
    found = card_figures(SOLAR, NATURAL, PROMISES)
    steel = NATURAL["protocols"]["matched"]["sets"]["steel"]["methods"]["discopatch/combined"]
    assert found["other sets, combined"]["steel"] == steel["auroc"]
    assert found["other sets, route control, combined"]["steel"] == steel["control"]
    assert found["false alarms, combined"]["solar"] == {"0.01": 0.0098, "0.05": 0.049}
    assert json.loads(json.dumps(found)) == found


def test_figures_of_other_weights_are_refused_with_their_report() -> None:
    digest = NATURAL["made"]["weights digest"]
    check_digests(digest, {"natural": NATURAL, "promises": PROMISES})
    with pytest.raises(ValueError, match=r"promises was made with other weights .*: measure again"):
        check_digests(digest, {"natural": NATURAL, "promises": {"made": {"weights digest": "another"}}})


def test_the_card_of_the_small_weights_has_corruptions_and_near_sets_of_both_suites() -> None:
    found = small_figures(SOLAR, NATURAL)
    for suite, report in (("solar", SOLAR), ("natural", NATURAL)):
        means = report["protocols"]["matched"]["means"]
        for title, group in (("19 corruptions at severity 3", "covariate"), ("near sets", "near")):
            assert found[f"{suite}, {title}"]["combined"] == means[group]["discopatch/combined"]["auroc"]
