"""The table of the slips has the figures of the run, beside the protocol that is their control."""

import json
from pathlib import Path

import slips
from discopatch.bench.preprocessing import SLIPS
from discopatch.bench.suites import get_suite
from discopatch.images import Transform
from tests.bench.bench_samples import make_folders

RESULTS = Path("docs/results/slips.json")


def test_every_slip_is_measured_alone_and_with_all_others(tmp_path: Path) -> None:
    plan = slips.make_plan(get_suite("natural", data=make_folders(tmp_path)), Transform(), test=3, other=2)
    assert plan.protocols[0] == "paper"
    assert len(plan.protocols) == 2 + len(SLIPS)
    names = {each.name for each in plan.sets(plan.protocol(plan.protocols[-1]))}
    assert names >= {*slips.OTHERS, "slips alone", "slips alone on patches", "test patches"}


def test_the_table_has_a_row_for_every_protocol_and_method() -> None:
    results = json.loads(RESULTS.read_text(encoding="utf-8"))
    lines = slips.slips_table(results).splitlines()
    assert len(lines) == 2 + len(results["protocols"]) * len(results["methods"])
    method = next(iter(results["methods"]))
    for slip, apart in (("pixel-range", True), ("corners", False)):
        alone = results["protocols"][f"paper+{slip}"]["sets"]["slips alone"]["methods"][method]["auroc"]
        row = next(line for line in lines if f"{slip} | {method}" in line and "+" not in line)
        assert f"{100 * alone[0]:.1f}" in row
        assert (alone[0] != 0.5) == apart
