"""The tables of a report: nobody is missing, nobody stands twice, gaps are gaps."""

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from discopatch.benchmark.tables import all_tables, write_tables
from discopatch.benchmark.tables.labels import method_label, patch_count
from discopatch.benchmark.tables.markdown import render
from discopatch.benchmark.tables.table import Cell, Number, Table

from ..report_samples import REFERENCE, make_report, only, without
from ..studies.report_samples import make_studies_report

REPORT = make_report(0)
TABLES = {table.name: table for table in all_tables(REPORT)}
OF_ALL_METHODS = [table for table in TABLES.values() if table.headings[0].text == "Method" and table.name != "patches"]


def row(table: Table, name: str) -> dict[tuple[str, str], Cell]:
    (cells,) = [cells for cells in table.rows if cells[0] == name]
    return {(heading.above, heading.text): cell for heading, cell in zip(table.headings, cells, strict=True)}


def values(cell: Cell) -> list[float | None]:
    assert not isinstance(cell, str)
    return [None if number is None else number.value for number in cell]


@pytest.mark.parametrize("table", OF_ALL_METHODS, ids=lambda table: table.name)
def test_every_method_appears_exactly_once(table: Table) -> None:
    assert Counter(cells[0] for cells in table.rows) == Counter(map(method_label, REPORT["methods"]))


def test_every_method_has_one_table_of_corruptions_for_each_protocol() -> None:
    for protocol in ("matched", "paper"):
        titles = [table.title for name, table in TABLES.items() if name.startswith(f"corruptions-{protocol}")]
        assert Counter(titles) == Counter(
            f"Corruptions, {protocol}: {method_label(name)}" for name in REPORT["methods"]
        )


def test_the_main_tables_hold_both_protocols_and_the_controls() -> None:
    cells = row(TABLES["main-1"], method_label(REFERENCE))
    sets = {name: REPORT["protocols"][name]["sets"]["textures"]["methods"][REFERENCE] for name in ("matched", "paper")}
    for protocol, found in sets.items():
        assert values(cells["Textures (near)", protocol]) == [100 * found["auroc"][0], 100 * found["fpr95"][0]]
    controls = [100 * found["control"][0] for found in sets.values()]
    assert values(cells["Textures (near)", "control"]) == controls
    covariate = REPORT["protocols"]["paper"]["means"]["covariate"][REFERENCE]
    assert values(row(TABLES["main-2"], method_label(REFERENCE))["Corrupted images", "paper"]) == [
        100 * covariate["auroc"][0],
        100 * covariate["fpr95"][0],
    ]


def test_sets_that_hold_nothing_strange_stand_apart_and_have_no_best() -> None:
    assert all("photos" not in heading.above.lower() for heading in TABLES["main-1"].headings)
    table = TABLES["control-sets"]
    assert any("Photos-227px" in heading.above for heading in table.headings)
    assert "**" not in render(table)


@pytest.mark.parametrize("table", OF_ALL_METHODS, ids=lambda table: table.name)
def test_bold_marks_the_best_of_each_column(table: Table) -> None:
    for column in list(zip(*table.rows, strict=True))[1:]:
        for part in range(2):
            numbers: list[Number] = [
                number
                for cell in column
                if not isinstance(cell, str) and part < len(cell) and (number := cell[part]) is not None
            ]
            compared = [number for number in numbers if number.better]
            if len({number.rounded for number in compared}) > 1:
                best = max(number.better * number.rounded for number in compared)
                assert all((number.place == 1) == (number.better * number.rounded == best) for number in compared)


def test_markdown_shows_the_best_in_bold_and_every_row_is_full() -> None:
    table = TABLES["means-matched"]
    text = render(table)
    best = max(found["auroc"][0] for found in REPORT["protocols"]["matched"]["means"]["near"].values())
    assert f"**{100 * best:.1f}** [" in text
    widths = {line.count(" | ") for line in text.splitlines() if line.startswith("|")}
    assert widths == {len(table.headings) - 1}


def test_differences_are_those_of_the_reference() -> None:
    found = REPORT["protocols"]["matched"]["differences"]["covariate"]["resnet50/energy"]["auroc"]
    cells = row(TABLES["means-matched"], "Energy (ResNet-50)")
    assert values(cells["covariate shift", "ahead"]) == [100 * found[0]]
    assert row(TABLES["means-matched"], method_label(REFERENCE))["covariate shift", "ahead"] == ""


def test_corruptions_are_averaged_over_severities() -> None:
    table = TABLES["corruptions-matched-1"]
    found = REPORT["protocols"]["matched"]["corruptions"]["fog"]
    average = np.mean([found[severity][REFERENCE]["auroc"][0] for severity in found])
    mean = values(row(table, "Fog")["", "Average"])[0]
    assert mean == pytest.approx(100 * average)
    overall = REPORT["protocols"]["matched"]["means"]["covariate"][REFERENCE]["auroc"][0]
    assert values(table.rows[-1][-1])[0] == 100 * overall
    assert len(table.rows) == 20
    assert table.averages == 1


def test_patch_counts_rise_and_the_dense_pass_comes_last() -> None:
    shown = [cells[0] for cells in TABLES["patches"].rows]
    ours = {method_label(name): patch_count(name) for name in REPORT["methods"] if name.startswith("discopatch")}
    assert [ours[str(label)] for label in shown] == [4, 16, 64, None, None, None]


def test_seeds_have_a_spread() -> None:
    mean, spread = REPORT["protocols"]["paper"]["seeds"]["near"][REFERENCE]["auroc"]
    cell = row(TABLES["seeds-paper"], method_label(REFERENCE))["near-OOD", "AUROC"]
    assert not isinstance(cell, str)
    assert cell[0] is not None
    assert (cell[0].value, cell[0].spread) == (100 * mean, 100 * spread)


def test_a_method_without_a_figure_leaves_a_gap() -> None:
    report = make_report(0)
    del report["protocols"]["paper"]["sets"]["textures"]["methods"]["resnet50/msp"]
    del report["protocols"]["matched"]["means"]["near"]["resnet50/msp"]
    report["methods"]["resnet50/msp"]["milliseconds"] = None
    tables = {table.name: table for table in all_tables(report)}
    cells = row(tables["main-1"], "MSP (ResNet-50)")
    assert cells["Textures (near)", "paper"] == ""
    assert values(cells["Textures (near)", "control"])[1] is None
    assert row(tables["means-matched"], "MSP (ResNet-50)")["near-OOD", "AUROC"] == ""
    assert row(tables["cost"], "MSP (ResNet-50)")["", "Latency (ms)"] == ""


@pytest.mark.parametrize(
    "missing", [["near"], ["far", "near"], ["covariate", "corruptions"], ["paper"], ["differences"]]
)
def test_groups_and_protocols_that_were_not_run_are_no_error(tmp_path: Path, missing: list[str]) -> None:
    report = without(only(REPORT, [REFERENCE, "resnet50/msp"]), missing)
    for protocol in report["protocols"].values():
        protocol["sets"] = {name: each for name, each in protocol["sets"].items() if each["group"] not in missing}
    paths = write_tables(tmp_path, report)
    assert all(path.stat().st_size for path in paths)
    text = (tmp_path / "tables.md").read_text()
    assert "nan" not in text
    assert ("far-OOD" in text) == ("far" not in missing)
    assert ("paper |" in text) == ("paper" not in missing)


def test_three_files_are_written(tmp_path: Path) -> None:
    paths = write_tables(tmp_path, REPORT)
    assert [path.name for path in paths] == ["results.csv", "tables.md", "tables.tex"]
    markdown = paths[1].read_text()
    assert all(f"## {table.title}" in markdown for table in TABLES.values())
    assert REPORT["data"]["paper"]["textures"]["digest"] in markdown


def test_studies_stand_after_the_cost_and_in_every_file(tmp_path: Path) -> None:
    studies = make_studies_report()
    report = only(REPORT, [REFERENCE, "resnet50/msp"])
    names = [table.name for table in all_tables(report, studies)]
    assert len(names) == len(set(names))
    own = [name for name in names if name.startswith("study-")]
    start = names.index("cost") + 1
    assert names[start : start + len(own)] == own
    assert [name for name in names if name not in own] == [table.name for table in all_tables(report)]
    paths = write_tables(tmp_path, report, studies)
    assert [path.name for path in paths] == ["results.csv", "tables.md", "tables.tex", "studies.json"]
    figure = studies["evaluation"]["group-0"]["groups"]["far"]["combined"]
    lines, words, print_, stored = (path.read_text() for path in paths)
    assert f"matched,mean,far,group-0/combined,auroc,{','.join(map(str, figure))}" in lines
    assert "## Normalisation layers: combined" in words
    assert f"{100 * figure[0]:.1f}" in words
    assert "trainings of their own" in words
    assert r"\label{tab:study-layers-combined}" in print_
    assert json.loads(stored) == json.loads(json.dumps(studies))
