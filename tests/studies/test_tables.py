"""The tables of the studies hold the numbers of their JSON, mark what may be compared, and leave gaps."""

import copy
from itertools import chain
from typing import Any

import numpy as np
import pytest
from scipy.stats import gmean, ttest_1samp

from discopatch.bench.labels import group_label
from discopatch.bench.tables.table import Number, Table, is_empty
from paper.results import SeedSummary, by_seed, paired_difference
from paper.tables import ALL_GROUPS, LAYERS, tables_by_section
from tests.studies.samples import SCORES, Results, make_study_results

RESULTS = make_study_results()


def all_tables(results: Results) -> dict[str, Table]:
    return {table.name: table for table in chain.from_iterable(tables_by_section(results).values())}


TABLES = all_tables(RESULTS)


def cells(table: Table, row: str) -> dict[tuple[str, str], Any]:
    """The row that begins with this text, by its headings."""
    (found,) = [each for each in table.rows if each[0] == row]
    return {(heading.above, heading.text): each for heading, each in zip(table.headings, found, strict=True)}


def number(cell: Any) -> Number:
    (found,) = cell
    assert isinstance(found, Number)
    return found


def triple(cell: Any) -> list[float]:
    found = number(cell)
    assert found.interval is not None
    return [found.value, *found.interval]


def numbers(table: Table) -> list[Number]:
    return [each for row in table.rows for cell in row if not isinstance(cell, str) for each in cell if each]


@pytest.mark.parametrize("score", SCORES)
def test_layers_stand_side_by_side_for_each_score_and_the_best_is_marked(score: str) -> None:
    table = TABLES[f"study-layers-{score}"]
    assert [row[0] for row in table.rows] == list(LAYERS.values())
    for run, title in LAYERS.items():
        found = cells(table, title)
        for group in ALL_GROUPS:
            expected = [100 * each for each in RESULTS["evaluation"][run]["groups"][group][score]]
            assert triple(found["", group_label(group)]) == pytest.approx(expected)
    for place, group in enumerate(ALL_GROUPS, start=1):
        column = [number(row[place]) for row in table.rows]
        best = [each.place == 1 for each in column]
        if group == "control":
            assert not any(best), "there is nothing to detect"
        else:
            assert best.index(True) == int(np.argmax([each.value for each in column]))


def test_batches_have_a_row_for_each_size_and_the_range_of_the_rounds() -> None:
    run = RESULTS["batch normalisation"]["full-0"]
    pure = TABLES["study-batches-1"]
    assert [row[0] for row in pure.rows] == ["learned", *(f"batch of {size}" for size in run["batch"])]
    for label, found in {"learned": run["learned"], "batch of 64": run["batch"]["64"]}.items():
        expected = [100 * each for each in found["far"]["auroc"]]
        assert triple(cells(pure, label)["far-OOD", "AUROC"]) == pytest.approx(expected)
    rounds = run["batch"]["64"]["far"]["rounds"]
    assert cells(pure, "batch of 64")["far-OOD", "rounds"] == f"{100 * min(rounds):.1f} to {100 * max(rounds):.1f}"
    assert cells(pure, "learned")["far-OOD", "rounds"] == ""
    mixed = TABLES["study-mixed-1"]
    for kind in ("half", "one"):
        found = run[kind]["128"]["covariate"]["auroc"]
        row = cells(mixed, f"{kind}, batch of 128")
        assert triple(row["covariate shift", "AUROC"]) == pytest.approx([100 * each for each in found])
    own = TABLES["study-own-sets-1"]
    assert [row[0] for row in own.rows] == ["1", "16", "32", "64"], "no set fills the others"
    assert number(cells(own, "32")["far-OOD", "sets"]).value == len(run["own sets"]["32"]["far"]["sets"])
    for table in (pure, mixed, own):
        assert not any(each.place for each in numbers(table)), "more bias is not better"


@pytest.mark.parametrize("place", [1, 2, 3])
def test_patches_are_counted_for_each_head_and_compared_within_it(place: int) -> None:
    table = TABLES[f"study-counts-{place}"]
    name, run = list(RESULTS["patch counts"].items())[place - 1]
    assert table.title.endswith(name)
    heads = {"logit": "mean logit", "statistics": "statistics", "combined": "combined"}
    assert [row[0] for row in table.rows] == [title for title in heads.values() for _ in run["counts"]]
    for start, head in enumerate(heads):
        block = table.rows[start * len(run["counts"]) :][: len(run["counts"])]
        for row, (count, groups) in zip(block, run["counts"].items(), strict=True):
            assert number(row[1]).value == int(count)
            assert triple(row[2]) == pytest.approx([100 * each for each in groups["near"][head]])
        assert 1 in {number(row[2]).place for row in block}


def test_the_interval_over_seeds_is_that_of_the_t_test() -> None:
    values = [0.81, 0.83, 0.80, 0.86, 0.82]
    summary = SeedSummary.of(values)
    reference = ttest_1samp(values, 0).confidence_interval(0.95)
    assert summary.interval == pytest.approx((reference.low, reference.high))
    assert summary.std == pytest.approx(np.std(values, ddof=1))
    assert SeedSummary.of([0.8]).std == 0
    assert SeedSummary.of([0.8]).interval is None


def test_differences_pair_runs_of_the_same_seed() -> None:
    results = {
        "evaluation": {
            name: {"groups": {"near": {"logit": [value, 0, 1]}}}
            for name, value in {"paper-0": 0.5, "paper-1": 0.6, "natural-1": 0.9, "natural-2": 1.0}.items()
        }
    }
    assert by_seed(results, "natural", "near", "logit") == {1: 0.9, 2: 1.0}
    difference = paired_difference(results, "natural", "paper", "near", "logit")
    assert difference is not None
    assert difference.mean == pytest.approx(0.3)
    assert difference.seeds == 1


def test_seeds_have_the_spread_of_numpy_and_differences_the_interval_of_scipy() -> None:
    evaluation = RESULTS["evaluation"]

    def values(kind: str, seeds: int) -> np.ndarray:
        runs = [f"{kind}-{seed}" for seed in range(seeds)]
        return np.array([100 * evaluation[run]["groups"]["far"]["combined"][0] for run in runs])

    row = cells(TABLES["study-seeds"], "paper, combined")
    assert number(row["", "Seeds"]).value == 3
    assert number(row["", "far-OOD"]).value == pytest.approx(values("paper", 3).mean())
    assert number(row["", "far-OOD"]).spread == pytest.approx(values("paper", 3).std(ddof=1))
    both = values("natural", 2) - values("paper", 2)
    paired = cells(TABLES["study-paired"], "combined")
    interval = ttest_1samp(both, 0).confidence_interval(0.95)
    assert number(paired["", "Seeds"]).value == 2, "only seeds that both have"
    assert triple(paired["", "far-OOD"]) == pytest.approx([both.mean(), interval.low, interval.high])
    released = cells(TABLES["study-released"], "statistics")
    found = evaluation["released"]["groups"]["near"]["statistics"]
    assert triple(released["", "near-OOD"]) == pytest.approx([100 * each for each in found])


def test_one_seed_has_neither_spread_nor_interval() -> None:
    results = copy.deepcopy(RESULTS)
    results["evaluation"] = {name: each for name, each in results["evaluation"].items() if name.endswith("-0")}
    tables = all_tables(results)
    for name in ("study-seeds", "study-paired"):
        assert all(each.around == "" for each in numbers(tables[name]))


def test_bands_are_geometric_means_of_thirds() -> None:
    curves = RESULTS["spectra"]["natural-0"]["curves"]
    ratio = np.array(curves["generated"]) / np.array(curves["real"])
    row = cells(TABLES["study-spectra"], "natural-0, generated")
    found = [number(row["Third of the frequencies", band]).value for band in ("low", "middle", "high")]
    assert found == pytest.approx([gmean(ratio[:11]), gmean(ratio[11:22]), gmean(ratio[22:])], rel=1e-6)


def test_trainings_and_images_are_all_there() -> None:
    table = TABLES["study-runs"]
    assert [row[0] for row in table.rows] == list(RESULTS["runs"])
    for row, found in zip(table.rows, RESULTS["runs"].values(), strict=True):
        keys = ("steps", "patches", "patch size", "seconds")
        assert [number(each).value for each in row[1:5]] == [found[key] for key in keys]
        assert row[-1] == found["weights digest"]
    digests = {row[0]: row[2] for row in TABLES["study-images"].rows}
    assert digests["Chest X-ray"] == RESULTS["data"]["chest-xray"]["digest"]
    assert len(digests) == 10, "corrupted photos are the test photos once more"


def test_a_missing_figure_leaves_a_gap() -> None:
    results = copy.deepcopy(RESULTS)
    for run in results["evaluation"].values():
        del run["groups"]["control"]
    del results["evaluation"]["group-0"]["groups"]["near"]
    del results["evaluation"]["paper-1"]["groups"]["far"]["logit"]
    del results["evaluation"]["instance-0"]
    del results["patch counts"]["paper-0"]["counts"]["64"]["far"]["statistics"]
    del results["batch normalisation"]["full-0"]["batch"]["256"]["near"]
    del results["batch normalisation"]["full-0"]["one"]
    tables = all_tables(results)
    layers = tables["study-layers-patches"]
    assert [row[0] for row in layers.rows] == ["GroupNorm", "BatchNorm over patches"]
    assert is_empty(cells(layers, "GroupNorm")["", "near-OOD"])
    assert is_empty(cells(layers, "GroupNorm")["", "control"])
    assert is_empty(cells(tables["study-seeds"], "paper, combined")["", "control"])
    seeds = [results["evaluation"][f"paper-{seed}"]["groups"]["far"]["logit"][0] for seed in (0, 2)]
    row = cells(tables["study-seeds"], "paper, mean logit, dense")
    assert number(row["", "far-OOD"]).value == pytest.approx(100 * np.mean(seeds))
    assert is_empty(cells(tables["study-batches-1"], "batch of 256")["near-OOD", "AUROC"])
    assert not [row for row in tables["study-mixed-1"].rows if str(row[0]).startswith("one")]
    (gap,) = [row for row in tables["study-counts-1"].rows if any(map(is_empty, row))]
    assert (gap[0], number(gap[1]).value, is_empty(gap[3])) == ("statistics", 64, True)
