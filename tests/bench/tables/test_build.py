"""The tables of results: nobody is missing, nobody stands twice, gaps are gaps, and stored pages are up to date."""

from collections import Counter
from pathlib import Path

import pandas as pd
import pytest

from discopatch.bench.labels import method_label, patch_count
from discopatch.bench.tables import (
    Cell,
    Number,
    Table,
    result_tables,
    results_frame,
    to_markdown,
    write_page,
    write_tables,
)
from discopatch.bench.tables.table import is_empty
from tests.bench.sample_results import REFERENCE, make_results, only, without

STORED = Path(__file__).parents[3] / "docs" / "results"
METHODS = [
    REFERENCE,
    "discopatch/logit",
    *(f"discopatch-{count}/logit" for count in (64, 4, 16)),
    "resnet50/energy",
    "resnet50/msp",
]
RESULTS = only(make_results(0), METHODS)
TABLES = {table.name: table for table in result_tables(RESULTS)}
OF_ALL_METHODS = [table for table in TABLES.values() if table.headings[0].text == "Method" and table.name != "patches"]


def row(table: Table, name: str) -> dict[tuple[str, str], Cell]:
    (cells,) = [cells for cells in table.rows if cells[0] == name]
    return {(heading.above, heading.text): cell for heading, cell in zip(table.headings, cells, strict=True)}


def values(cell: Cell) -> list[float | None]:
    assert not isinstance(cell, str)
    return [None if number is None else number.value for number in cell]


@pytest.mark.parametrize("table", OF_ALL_METHODS, ids=lambda table: table.name)
def test_every_method_appears_exactly_once(table: Table) -> None:
    assert Counter(cells[0] for cells in table.rows) == Counter(map(method_label, RESULTS["methods"]))


def test_every_method_has_one_table_of_corruptions_for_each_protocol() -> None:
    for protocol in ("matched", "paper"):
        titles = [table.title for name, table in TABLES.items() if name.startswith(f"corruptions-{protocol}")]
        assert [title.partition(": ")[2] for title in titles] == [method_label(name) for name in RESULTS["methods"]]


def test_the_main_tables_hold_both_protocols_and_the_controls() -> None:
    cells = row(TABLES["main-1"], method_label(REFERENCE))
    sets = {name: RESULTS["protocols"][name]["sets"]["textures"]["methods"][REFERENCE] for name in ("matched", "paper")}
    for protocol, found in sets.items():
        assert values(cells["Textures (near)", protocol]) == [100 * found["auroc"][0], 100 * found["fpr95"][0]]
    controls = [100 * found["control"][0] for found in sets.values()]
    assert values(cells["Textures (near)", "control"]) == controls
    corrupted = row(TABLES["main-2"], method_label(REFERENCE))
    covariate = RESULTS["protocols"]["paper"]["means"]["covariate"][REFERENCE]
    assert values(corrupted["Corrupted images", "paper"]) == [100 * covariate[name][0] for name in ("auroc", "fpr95")]
    controls = [100 * RESULTS["protocols"][name]["control"][REFERENCE][0] for name in ("matched", "paper")]
    assert values(corrupted["Corrupted images", "control"]) == controls


def test_sets_of_normal_images_stand_apart_and_have_no_best() -> None:
    assert all("photos" not in heading.above.lower() for heading in TABLES["main-1"].headings)
    table = TABLES["control-sets"]
    assert any("Photos-227px" in heading.above for heading in table.headings)
    assert "**" not in to_markdown(table)


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


def test_means_have_intervals_and_differences_from_the_reference() -> None:
    table, matched = TABLES["means-matched"], RESULTS["protocols"]["matched"]
    cells = row(table, "Energy (ResNet-50)")
    for heading, part in (("AUROC", "means"), ("ahead", "differences")):
        number = cells["covariate shift", heading][0]
        value, *ends = matched[part]["covariate"]["resnet50/energy"]["auroc"]
        assert isinstance(number, Number)
        assert (number.value, number.interval) == (100 * value, tuple(100 * end for end in ends))
    assert is_empty(row(table, method_label(REFERENCE))["covariate shift", "ahead"])
    best = max(found["auroc"][0] for found in matched["means"]["near"].values())
    assert f"**{100 * best:.1f}** [" in to_markdown(table)


def test_corruptions_are_averaged_over_severities() -> None:
    table, matched = TABLES["corruptions-matched-1"], RESULTS["protocols"]["matched"]
    found = [each[REFERENCE]["auroc"][0] for each in matched["corruptions"]["fog"].values()]
    assert values(row(table, "Fog")["", "Average"])[0] == pytest.approx(100 * sum(found) / 5)
    assert values(table.rows[-1][-1])[0] == 100 * matched["means"]["covariate"][REFERENCE]["auroc"][0]
    assert values(table.rows[-1][3])[0] == 100 * matched["severities"][REFERENCE]["3"]["auroc"][0]
    assert [cells[0] for cells in table.rows] == [*sorted(str(cells[0]) for cells in table.rows[:-1]), "Average"]
    assert (len(table.rows), table.averages) == (20, 1)


def test_patch_counts_rise_and_the_dense_pass_comes_last() -> None:
    ours = {method_label(name): patch_count(name) for name in METHODS if name.startswith("discopatch")}
    assert [ours[str(cells[0])] for cells in TABLES["patches"].rows] == [4, 16, 64, None, None]


def test_seeds_have_a_spread() -> None:
    mean, spread = RESULTS["protocols"]["paper"]["seeds"]["near"][REFERENCE]["auroc"]
    number = row(TABLES["seeds-paper"], method_label(REFERENCE))["near-OOD", "AUROC"][0]
    assert isinstance(number, Number)
    assert (number.value, number.spread) == (100 * mean, 100 * spread)


def test_a_method_without_a_figure_leaves_a_gap() -> None:
    results = only(make_results(0), METHODS)
    del results["protocols"]["paper"]["sets"]["textures"]["methods"]["resnet50/msp"]
    del results["protocols"]["matched"]["means"]["near"]["resnet50/msp"]
    results["methods"]["resnet50/msp"]["milliseconds"] = None
    tables = {table.name: table for table in result_tables(results)}
    cells = row(tables["main-1"], "MSP (ResNet-50)")
    assert is_empty(cells["Textures (near)", "paper"])
    assert values(cells["Textures (near)", "control"])[1] is None
    assert is_empty(row(tables["means-matched"], "MSP (ResNet-50)")["near-OOD", "AUROC"])
    assert is_empty(row(tables["cost"], "MSP (ResNet-50)")["", "Latency (ms)"])


@pytest.mark.parametrize(
    "missing", [["near"], ["far", "near"], ["covariate", "corruptions"], ["paper"], ["differences"], ["seeds"]]
)
def test_groups_and_protocols_that_were_not_run_are_no_error(tmp_path: Path, missing: list[str]) -> None:
    results = without(only(RESULTS, [REFERENCE, "resnet50/msp"]), [name for name in missing if name != "seeds"])
    for protocol in results["protocols"].values():
        protocol["sets"] = {name: each for name, each in protocol["sets"].items() if each["group"] not in missing}
        if "seeds" in missing:
            del protocol["seeds"]
    paths = write_tables(tmp_path, results)
    assert all(path.stat().st_size for path in paths)
    text = (tmp_path / "tables.md").read_text()
    assert "nan" not in text
    assert ("far-OOD" in text) == ("far" not in missing)
    assert ("paper |" in text) == ("paper" not in missing)
    assert ("±" in text) == ("seeds" not in missing)


def test_three_files_are_written(tmp_path: Path) -> None:
    paths = write_tables(tmp_path, RESULTS)
    assert [path.name for path in paths] == ["results.csv", "tables.md", "tables.tex"]
    pd.testing.assert_frame_equal(
        pd.read_csv(paths[0], keep_default_na=False, na_values={"low": "", "high": ""}), results_frame(RESULTS)
    )
    markdown = paths[1].read_text()
    assert all(f"## {table.title}" in markdown for table in TABLES.values())
    assert RESULTS["data"]["paper"]["textures"]["digest"] in markdown


def test_settings_and_what_is_left_out_stand_above_the_tables(tmp_path: Path) -> None:
    results = only(make_results(0), METHODS)
    results["methods"]["resnet50/energy"]["settings"] = {"k": 7, "variant": "b"}
    results["left_out"] = {"resnet50/mds": "no classes"}
    markdown = write_tables(tmp_path, results)[1].read_text()
    assert "Settings: Energy (ResNet-50): k=7 variant=b." in markdown
    assert "Left out: MDS with class means (ResNet-50): no classes." in markdown


@pytest.mark.parametrize("page", sorted(STORED.glob("*.md")), ids=lambda path: path.stem)
def test_the_stored_pages_are_those_of_the_stored_results(tmp_path: Path, page: Path) -> None:
    copy = tmp_path / page.with_suffix(".json").name
    copy.write_text(page.with_suffix(".json").read_text())
    assert write_page(copy).read_text() == page.read_text(), "write docs/results again with `write_page`"
