"""The whole measurement, small: every section, the same on every run, and a page of it."""

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from discopatch.benchmark.bench import HEADS, Bench
from discopatch.benchmark.page import render
from discopatch.benchmark.plan import GROUPS, Folders
from discopatch.benchmark.pool import PART, Pool
from discopatch.benchmark.reading import OOD_SETS, PHOTOS_AT_227
from discopatch.benchmark.results import measure
from discopatch.benchmark.routes import LOSSLESS, Storage
from discopatch.images.corrupt import CORRUPTIONS, corrupt

from ..scoring.samples import tiny_weights
from .samples import SMALL, make_folders

Report = dict[str, Any]


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    with Pool(1, frost=False) as pool:
        yield pool


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Folders:
    return make_folders(tmp_path_factory.mktemp("data"))


def measured(pool: Pool, folders: Folders) -> Report:
    *_, report = measure(Bench(tiny_weights(), SMALL, pool, "cpu"), folders)
    stored: Report = json.loads(json.dumps(report))
    return stored


@pytest.fixture(scope="module")
def report(pool: Pool, folders: Folders) -> Report:
    return measured(pool, folders)


def figures(part: object) -> Iterator[list[float]]:
    """All triples of value, low and high end."""
    if isinstance(part, dict):
        for each in part.values():
            yield from figures(each)
    elif isinstance(part, list) and len(part) == 3 and all(isinstance(each, float) for each in part):
        yield part


def test_corrupted_pictures_come_in_order_each_with_its_own_seed(pool: Pool) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (PART + 3, 32, 32, 3), dtype=np.uint8)
    cells = [("gaussian_noise", 2), ("jpeg_compression", 1)]
    found = list(pool.corrupted(pixels, cells, LOSSLESS))
    assert [(name, severity, len(part)) for name, severity, part in found] == [
        (name, severity, size) for name, severity in cells for size in (PART, 3)
    ]
    assert np.array_equal(found[1][2][1], corrupt(pixels[PART + 1], "gaussian_noise", 2, seed=PART + 1))
    (_, _, stored), *_ = pool.corrupted(pixels[:2], cells[:1], Storage(92))
    assert np.array_equal(stored[1], Storage(92).store(found[0][2][1]))


def test_every_corruption_has_a_figure_by_every_head(report: Report) -> None:
    for suite in ("solar", "natural"):
        cells = report[suite]["cells"]
        assert set(cells) == set(HEADS)
        for head in HEADS:
            severities = {"3"} if head == "paper" else {"1", "3"}
            assert {name: set(levels) for name, levels in cells[head].items()} == {
                "gaussian_noise": severities,
                "brightness": severities,
            }


def test_a_mean_is_that_of_its_cells(report: Report) -> None:
    cells = report["solar"]["cells"]["combined"]
    values = [figure[0] for levels in cells.values() for figure in levels.values()]
    assert report["solar"]["means"]["combined"]["all 19"][0] == pytest.approx(np.mean(values), abs=1e-4)
    noise = [figure[0] for figure in cells["gaussian_noise"].values()]
    assert report["solar"]["means"]["combined"]["like a training defect"][0] == pytest.approx(np.mean(noise), abs=1e-4)


def test_every_figure_is_an_auroc_within_its_interval_of_resamples(report: Report) -> None:
    found = list(figures({name: report[name] for name in ("solar", "natural", "out of distribution", "storage")}))
    assert len(found) > 150
    for value, low, high in found:
        assert 0 <= low <= high <= 1
        assert 0 <= value <= 1


def test_every_other_kind_of_images_has_its_controls(report: Report) -> None:
    sets = report["out of distribution"]["sets"]
    assert set(sets) == {*OOD_SETS, PHOTOS_AT_227}
    for each in sets.values():
        assert {"auroc", "control", "matched", "as they come"} <= set(each)
        assert set(each["auroc"]) == set(HEADS)
    assert sets["steel"]["route"]["sizes"] == [200, 416]
    means = report["out of distribution"]["means"]["auroc"]["combined"]
    assert means[0] == pytest.approx(np.mean([sets[name]["auroc"]["combined"][0] for name in OOD_SETS]), abs=1e-4)


def test_untouched_images_stored_without_loss_are_told_apart_by_chance_alone(report: Report) -> None:
    for suite in ("solar", "natural"):
        assert all(0.1 < figure[0] < 0.9 for figure in report[suite]["severity 0"].values())


def test_false_alarms_are_counted_for_each_promise_that_can_be_made(report: Report) -> None:
    solar = report["false alarms"]["solar"]["combined"]
    assert set(solar) == {"0.01", "0.2"}
    assert solar["0.2"]["tests"] == 6 + 120 + 34 - 40 - 99
    assert len(solar["0.2"]["alarms"]) == SMALL.splits
    assert set(report["false alarms"]["natural"]["combined"]) == {"0.2"}, "4 images cannot promise 1 %"


def test_fits_of_several_sizes_are_compared(report: Report) -> None:
    found = report["fit size"]["solar"]
    assert list(found["sizes"]) == ["30", "60"], "no more than there are"
    assert found["sizes"]["30"]["fitted"] < 30


def test_the_report_says_what_it_rests_on(report: Report) -> None:
    assert report["data"]["solar test"]["images"] == 6
    assert len({each["digest"] for each in report["data"].values()}) == len(report["data"])
    assert report["made"]["weights digest"] == tiny_weights().digest
    assert report["plan"]["natural_storage"]["quality"] == 92


def test_a_second_run_gives_the_same_figures(report: Report, pool: Pool, folders: Folders) -> None:
    again = measured(pool, folders)
    again["made"]["seconds"] = report["made"]["seconds"]
    assert again == report


def test_groups_part_the_corruptions() -> None:
    like, unlike = GROUPS["like a training defect"], GROUPS["unlike any training defect"]
    assert sorted([*like, *unlike]) == sorted(CORRUPTIONS)
    assert sorted(GROUPS["noise"] + GROUPS["blur"] + GROUPS["weather"] + GROUPS["digital"]) == sorted(CORRUPTIONS)


def test_the_page_has_every_section_and_the_figures_with_their_intervals(report: Report) -> None:
    page = render(report)
    headings = [line for line in page.splitlines() if line.startswith("#")]
    assert headings == [
        "# Results",
        "## At a glance",
        "## Solar cells, corrupted",
        "## Photos, corrupted",
        "## Other images than photos",
        "## What storage alone does",
        "## False alarms",
        "## How many images it takes",
        "## What the figures do not say",
        "## How it was made",
    ]
    value, low, high = report["solar"]["cells"]["combined"]["gaussian_noise"]["3"]
    row = next(line for line in page.splitlines() if line.startswith("| gaussian noise |"))
    assert row.endswith(f"| {value:.3f} [{low:.3f}, {high:.3f}] |")
    assert "{" not in page


def test_a_table_has_as_many_cells_in_every_row(report: Report) -> None:
    page = render(report)
    for block in page.split("\n\n"):
        if block.startswith("|"):
            assert len({line.count("|") for line in block.splitlines()}) == 1, block


def test_a_page_of_a_run_cut_short_has_what_there_is(report: Report) -> None:
    page = render({name: report[name] for name in ("made", "plan", "data", "solar")})
    assert "## Solar cells, corrupted" in page
    assert "## Photos" not in page
