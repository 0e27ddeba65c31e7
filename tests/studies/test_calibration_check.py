"""The calibration checks, small: every section, the same on every run, and a page of them."""

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

import calibration_check
from calibration.measure import FeatureReader, Sizes, check_few, check_photos, run_checks
from calibration.page import calibration_page
from discopatch.bench.pool import CorruptionPool
from discopatch.bench.suites.natural import natural_suite
from discopatch.errors import TooFewImagesError
from discopatch.heads import LogitHead
from discopatch.images.decode import decode
from discopatch.metrics import auroc
from tests.samples import tiny_weights
from tests.studies.samples import Results

DOCS = Path(__file__).parents[2] / "docs"
SECTIONS = ("false alarms", "fit size", "storage")
HEADS = {"logit", "statistics", "combined", "components"}
SMALL = Sizes(
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
    few={},
    resamples=50,
)


@pytest.fixture(scope="module")
def pool() -> Iterator[CorruptionPool]:
    with CorruptionPool(1, frost=False) as pool:
        yield pool


def measure(pool: CorruptionPool, folders: Path) -> list[Results]:
    """The results as they were stored after each section."""
    reader = FeatureReader(tiny_weights(), pool, "cpu")
    found = run_checks(reader, SMALL, data=folders, solar=folders / "solar")
    return [json.loads(json.dumps(results)) for results in found]


@pytest.fixture(scope="module")
def stored(pool: CorruptionPool, folders: Path) -> list[Results]:
    return measure(pool, folders)


@pytest.fixture(scope="module")
def results(stored: list[Results]) -> Results:
    return stored[-1]


def test_what_is_done_is_stored_section_by_section(stored: list[Results]) -> None:
    sections = [{(name, part) for name in results if name in SECTIONS for part in results[name]} for results in stored]
    assert len(sections) == 4
    assert all(earlier < later for earlier, later in pairwise(sections))
    assert set(stored[0]["false alarms"]) == {"solar"}
    assert stored[0]["made"]["weights digest"] == tiny_weights().digest


def test_false_alarms_are_counted_for_each_rate_that_is_possible(results: Results) -> None:
    solar, photos = results["false alarms"]["solar"], results["false alarms"]["natural"]
    assert set(solar) == set(photos) == HEADS
    assert set(solar["combined"]) == {"0.01", "0.2"}
    assert solar["combined"]["0.2"]["tests"] == 150 + 4 - 40 - 99
    assert len(solar["combined"]["0.2"]["alarms"]) == SMALL.splits
    assert set(photos["combined"]) == {"0.2"}, "4 calibration photos are too few for 1 %"


def test_of_few_images_a_third_of_those_not_fitted_is_tested(pool: CorruptionPool, folders: Path) -> None:
    reader = FeatureReader(tiny_weights(), pool, "cpu")
    ((section, found),) = check_few(reader, SMALL, folders / "natural/train-0000.tar", fit=20)
    assert section == "false alarms"
    components = found["train-0000"]["components"]["0.2"]
    assert (components["calibration"], components["tests"], len(components["alarms"])) == (40, 20, 3)


def test_fits_of_several_sizes_are_compared(results: Results) -> None:
    found = results["fit size"]
    assert list(found["sizes"]) == ["30", "60"], "no more than there are"
    assert found["sizes"]["30"]["fitted"] == 21, "nine are held out to calibrate a tenth"
    assert (found["severity"], found["corruptions"], found["test"]) == (3, 2, 4)
    assert set(found["sizes"]["60"]) == {"fitted", *HEADS}
    logits = [each["logit"] for each in found["sizes"].values()]
    assert logits[0] == logits[1], "the logit learns nothing from a fit"


def test_storage_is_measured_by_scores_of_the_same_photos(
    results: Results, pool: CorruptionPool, folders: Path
) -> None:
    found = results["storage"]
    assert all(set(found[view]) == HEADS for view in ("as they come", "trained on", "other images, as they come"))
    suite, weights = natural_suite(folders), tiny_weights()
    encoder = FeatureReader(weights, pool, "cpu").encoder
    pixels = np.stack([weights.transform(decode(file.read())) for file in suite.test])
    stored = np.stack([suite.stored.store(image) for image in pixels])
    bare, again = (LogitHead().score(encoder.extract_pixels(each)) for each in (pixels, stored))
    assert found["as they come"]["logit"][0] == pytest.approx(auroc(again, bare), abs=1e-5)
    assert found["stored"] == 92


def test_the_results_say_what_they_rest_on(results: Results) -> None:
    data = results["data"]
    assert data["cells to test"]["images"] == data["brightness/3"]["images"] == 4
    assert {name: each["images"] for name, each in data.items() if name.startswith("photos")} == {
        "photos to fit": 40,
        "photos to test": 8,
        "photos trained on": 9,
        "photos to test, as they come": 8,
    }
    assert len({each["digest"] for each in data.values()}) == len(data)
    assert "photos-227px, as they come" not in data, "photos are no other images"
    assert results["plan"]["splits"] == 3
    assert results["made"]["transform digest"] == tiny_weights().transform.digest


@pytest.mark.slow
def test_a_second_run_gives_the_same_figures(results: Results, pool: CorruptionPool, folders: Path) -> None:
    again = measure(pool, folders)[-1]
    again["made"]["seconds"] = results["made"]["seconds"]
    assert again == results


def test_photos_that_are_too_few_are_an_error(pool: CorruptionPool, folders: Path) -> None:
    with pytest.raises(TooFewImagesError, match="2,009"):
        list(check_photos(FeatureReader(tiny_weights(), pool, "cpu"), replace(SMALL, fit_photos=2000), folders))


def test_the_page_has_every_section_and_the_figures_with_their_intervals(results: Results, tmp_path: Path) -> None:
    (tmp_path / "calibration.json").write_text(json.dumps(results))
    calibration_check.page(tmp_path / "calibration.json", tmp_path / "calibration.md")
    page = (tmp_path / "calibration.md").read_text(encoding="utf-8")
    assert page == calibration_page(results)
    assert sum(line.startswith("## ") for line in page.splitlines()) == 5
    value, low, high = results["fit size"]["sizes"]["60"]["combined"]
    row = next(line for line in page.splitlines() if line.startswith("| 60 |"))
    assert f"| {value:.3f} [{low:.3f}, {high:.3f}] |" in row
    assert "{" not in page
    tables = [block for block in page.split("\n\n") if block.startswith("|")]
    assert len(tables) == 4
    for block in tables:
        assert len({line.count("|") for line in block.splitlines()}) == 1, block


def test_a_page_of_a_run_cut_short_has_what_there_is(stored: list[Results]) -> None:
    page = calibration_page(stored[0])
    assert "| solar cells | combined |" in page
    assert "| photos |" not in page
    assert "## What storage" not in page


def test_the_stored_results_give_the_figures_of_the_page() -> None:
    page = (DOCS / "calibration.md").read_text(encoding="utf-8")
    again = calibration_page(json.loads((DOCS / "results" / "calibration.json").read_text(encoding="utf-8")))
    rows = [[line for line in text.splitlines() if re.match(r"\| .*\d", line)] for text in (page, again)]
    assert len(rows[0]) > 20
    assert rows[0] == rows[1]
