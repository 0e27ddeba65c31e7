"""The tables of the studies hold the numbers of their JSON, mark what may be compared, and leave gaps."""

import copy
import re
from typing import Any

import numpy as np
import pytest
from scipy.stats import gmean, ttest_1samp

from discopatch.benchmark.studies.names import LAYERS
from discopatch.benchmark.studies.page import render
from discopatch.benchmark.studies.tables import studies_tables
from discopatch.benchmark.tables import latex
from discopatch.benchmark.tables.labels import group_label
from discopatch.benchmark.tables.table import Number, Table
from tests.benchmark.studies.report_samples import SCORES, make_studies_report

REPORT = make_studies_report()
TABLES = {table.name: table for table in studies_tables(REPORT)}
GROUPS = ("near", "far", "covariate", "control")
SECTIONS = ("evaluation", "batch normalisation", "patch counts", "spectra", "runs", "data")


def cells(table: Table, **where: str) -> dict[tuple[str, str], Any]:
    """The row that begins with these words, by its headings."""
    (found,) = [row for row in table.rows if row[0] == where["row"]]
    return {(heading.above, heading.text): each for heading, each in zip(table.headings, found, strict=True)}


def number(cell: Any) -> Number:
    assert not isinstance(cell, str)
    (found,) = cell
    assert isinstance(found, Number)
    return found


def triple(cell: Any) -> list[float]:
    found = number(cell)
    assert found.interval is not None
    return [found.value, *found.interval]


def numbers(table: Table) -> list[Number]:
    return [each for row in table.rows for one in row if not isinstance(one, str) for each in one if each is not None]


@pytest.mark.parametrize("score", SCORES)
def test_layers_stand_side_by_side_for_each_score(score: str) -> None:
    table = TABLES[f"study-layers-{score}"]
    assert [row[0] for row in table.rows] == list(LAYERS.values())
    for run, title in LAYERS.items():
        found = cells(table, row=title)
        for group in GROUPS:
            expected = [100 * each for each in REPORT["evaluation"][run]["groups"][group][score]]
            assert triple(found["", group_label(group)]) == pytest.approx(expected)


@pytest.mark.parametrize("score", SCORES)
def test_the_best_layer_is_marked_but_not_in_the_control(score: str) -> None:
    table = TABLES[f"study-layers-{score}"]
    for place, group in enumerate(GROUPS, start=1):
        column = [number(row[place]) for row in table.rows]
        best = [each.place == 1 for each in column]
        if group == "control":
            assert not any(best)
        else:
            assert best.index(True) == int(np.argmax([each.value for each in column]))


def test_batches_have_a_row_for_each_size_and_the_range_of_the_rounds() -> None:
    bias = REPORT["batch normalisation"]["full-0"]
    pure = TABLES["study-batches-1"]
    assert [row[0] for row in pure.rows] == ["learned", *(f"batch of {size}" for size in bias["batch"])]
    for label, found in {"learned": bias["learned"], "batch of 64": bias["batch"]["64"]}.items():
        row = cells(pure, row=label)
        assert triple(row["far-OOD", "AUROC"]) == pytest.approx([100 * each for each in found["far"]["auroc"]])
    rounds = bias["batch"]["64"]["far"]["rounds"]
    assert cells(pure, row="batch of 64")["far-OOD", "rounds"] == f"{100 * min(rounds):.1f} to {100 * max(rounds):.1f}"
    assert cells(pure, row="learned")["far-OOD", "rounds"] == ""
    mixed = TABLES["study-mixed-1"]
    for way in ("half", "one"):
        found = bias[way]["128"]["covariate"]["auroc"]
        row = cells(mixed, row=f"{way}, batch of 128")
        assert triple(row["covariate shift", "AUROC"]) == pytest.approx([100 * each for each in found])
    own = TABLES["study-own-sets-1"]
    assert [row[0] for row in own.rows] == ["1", "16", "32", "64"], "no set fills the others"
    assert number(cells(own, row="32")["far-OOD", "sets"]).value == len(bias["own sets"]["32"]["far"]["sets"])
    for table in (pure, mixed, own):
        assert not any(each.place for each in numbers(table)), "more bias is not better"


@pytest.mark.parametrize("place", [1, 2, 3])
def test_patches_are_counted_for_each_head_and_compared_within_it(place: int) -> None:
    table = TABLES[f"study-counts-{place}"]
    name, found = list(REPORT["patch counts"].items())[place - 1]
    assert table.title.endswith(name)
    heads = {"logit": "mean logit", "statistics": "statistics", "combined": "combined"}
    assert [row[0] for row in table.rows] == [title for title in heads.values() for _ in found["counts"]]
    for start, head in enumerate(heads):
        block = table.rows[start * len(found["counts"]) :][: len(found["counts"])]
        for row, (count, groups) in zip(block, found["counts"].items(), strict=True):
            assert number(row[1]).value == int(count)
            assert triple(row[2]) == pytest.approx([100 * each for each in groups["near"][head]])
        assert 1 in {number(row[2]).place for row in block}


def test_seeds_have_the_spread_of_numpy_and_differences_the_interval_of_scipy() -> None:
    evaluation = REPORT["evaluation"]

    def values(kind: str, seeds: int) -> np.ndarray:
        runs = [f"{kind}-{seed}" for seed in range(seeds)]
        return np.array([100 * evaluation[run]["groups"]["far"]["combined"][0] for run in runs])

    row = cells(TABLES["study-seeds"], row="paper, combined")
    assert number(row["", "Seeds"]).value == 3
    assert number(row["", "far-OOD"]).value == pytest.approx(values("paper", 3).mean())
    assert number(row["", "far-OOD"]).spread == pytest.approx(values("paper", 3).std(ddof=1))
    both = values("natural", 2) - values("paper", 2)
    paired = cells(TABLES["study-paired"], row="combined")
    interval = ttest_1samp(both, 0).confidence_interval(0.95)
    assert number(paired["", "Seeds"]).value == 2, "only seeds that both have"
    assert triple(paired["", "far-OOD"]) == pytest.approx([both.mean(), interval.low, interval.high])
    released = cells(TABLES["study-released"], row="statistics")
    found = evaluation["released"]["groups"]["near"]["statistics"]
    assert triple(released["", "near-OOD"]) == pytest.approx([100 * each for each in found])


def test_one_seed_has_neither_spread_nor_interval() -> None:
    report = copy.deepcopy(REPORT)
    report["evaluation"] = {name: each for name, each in report["evaluation"].items() if name.endswith("-0")}
    tables = {table.name: table for table in studies_tables(report)}
    for name in ("study-seeds", "study-paired"):
        assert all(each.around == "" for each in numbers(tables[name]))
    assert "inf" not in render(report)
    assert "±" not in latex.document("", tables.values())


def test_bands_are_geometric_means_of_thirds() -> None:
    curves = REPORT["spectra"]["natural-0"]["curves"]
    ratio = np.array(curves["generated"]) / np.array(curves["real"])
    row = cells(TABLES["study-spectra"], row="natural-0, generated")
    found = [number(row["Third of the frequencies", band]).value for band in ("low", "middle", "high")]
    assert found == pytest.approx([gmean(ratio[:11]), gmean(ratio[11:22]), gmean(ratio[22:])], rel=1e-6)


def test_trainings_and_images_are_all_there() -> None:
    table = TABLES["study-runs"]
    assert [row[0] for row in table.rows] == list(REPORT["runs"])
    for row, found in zip(table.rows, REPORT["runs"].values(), strict=True):
        assert [number(each).value for each in row[1:5]] == [
            found[key] for key in ("steps", "patches", "patch size", "seconds")
        ]
        assert row[-1] == found["weights digest"]
    shown = {row[0]: row[2] for row in TABLES["study-images"].rows}
    assert shown["Chest X-ray"] == REPORT["data"]["chest-xray"]["digest"]
    assert len(shown) == 10, "corrupted photos are the test photos once more"


def test_the_page_holds_every_table_below_its_study() -> None:
    page = render(REPORT, {"spectra-paper-0": "images/a.png", "losses": "images/b.png"})
    assert [line for line in page.splitlines() if line.startswith("## ")] == [
        "## Normalisation layers",
        "## Batch statistics",
        "## Patch counts",
        "## Seeds and recipes",
        "## Spectra",
        "## The trainings",
        "## How it was made",
    ]
    for table in TABLES.values():
        assert f"\n### {table.title}\n" in page
    value, low, high = (100 * each for each in REPORT["evaluation"]["group-0"]["groups"]["near"]["patches"])
    assert re.search(rf"\| GroupNorm \| \**{value:.1f}\** \[{low:.1f}, {high:.1f}\] \|", page)
    assert "![Spectra, paper-0](images/a.png)" in page.split("## Spectra")[1].split("## The trainings")[0]
    assert "![The trainings](images/b.png)" in page.split("## The trainings")[1]
    assert page.count("python benchmarks/studies.py run ... ") == 5, "each study says how to make it again"
    assert "{" not in page


@pytest.mark.parametrize("missing", [*SECTIONS, "all"])
def test_a_study_that_was_not_made_is_left_out(missing: str) -> None:
    gone = SECTIONS if missing == "all" else (missing,)
    report = {name: each for name, each in REPORT.items() if name not in gone}
    assert "## How it was made" in render(report)
    assert len(studies_tables(report)) < len(TABLES)
    assert bool(studies_tables(report)) == (missing != "all")
    empty: dict[str, Any] = {**REPORT, **{name: {} for name in gone}}
    assert [table.name for table in studies_tables(empty)] == [table.name for table in studies_tables(report)]
    assert render(empty) == render(report)


def test_a_missing_figure_leaves_a_gap() -> None:
    report = copy.deepcopy(REPORT)
    for run in report["evaluation"].values():
        del run["groups"]["control"]
    del report["evaluation"]["group-0"]["groups"]["near"]
    del report["evaluation"]["paper-1"]["groups"]["far"]["logit"]
    del report["evaluation"]["instance-0"]
    del report["patch counts"]["paper-0"]["counts"]["64"]["far"]["statistics"]
    del report["batch normalisation"]["full-0"]["batch"]["256"]["near"]
    del report["batch normalisation"]["full-0"]["one"]
    tables = {table.name: table for table in studies_tables(report)}
    layers = tables["study-layers-patches"]
    assert [row[0] for row in layers.rows] == ["GroupNorm", "BatchNorm over patches"]
    assert cells(layers, row="GroupNorm")["", "near-OOD"] == ""
    assert cells(layers, row="GroupNorm")["", "control"] == ""
    assert cells(tables["study-seeds"], row="paper, combined")["", "control"] == ""
    assert number(cells(tables["study-seeds"], row="paper, mean logit, dense")["", "far-OOD"]).value == pytest.approx(
        np.mean([100 * report["evaluation"][f"paper-{seed}"]["groups"]["far"]["logit"][0] for seed in (0, 2)])
    )
    assert cells(tables["study-batches-1"], row="batch of 256")["near-OOD", "AUROC"] == ""
    assert not [row for row in tables["study-mixed-1"].rows if str(row[0]).startswith("one")]
    (gap,) = [row for row in tables["study-counts-1"].rows if "" in row]
    assert (gap[0], number(gap[1]).value, gap[3]) == ("statistics", 64, "")
    assert "nan" not in render(report)


def test_the_page_says_what_has_not_been_measured() -> None:
    whole = make_studies_report()
    wanted = {*(f"{kind}-{seed}" for kind in ("paper", "natural") for seed in range(whole["plan"]["seeds"]))}
    run = next(iter(whole["runs"].values()))
    whole["runs"] = dict.fromkeys((*wanted, "group-0", "instance-0", "full-0"), run)
    assert "Not measured yet" not in render(whole)
    del whole["runs"]["group-0"]
    assert "**Not measured yet:** group-0, Batch statistics." in render({**whole, "batch normalisation": {}})
