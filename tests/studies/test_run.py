"""All studies, small, from end to end."""

import csv
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import paper_studies
from common import OutOfTimeError
from discopatch.encoders import DiscriminatorEncoder
from discopatch.errors import ParameterError
from discopatch.fitting import N_PROBED
from discopatch.heads import measure_shifts
from discopatch.training.loop import Trainer
from paper.dataset import FIT, TEST
from paper.page import studies_page
from paper.plan import WITH_SPECTRA, all_jobs
from paper.run import Studies, plan_key
from paper.scoring import evaluate, make_encoder, normal_features, scoring_precision
from paper.tables import GROUPS
from tests.samples import tiny_weights
from tests.studies.samples import SMALL, Results, make_dataset, make_studies

MEASURED = ("runs", "evaluation", "patch counts", "batch normalisation", "spectra")


@pytest.fixture(scope="module")
def finished(folders: Path, tmp_path_factory: pytest.TempPathFactory) -> Studies:
    studies = make_studies(folders, tmp_path_factory.mktemp("work"), tmp_path_factory.mktemp("out"))
    studies.run()
    return studies


@pytest.fixture(scope="module")
def results(finished: Studies) -> Results:
    stored: Results = json.loads((finished.out / "studies.json").read_text())
    return stored


@pytest.mark.slow
def test_every_study_has_its_figures(results: Results) -> None:
    assert results["failed"] == {}
    runs = {job.name for job in all_jobs(SMALL)}
    assert set(results["runs"]) == runs
    assert set(results["evaluation"]) == runs - {"full-0"}
    assert set(results["batch normalisation"]) == {"full-0"}
    assert set(results["patch counts"]) == set(SMALL.counted)
    assert set(results["spectra"]) == set(WITH_SPECTRA)
    for each in results["evaluation"].values():
        assert set(each["groups"]) == {"near", "far", "covariate", "control"}
        for scores in (*each["groups"].values(), *each["sets"].values()):
            assert set(scores) == {"patches", "logit", "statistics", "combined"}
            assert all(0 <= low <= high <= 1 and 0 <= value <= 1 for value, low, high in scores.values())
    for each in results["patch counts"].values():
        assert list(each["counts"]) == [str(count) for count in SMALL.counts]
        assert all(set(groups) == set(GROUPS) for groups in each["counts"].values())
    found = results["evaluation"]["natural-1"]
    sets = [found["sets"][name]["logit"][0] for name in ("textures", "cartoons")]
    assert found["groups"]["near"]["logit"][0] == pytest.approx(np.mean(sets), abs=1e-5), "a mean over its sets"
    page = studies_page(results)
    assert "| GroupNorm |" in page
    assert "± " in page


@pytest.mark.slow
def test_what_was_used_is_written_down(results: Results, finished: Studies) -> None:
    for job in all_jobs(SMALL):
        run = results["runs"][job.name]
        assert run["config"]["seed"] == job.config.seed
        assert run["steps"] == SMALL.steps
        assert run["weights digest"] == finished.trainings.weights(job).digest
        if job.of_patches:
            assert results["evaluation"][job.name]["weights digest"] == run["weights digest"]
    assert len({run["weights digest"] for run in results["runs"].values()}) == len(results["runs"])
    assert len({run["data digest"] for run in results["runs"].values()}) == 1
    assert results["data"][TEST]["images"] == SMALL.limit
    assert results["made"]["torch"] == torch.__version__


@pytest.mark.slow
def test_few_small_files_come_out(finished: Studies) -> None:
    names = sorted(path.name for path in finished.out.iterdir())
    assert names == ["losses.csv", "samples-natural-0.png", "samples-paper-0.png", "studies.json"]
    with (finished.out / "losses.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert {row["run"] for row in rows} == {job.name for job in all_jobs(SMALL)}
    assert [row["step"] for row in rows if row["run"] == "paper-0"] == ["1", "2", "3", "4"]


@pytest.mark.slow
def test_the_same_again_trains_and_measures_nothing(
    folders: Path, finished: Studies, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(Trainer, "run")
    monkeypatch.delattr(DiscriminatorEncoder, "extract_pixels")
    again = make_studies(folders, finished.trainings.folder, tmp_path / "out")
    again.run()
    assert again.timer.spent == {}
    for section in MEASURED:
        assert again.results[section] == finished.results[section]


def test_when_time_is_over_what_is_done_is_stored(folders: Path, tmp_path: Path) -> None:
    studies = make_studies(folders, tmp_path / "work", tmp_path / "out", minutes=1e-9)
    with pytest.raises(OutOfTimeError):
        studies.run(["train"], ["group-0"])
    assert json.loads((tmp_path / "out" / "studies.json").read_text())["plan"]["seeds"] == SMALL.seeds


def test_some_parts_of_some_runs(folders: Path, tmp_path: Path) -> None:
    studies = make_studies(folders, tmp_path / "work", tmp_path / "out")
    studies.run(["train"], ["instance-0"])
    assert list(studies.results["runs"]) == ["instance-0"]
    assert "evaluation" not in studies.results
    with pytest.raises(ParameterError, match="paper-9"):
        studies.run(runs=["paper-9"])
    with pytest.raises(ParameterError, match="training"):
        studies.run(["training"])


def test_results_of_another_plan_are_kept_apart_but_more_seeds_only_add() -> None:
    assert plan_key(SMALL) == plan_key(SMALL.override(seeds=3))
    assert plan_key(SMALL) != plan_key(SMALL.override(severities=(1,)))
    assert SMALL.override(seeds=None, severities=()) == SMALL


def test_probes_are_tried_as_a_detector_tries_them() -> None:
    dataset, encoder = make_dataset(images=8), make_encoder(tiny_weights(), SMALL, "cpu")
    features, shifts = normal_features(encoder, dataset, SMALL.seed)
    expected = measure_shifts(encoder.extract_pixels, dataset.images(FIT)[:N_PROBED], seed=SMALL.seed)
    assert list(shifts) == list(expected)
    for name, each in shifts.items():
        np.testing.assert_allclose(each, expected[name], atol=1e-5)
    assert len(features.logits) == 8


def test_scoring_leaves_the_settings_of_torch_as_they_were() -> None:
    before = torch.backends.cudnn.allow_tf32, torch.backends.cudnn.benchmark
    with scoring_precision("fp32", "cpu"):
        assert not torch.backends.cudnn.allow_tf32
    assert (torch.backends.cudnn.allow_tf32, torch.backends.cudnn.benchmark) == before


def test_the_same_images_twice_are_a_coin_toss() -> None:
    dataset = make_dataset(images=8)
    dataset.sets.update({name: dataset.sets[TEST] for name in dataset.sets if name != FIT})
    found = evaluate(tiny_weights(), dataset, SMALL, "cpu")
    assert all(value == 0.5 for scores in found["groups"].values() for value, _, _ in scores.values())


def test_the_script_says_what_it_can_do() -> None:
    command = [sys.executable, paper_studies.__file__, "run", "--help"]
    shown = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "--patches-in-all" in shown.stdout
