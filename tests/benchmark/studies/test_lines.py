"""The studies in the CSV of a benchmark run: every figure once, and to the last digit."""

import copy
import csv
import io

import numpy as np
import pytest

from discopatch.benchmark.studies.lines import study_lines
from discopatch.benchmark.tables.csv import COLUMNS, render
from tests.benchmark.report_samples import make_report, only
from tests.benchmark.studies.report_samples import make_studies_report

REPORT = make_studies_report()
BENCH = only(make_report(0), ["discopatch/combined", "resnet50/energy"])
LINES = list(csv.DictReader(io.StringIO(render(BENCH, study_lines(REPORT)))))
READ = {
    tuple(line[key] for key in COLUMNS[:5]): [float(line[end]) for end in COLUMNS[5:] if line[end]] for line in LINES
}


def test_no_figure_is_there_twice_and_those_of_the_benchmark_are_as_before() -> None:
    assert len(READ) == len(LINES)
    before = list(csv.DictReader(io.StringIO(render(BENCH))))
    assert LINES[: len(before)] == before
    assert len(LINES) > len(before)


def test_evaluations_read_back_under_the_names_of_a_benchmark() -> None:
    for run, found in REPORT["evaluation"].items():
        for group, scores in found["groups"].items():
            for score, figure in scores.items():
                assert READ["matched", "mean", group, f"{run}/{score}", "auroc"] == figure
    sets = REPORT["evaluation"]["natural-1"]["sets"]
    method = "natural-1/combined"
    assert READ["matched", "textures", "near", method, "auroc"] == sets["textures"]["combined"]
    assert READ["matched", "photos-227px", "control", method, "auroc"] == sets["photos-227px"]["combined"]
    assert READ["matched", "fog/3", "covariate", method, "auroc"] == sets["fog 3"]["combined"]


def test_counts_batches_spectra_and_trainings_read_back() -> None:
    counts = REPORT["patch counts"]["released"]["counts"]
    assert READ["matched", "mean", "far", "released-128/statistics", "auroc"] == counts["128"]["far"]["statistics"]
    bias = REPORT["batch normalisation"]["full-0"]
    assert READ["matched", "mean", "near", "full-0/learned", "auroc"] == bias["learned"]["near"]["auroc"]
    for way in ("batch", "own sets", "half", "one"):
        found = bias[way]["16"]["near"]
        assert READ["matched", "mean", "near", f"full-0/{way} 16", "auroc"] == found["auroc"]
        for number, value in enumerate(found["rounds"], start=1):
            assert READ["matched", "mean", "near", f"full-0/{way} 16", f"auroc round {number}"] == [value]
    curves = REPORT["spectra"]["paper-0"]["curves"]
    for kind in ("real", "reconstructed", "generated"):
        power = [READ["", str(frequency), "spectra", f"paper-0/{kind}", "power"] for frequency in curves["frequencies"]]
        assert power == [[value] for value in curves[kind]]
    assert READ["", "", "training", "full-0", "seconds"] == [REPORT["runs"]["full-0"]["seconds"]]


def test_seeds_are_summed_up() -> None:
    values = [REPORT["evaluation"][f"paper-{seed}"]["groups"]["near"]["logit"][0] for seed in range(3)]
    where = ("matched", "mean", "near", "paper/logit")
    assert READ[*where, "auroc mean over seeds"] == pytest.approx([np.mean(values)])
    assert READ[*where, "auroc spread over seeds"] == pytest.approx([np.std(values, ddof=1)])
    difference = READ["matched", "mean", "near", "natural-paper/logit", "auroc difference"]
    assert difference[1] < difference[0] < difference[2]


def test_one_seed_has_no_spread_and_a_study_that_is_missing_no_lines() -> None:
    report = copy.deepcopy(REPORT)
    report["evaluation"] = {name: each for name, each in report["evaluation"].items() if name.endswith("-0")}
    del report["batch normalisation"], report["spectra"], report["patch counts"], report["runs"]
    found = list(study_lines(report))
    assert {line[4] for line in found} == {"auroc", "auroc mean over seeds", "auroc difference"}
    assert all(line[6:] == (None, None) for line in found if line[4] != "auroc")
    assert list(study_lines({"plan": REPORT["plan"], "made": REPORT["made"]})) == []
