"""Losses, seeds, the clock and the ledger."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import ttest_1samp

from discopatch.benchmark.studies.clock import Clock, OutOfTime
from discopatch.benchmark.studies.ledger import Ledger
from discopatch.benchmark.studies.losses import thinned
from discopatch.benchmark.studies.seeds import Spread, by_seed, paired
from tests.benchmark.studies.samples import SMALL


def never() -> dict[str, Any]:
    raise AssertionError("made again")


def make_ledger(folder: Path, *, minutes: float | None = None, **changes) -> Ledger:
    clock = Clock(minutes, say=lambda line: None)
    return Ledger(folder / "work", folder / "out", replace(SMALL, **changes), clock)


def test_thinned_losses_are_means_of_blocks_at_their_last_step() -> None:
    lines = np.column_stack([np.arange(1, 13), np.arange(12.0), np.ones(12)])
    assert thinned(lines, most=4).tolist() == [[3, 1, 1], [6, 4, 1], [9, 7, 1], [12, 10, 1]]
    assert np.array_equal(thinned(lines), lines)
    assert len(thinned(np.ones((1954, 8)))) == 500


def test_the_interval_over_seeds_is_that_of_the_t_test() -> None:
    values = [0.81, 0.83, 0.80, 0.86, 0.82]
    spread = Spread.of(values)
    reference = ttest_1samp(values, 0).confidence_interval(0.95)
    assert spread.interval == pytest.approx((reference.low, reference.high))
    assert spread.deviation == pytest.approx(np.std(values, ddof=1))
    assert Spread.of([0.8]).deviation == 0


def test_differences_pair_what_has_the_same_seed() -> None:
    evaluation = {
        name: {"groups": {"near": {"logit": [value, 0, 1]}}}
        for name, value in {"paper-0": 0.5, "paper-1": 0.6, "natural-1": 0.9, "natural-2": 1.0}.items()
    }
    first, second = (by_seed(evaluation, kind, "near", "logit") for kind in ("natural", "paper"))
    assert first == {1: 0.9, 2: 1.0}
    assert paired(first, second) == pytest.approx([0.3])


def test_a_piece_is_made_once_and_stored_in_both_places(tmp_path: Path) -> None:
    make_ledger(tmp_path).keep("evaluation", "paper-0", "a", lambda: {"value": 1})
    make_ledger(tmp_path).keep("evaluation", "paper-0", "a", never)
    again = make_ledger(tmp_path)
    again.keep("evaluation", "paper-0", "other weights", lambda: {"value": 2})
    assert again.report["evaluation"]["paper-0"]["value"] == 2
    assert json.loads((tmp_path / "out" / "studies.json").read_text()) == json.loads(json.dumps(again.report))


def test_figures_of_another_plan_are_not_mistaken_for_those_of_this_one(tmp_path: Path) -> None:
    make_ledger(tmp_path).keep("evaluation", "paper-0", "a", lambda: {"value": 1})
    assert "evaluation" not in make_ledger(tmp_path, severities=(1,)).report
    assert "evaluation" in make_ledger(tmp_path, seeds=3).report  # more seeds only add to it


def test_a_piece_that_fails_is_noted_and_stops_no_other(tmp_path: Path) -> None:
    ledger = make_ledger(tmp_path)
    ledger.keep("spectra", "paper-0", "a", never)
    assert "made again" in ledger.report["failed"]["spectra, paper-0"]
    ledger.keep("spectra", "paper-0", "a", lambda: {"value": 1})
    assert ledger.report["failed"] == {}


def test_nothing_is_begun_when_time_is_over(tmp_path: Path) -> None:
    with pytest.raises(OutOfTime, match="goes on from here"):
        make_ledger(tmp_path, minutes=1e-9).keep("evaluation", "paper-0", "a", never)
    with pytest.raises(OutOfTime):
        Clock(1.0).check(minutes=2.0)
    Clock(None).check(minutes=2.0)


def test_a_plan_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="seeds is 0"):
        replace(SMALL, seeds=0)
    with pytest.raises(ValueError, match="tf32"):
        replace(SMALL, precision="bf8")  # type: ignore[arg-type]
