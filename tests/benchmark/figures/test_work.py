"""The figure of work shows every look once, at its own cost."""

import json
from pathlib import Path

import pytest

from discopatch.benchmark.figures.style import save
from discopatch.benchmark.figures.work import HEADS, looks, work_figure
from discopatch.model import PRESETS
from tests.benchmark.report_samples import make_report


def test_looks_are_ordered_by_their_work_and_carry_the_reports_figures() -> None:
    report = make_report(seed=0)
    found = looks(report, PRESETS["paper"].architecture, size=256, dense="dense")
    assert [look.gmac for look in found] == sorted(look.gmac for look in found)
    by_name = {look.name: look for look in found}
    means = report["protocols"]["matched"]["means"]
    assert by_name["dense"].gmac == pytest.approx(3.68, abs=0.01)
    assert not by_name["dense"].of_patches
    for head in HEADS:
        assert by_name["dense"].corrupted[head] == means["covariate"][f"discopatch/{head}"]["auroc"]
    assert by_name["dense"].near == means["near"]["discopatch/combined"]["auroc"]


def test_the_stored_results_of_both_weights_can_be_drawn(tmp_path: Path) -> None:
    report = json.loads(Path("docs/results/work-solar.json").read_text(encoding="utf-8"))
    ways = looks(report, PRESETS["paper"].architecture, size=256, dense="dense")
    assert [way.name for way in ways] == ["4 patches", "dense", "16 patches", "64 patches"]
    (path,) = save(work_figure({"solar": ways}), tmp_path / "work", ["png"])
    assert path.stat().st_size > 10_000
