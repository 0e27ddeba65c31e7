"""All studies, small, from end to end."""

import csv
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from discopatch.benchmark.studies.bias import by_group
from discopatch.benchmark.studies.clock import OutOfTime
from discopatch.benchmark.studies.everything import Choice, Studies
from discopatch.benchmark.studies.gallery import FIT, TEST
from discopatch.benchmark.studies.jobs import all_jobs
from discopatch.benchmark.studies.looking import evaluate, normal, rounding, scorer
from discopatch.benchmark.studies.losses import unfold
from discopatch.benchmark.studies.names import GROUPS
from discopatch.benchmark.studies.page import render
from discopatch.benchmark.studies.plan import SPECTRA
from discopatch.fitting import CHANGED
from discopatch.scoring import Scorer
from discopatch.scoring.changes import displacements
from discopatch.training.log import read_losses
from discopatch.training.loop import Training
from tests.benchmark.studies.samples import SMALL, make_gallery, make_studies
from tests.scoring.samples import tiny_weights

pytestmark = pytest.mark.slow
SCRIPT = Path(__file__).parents[3] / "benchmarks" / "studies.py"

Report = dict[str, Any]


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("work")


@pytest.fixture(scope="module")
def conducted(tree: Path, work: Path, tmp_path_factory: pytest.TempPathFactory) -> Studies:
    studies = make_studies(tree, work, tmp_path_factory.mktemp("out"))
    studies.conduct(Choice())
    return studies


@pytest.fixture(scope="module")
def report(conducted: Studies) -> Report:
    stored: Report = json.loads((conducted.out / "studies.json").read_text())
    return stored


def test_every_study_has_its_figures(report: Report) -> None:
    assert report["failed"] == {}
    runs = {job.name for job in all_jobs(SMALL)}
    assert set(report["runs"]) == runs
    assert set(report["evaluation"]) == runs - {"full-0"}
    assert set(report["batch normalisation"]) == {"full-0"}
    assert set(report["patch counts"]) == set(SMALL.counted)
    assert set(report["spectra"]) == set(SPECTRA)
    for each in report["evaluation"].values():
        assert set(each["groups"]) == {"near", "far", "covariate", "control"}
        for scores in (*each["groups"].values(), *each["sets"].values()):
            assert set(scores) == {"patches", "logit", "statistics", "combined"}
            assert all(0 <= low <= high <= 1 and 0 <= value <= 1 for value, low, high in scores.values())
    for each in report["patch counts"].values():
        assert list(each["counts"]) == [str(count) for count in SMALL.counts]
        assert all(set(groups) == set(GROUPS) for groups in each["counts"].values())


def test_a_group_is_the_mean_of_its_sets(report: Report) -> None:
    found = report["evaluation"]["natural-1"]
    sets = [found["sets"][name]["logit"][0] for name in ("textures", "cartoons")]
    assert found["groups"]["near"]["logit"][0] == pytest.approx(np.mean(sets), abs=1e-5)


def test_what_was_used_is_written_down(report: Report, conducted: Studies) -> None:
    for job in all_jobs(SMALL):
        run = report["runs"][job.name]
        assert run["recipe"]["seed"] == job.recipe.seed
        assert run["steps"] == SMALL.steps
        assert run["weights digest"] == conducted.school.weights_of(job).digest
        if job.of_patches:
            assert report["evaluation"][job.name]["weights digest"] == run["weights digest"]
    assert len({run["weights digest"] for run in report["runs"].values()}) == len(report["runs"])
    assert len({run["data digest"] for run in report["runs"].values()}) == 1
    assert report["data"][TEST]["images"] == 6
    assert report["made"]["torch"] == torch.__version__


def test_few_small_files_come_out(conducted: Studies) -> None:
    names = sorted(path.name for path in conducted.out.iterdir())
    assert names == ["losses.csv", "samples-natural-0.png", "samples-paper-0.png", "studies.json"]
    with (conducted.out / "losses.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert {row["run"] for row in rows} == {job.name for job in all_jobs(SMALL)}
    assert [row["step"] for row in rows if row["run"] == "paper-0"] == ["1", "2", "3", "4"]


def test_the_losses_of_one_run_can_be_taken_out_again(conducted: Studies, tmp_path: Path) -> None:
    found = unfold(conducted.out / "losses.csv", tmp_path)
    for job in all_jobs(SMALL):
        own = read_losses(conducted.school.run_of(job).losses)
        np.testing.assert_allclose(read_losses(found[job.name]), own, rtol=1e-4)


def test_batch_statistics_can_be_drawn(report: Report) -> None:
    found = report["batch normalisation"]["full-0"]
    groups = by_group(found)
    assert set(groups) == set(GROUPS)
    assert groups["near"]["learned"] == found["learned"]["near"]["auroc"]
    assert groups["far"]["pure"] == {size: found["batch"][size]["far"]["auroc"] for size in ("1", "4")}
    assert list(groups["covariate"]["mixed"]) == ["4"]


def test_the_same_again_trains_and_measures_nothing(
    tree: Path, conducted: Studies, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(Training, "one_step")
    monkeypatch.delattr(Scorer, "inspect_pixels")
    again = make_studies(tree, conducted.school.folder, tmp_path / "out")
    again.conduct(Choice())
    assert again.clock.spent == {}
    for section in ("runs", "evaluation", "patch counts", "batch normalisation", "spectra"):
        assert again.ledger.report[section] == conducted.ledger.report[section]


def test_when_time_is_over_what_is_done_is_stored(tree: Path, tmp_path: Path) -> None:
    studies = make_studies(tree, tmp_path / "work", tmp_path / "out", minutes=1e-9)
    with pytest.raises(OutOfTime):
        studies.conduct(Choice(pieces=["train"], runs=["group-0"]))
    assert json.loads((tmp_path / "out" / "studies.json").read_text())["plan"]["seeds"] == SMALL.seeds


def test_some_pieces_of_some_runs(tree: Path, tmp_path: Path) -> None:
    studies = make_studies(tree, tmp_path / "work", tmp_path / "out")
    studies.conduct(Choice(pieces=["train"], runs=["instance-0"]))
    assert list(studies.ledger.report["runs"]) == ["instance-0"]
    assert "evaluation" not in studies.ledger.report
    with pytest.raises(ValueError, match="no run is called paper-9"):
        studies.conduct(Choice(runs=["paper-9"]))
    with pytest.raises(ValueError, match="no piece is called training"):
        Choice(pieces=["training"])


def test_the_page_has_a_table_for_every_study(report: Report) -> None:
    page = render(report)
    for title in ("Normalisation layers", "Batch statistics", "Patch counts", "Seeds and recipes", "Spectra"):
        assert f"## {title}\n" in page
    assert "| GroupNorm |" in page
    assert "| learned |" in page
    assert "± " in page
    part = {name: each for name, each in report.items() if name in ("plan", "made", "data", "runs")}
    assert "## The trainings" in render(part)
    assert "## Spectra" not in render(part)


def test_known_changes_are_tried_as_a_detector_tries_them() -> None:
    gallery = make_gallery(images=8)
    look = scorer(tiny_weights(), SMALL, "cpu")
    evidence, moved = normal(look, gallery, SMALL.seed)
    expected = displacements(look.inspect_pixels, gallery.of(FIT)[:CHANGED], seed=SMALL.seed)
    assert list(moved) == list(expected)
    for name, each in moved.items():
        np.testing.assert_allclose(each, expected[name], atol=1e-5)
    assert len(evidence.logits) == 8


def test_scoring_leaves_the_settings_of_torch_as_they_were() -> None:
    before = torch.backends.cudnn.allow_tf32, torch.backends.cudnn.benchmark
    with rounding("fp32", "cpu"):
        assert not torch.backends.cudnn.allow_tf32
    assert (torch.backends.cudnn.allow_tf32, torch.backends.cudnn.benchmark) == before


def test_the_same_pictures_twice_are_a_coin_toss() -> None:
    gallery = make_gallery(images=8)
    same = {name: gallery.sets[TEST] for name in gallery.sets if name != FIT}
    object.__setattr__(gallery, "sets", {FIT: gallery.sets[FIT], **same})
    found = evaluate(tiny_weights(), gallery, SMALL, "cpu")
    assert all(value == 0.5 for scores in found["groups"].values() for value, _, _ in scores.values())


def test_the_script_tells_what_it_can_do() -> None:
    shown = subprocess.run([sys.executable, str(SCRIPT), "run", "--help"], capture_output=True, text=True, check=True)
    assert "--patches-in-all" in shown.stdout
