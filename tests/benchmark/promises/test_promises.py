"""The whole measurement, small: every section, the same on every run, and a page of it."""

import json
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from discopatch.benchmark.metrics import auroc
from discopatch.benchmark.pool import Pool
from discopatch.benchmark.promises.measure import measure
from discopatch.benchmark.promises.observer import Observer
from discopatch.benchmark.promises.page import render
from discopatch.benchmark.promises.photos import measure_photos
from discopatch.benchmark.promises.plan import Plan
from discopatch.benchmark.suites.natural import natural_suite
from discopatch.images import Limits
from discopatch.images.decode import decode
from discopatch.scoring import LogitHead
from tests.scoring.samples import tiny_weights

from ..samples import make_folders

Report = dict[str, Any]

SECTIONS = ("false alarms", "fit size", "storage")
HEADS = {"logit", "statistics", "combined"}
SMALL = Plan(
    rates=(0.01, 0.2),
    splits=3,
    split_fit=40,
    split_calibration=99,
    cells=150,
    fit_sizes=(30, 60, 1000),
    corrupted=4,
    corruptions=("gaussian_noise", "brightness"),
    fit_photos=40,
    unfitted_photos=9,
    resamples=50,
)


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    with Pool(1, frost=False) as pool:
        yield pool


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_folders(tmp_path_factory.mktemp("data"))


def measured(pool: Pool, root: Path) -> list[Report]:
    """The report as it was stored after each section."""
    observer = Observer(tiny_weights(), pool, "cpu")
    found = measure(observer, SMALL, data=root, solar=root / "solar")
    return [json.loads(json.dumps(report)) for report in found]


@pytest.fixture(scope="module")
def reports(pool: Pool, root: Path) -> list[Report]:
    return measured(pool, root)


@pytest.fixture(scope="module")
def report(reports: list[Report]) -> Report:
    return reports[-1]


def test_what_is_done_is_stored_section_by_section(reports: list[Report]) -> None:
    sections = [{(name, part) for name in report if name in SECTIONS for part in report[name]} for report in reports]
    assert len(sections) == 4
    assert all(earlier < later for earlier, later in pairwise(sections))
    assert set(reports[0]["false alarms"]) == {"solar"}
    assert reports[0]["made"]["weights digest"] == tiny_weights().digest


def test_false_alarms_are_counted_for_each_promise_that_can_be_made(report: Report) -> None:
    solar, photos = report["false alarms"]["solar"], report["false alarms"]["natural"]
    assert set(solar) == set(photos) == HEADS
    assert set(solar["combined"]) == {"0.01", "0.2"}
    assert solar["combined"]["0.2"]["tests"] == 150 + 4 - 40 - 99
    assert len(solar["combined"]["0.2"]["alarms"]) == SMALL.splits
    assert set(photos["combined"]) == {"0.2"}, "4 photos to calibrate with cannot promise 1 %"


def test_fits_of_several_sizes_are_compared(report: Report) -> None:
    found = report["fit size"]
    assert list(found["sizes"]) == ["30", "60"], "no more than there are"
    assert found["sizes"]["30"]["fitted"] == 21, "nine are held out to promise a tenth"
    assert (found["severity"], found["corruptions"], found["test"]) == (3, 2, 4)
    assert set(found["sizes"]["60"]) == {"fitted", *HEADS}
    logits = [each["logit"] for each in found["sizes"].values()]
    assert logits[0] == logits[1], "the logit learns nothing from a fit"


def test_storage_is_told_apart_by_scores_of_the_same_photos(report: Report, pool: Pool, root: Path) -> None:
    found = report["storage"]
    assert all(set(found[view]) == HEADS for view in ("as they come", "trained on", "other images, as they come"))
    suite, weights = natural_suite(root), tiny_weights()
    scorer = Observer(weights, pool, "cpu").scorer
    pixels = np.stack([weights.transform(decode(file.read(), Limits())) for file in suite.test])
    bare, stored = (LogitHead().score(scorer.inspect_pixels(each)) for each in (pixels, suite.stored.store_all(pixels)))
    assert found["as they come"]["logit"][0] == pytest.approx(auroc(stored, bare), abs=1e-5)
    assert found["stored"] == 92


def test_the_report_says_what_it_rests_on(report: Report) -> None:
    data = report["data"]
    assert data["cells to test"]["images"] == data["brightness/3"]["images"] == 4
    assert {name: each["images"] for name, each in data.items() if name.startswith("photos")} == {
        "photos to fit": 40,
        "photos to test": 8,
        "photos trained on": 9,
        "photos to test, as they come": 8,
    }
    assert len({each["digest"] for each in data.values()}) == len(data)
    assert "photos-227px, as they come" not in data, "photos are no other images"
    assert report["plan"]["splits"] == 3
    assert report["made"]["transform digest"] == tiny_weights().transform.digest


def test_a_second_run_gives_the_same_figures(report: Report, pool: Pool, root: Path) -> None:
    again = measured(pool, root)[-1]
    again["made"]["seconds"] = report["made"]["seconds"]
    assert again == report


def test_photos_that_are_too_few_are_an_error_with_the_remedy(pool: Pool, root: Path) -> None:
    with pytest.raises(ValueError, match="160 photos to fit on, 2,009 were asked for: add images"):
        list(measure_photos(Observer(tiny_weights(), pool, "cpu"), replace(SMALL, fit_photos=2000), root))


def test_the_page_has_every_section_and_the_figures_with_their_intervals(report: Report) -> None:
    page = render(report)
    assert [line for line in page.splitlines() if line.startswith("#")] == [
        "# Promises",
        "## False alarms",
        "## How many images it takes",
        "## What storage alone does",
        "## What the figures do not say",
        "## How it was made",
    ]
    value, low, high = report["fit size"]["sizes"]["60"]["combined"]
    row = next(line for line in page.splitlines() if line.startswith("| 60 |"))
    assert f"| {value:.3f} [{low:.3f}, {high:.3f}] |" in row
    assert "JPEG of quality 92" in page
    assert "{" not in page


def test_a_table_has_as_many_cells_in_every_row(report: Report) -> None:
    tables = [block for block in render(report).split("\n\n") if block.startswith("|")]
    assert len(tables) == 4
    for block in tables:
        assert len({line.count("|") for line in block.splitlines()}) == 1, block


def test_a_page_of_a_run_cut_short_has_what_there_is(reports: list[Report]) -> None:
    page = render(reports[0])
    assert "| solar cells | combined |" in page
    assert "| photos |" not in page
    assert "## What storage" not in page
