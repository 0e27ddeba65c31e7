"""Every study has a help text and runs on tiny images."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.bench.bench_samples import make_folders, save_images

ROOT = Path(__file__).parents[2]
STUDIES = sorted(path.stem for path in (ROOT / "studies").glob("*.py") if path.stem != "common")

pytestmark = pytest.mark.slow


def run(name: str, *arguments: object, folder: Path) -> str:
    """The output of a study that runs in the folder."""
    command = [sys.executable, str(ROOT / "studies" / f"{name}.py"), *map(str, arguments)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with natural/, ood/ and solar/."""
    return make_folders(tmp_path_factory.mktemp("data"))


@pytest.mark.parametrize("name", STUDIES)
def test_a_study_shows_its_usage(name: str, tmp_path: Path) -> None:
    assert "Usage" in run(name, "--help", folder=tmp_path)


def test_folders_that_fail_are_simulated(tmp_path: Path) -> None:
    run("guarantees", "gate", "--folders", 2, "--out", tmp_path / "gate.json", folder=tmp_path)
    shares = json.loads((tmp_path / "gate.json").read_text())["shares"]
    assert all(0 <= each["folder"] <= 1 for each in shares)


@pytest.mark.nightly
def test_false_alarms_of_small_folders_are_measured(data: Path, tmp_path: Path) -> None:
    sizes = ("--draws", 2, "--images", 80, "--only", "photos", "--weights", "natural-small-v2", "--processes", 1)
    run("guarantees", "measure", "--data", data, *sizes, "--out", tmp_path / "out.json", folder=tmp_path)
    assert json.loads((tmp_path / "out.json").read_text())["photos"]["rows"]
    assert "photos" in run("guarantees", "tables", "--results", tmp_path / "out.json", folder=tmp_path)


def test_streams_are_simulated_and_tabulated(tmp_path: Path) -> None:
    out, few = ("--out", tmp_path / "out.json"), ("--streams", 250, "--delayed", 4, "--images", 20)
    run("monitoring", "simulate", *out, *few, folder=tmp_path)
    assert "1 sd higher" in run("monitoring", "tables", *out, folder=tmp_path)


def test_trainings_of_the_paper_are_measured(data: Path, tmp_path: Path) -> None:
    command = ("run", "--data", data, "--out", tmp_path, "--tiny", "--device", "cpu", "--workers", 1)
    run("paper", *command, "--run", "paper-0", "--run", "full-0", folder=tmp_path)
    results = json.loads((tmp_path / "studies.json").read_text())
    assert results["evaluation"]["paper-0"].keys() >= {"near", "far", "covariate"}
    assert "batch of 4" in results["batch normalisation"]["full-0"]
    assert "paper-0" in run("paper", "tables", tmp_path / "studies.json", folder=tmp_path)


@pytest.mark.nightly
def test_reasons_are_measured(data: Path, tmp_path: Path) -> None:
    images = ("--photos", data / "natural/train-0000.tar", "--weights", "natural-small-v2", "--device", "cpu")
    small = ("--given", 30, "--draws", 1, "--degraded", 1, "--processes", 1, "--out", tmp_path / "reasons.json")
    assert "first reason right" in run("reasons", *images, *small, folder=tmp_path)


@pytest.mark.nightly
def test_decoders_are_compared(data: Path, tmp_path: Path) -> None:
    photos = ("--photos", data / "natural/train-0000.tar", "--new", data / "natural/test.tar", "--normal", 60)
    few = ("--test", 4, "--severity", 3, "--corruption", "fog", "--weights", "natural-small-v2")
    assert "AUROC" in run("scale", "decoders", *photos, *few, "--out", tmp_path / "out.json", folder=tmp_path)


def test_a_long_run_is_timed(tmp_path: Path) -> None:
    few = ("--count", 80, "--fit", 40, "--weights", "natural-small-v2", "--patches", 4)
    assert "second half" in run("scale", "images", *few, "--out", tmp_path / "out.json", folder=tmp_path)


@pytest.mark.nightly
def test_small_defects_are_measured(tmp_path: Path) -> None:
    for part, count in {"fit": 20, "normal": 3, "defect": 2, "mask": 2}.items():
        save_images(tmp_path / "tiles" / part, ["coffee", "temple"], count, seed=count)
    options = ("--data", tmp_path, "--only", "tiles", "--networks", "natural-small-v2", "--out", tmp_path / "out.json")
    assert "found at 10 %" in run("defects", "quality", *options, folder=tmp_path)
    assert "all changes" in run("defects", "places", *options, "--changed", 2, folder=tmp_path)
    alarms = run("defects", "false-alarms", *options, "--fitted", 40, folder=tmp_path)
    assert alarms.endswith(run("defects", "tables", tmp_path / "out.json", folder=tmp_path))


def test_speed_is_measured_without_a_gpu(tmp_path: Path) -> None:
    assert "natural-small-v2" in run("gpu", "speed", "--tiny", "--device", "cpu", folder=tmp_path)
    assert "scores" in run("gpu", "places", "--tiny", "--device", "cpu", "--seconds", 0.01, folder=tmp_path)
    assert "scaled" in run("gpu", "decode", "--tiny", "--batch", 8, folder=tmp_path)


def test_benchmark_runs_are_published(data: Path, tmp_path: Path) -> None:
    (tmp_path / "docs/results").mkdir(parents=True)
    assert "natural: not measured" in run("tables", "publish", tmp_path, "--docs", tmp_path / "docs", folder=tmp_path)
    for name in ("natural", "natural-protocols"):
        assert run("tables", "table", name, "--docs", ROOT / "docs", folder=tmp_path).count("| DisCoPatch") > 1


@pytest.mark.nightly
def test_the_service_survives_a_minute_of_mixed_load(export_folder: Path, tmp_path: Path) -> None:
    assert "| exit status | 0 |" in run(
        "soak", export_folder, "--minutes", 1, "--out", tmp_path / "out.json", folder=tmp_path
    )
    found = json.loads((tmp_path / "out.json").read_text())
    assert found["kills"] == 1
    assert found["answered images"] > 50


def test_streams_of_peers_are_drawn_watched_and_tabulated(tmp_path: Path) -> None:
    few = ("--streams", 3, "--changed", 4, "--images", 20, "--out", tmp_path / "out.json")
    run("peers/streams", "discopatch", *few, folder=tmp_path)
    row = json.loads((tmp_path / "out.json").read_text())["streams"]["discopatch, monitor"]
    assert row["normal"]["streams"] == 3
    assert row["1 sd after 0"]["found"] == 1
    assert "| discopatch, monitor |" in run("peers/streams", "table", *few, folder=tmp_path)


def test_folders_of_peers_fail_by_their_share_of_defects(tmp_path: Path) -> None:
    (tmp_path / "scores/castings").mkdir(parents=True)
    scores = {f"{part}/{number}.png": 0.01 * number for part in ("held_out", "normal") for number in range(40)}
    scores |= {f"defects/{number}.png": 2.0 for number in range(10)}
    for name in scores:
        (tmp_path / "suites/castings" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "suites/castings" / name).touch()
    (tmp_path / "scores/castings/discopatch.json").write_text(json.dumps({"scores": scores}))
    few = (tmp_path / "suites", tmp_path / "scores", "--draws", 3, "--out", tmp_path / "out.json")
    run("peers/folders", "discopatch", *few, folder=tmp_path)
    row = json.loads((tmp_path / "out.json").read_text())["folders"]["discopatch, folder test, scores"]["castings"]
    assert row == {"draws": 3, "normal": 0, "10 %": row["10 %"], "25 %": 1}
    assert "| discopatch, folder test, scores | 0.0 % |" in run("peers/folders", "table", *few, folder=tmp_path)


def test_peers_are_compared_by_their_stored_scores(tmp_path: Path) -> None:
    save_images(tmp_path / "suites/castings/normal", ["coffee"], 20, seed=0)
    (tmp_path / "docs/results").mkdir(parents=True)
    (tmp_path / "docs/images").mkdir()
    (tmp_path / "docs/peers.md").write_text("# Peers\n## Defects\nText.\n\n| | |\n|---|---:|\n| old | 1 |\n\nAfter.\n")
    (tmp_path / "README.md").write_text("## Beside other packages\n\n| | |\n|---|---:|\n| old | 1 |\n")
    (tmp_path / "scores/castings").mkdir(parents=True)
    for method, found in {"discopatch": 20, "dfm": 10}.items():
        scores = {f"{part}/{number:02}.png": 0.01 * number for part in ("held_out", "normal") for number in range(20)}
        scores |= {f"defects/{number:02}.png": 1.0 if number < found else -1.0 for number in range(20)}
        stored = {"scores": scores, "flagged": None, "pixel": None, "version": "1", "image_seconds": 0.1}
        (tmp_path / f"scores/castings/{method}.json").write_text(json.dumps(stored))
    run("peers/read", tmp_path / "suites", tmp_path / "scores", "--docs", tmp_path / "docs", folder=tmp_path)
    tables = json.loads((tmp_path / "docs/results/peers.json").read_text())["tables"]
    assert tables["Defects"]["discopatch"]["castings"] == "100.0 [100.0, 100.0]"
    assert tables["Defects"]["anomalib DFM"]["castings"].startswith("50.0 [")
    assert tables["Defects, ours minus theirs"]["anomalib DFM"]["castings"].startswith("50.0 [")
    share, false = tables["Defects found with one rule"]["anomalib DFM"]["castings"].split()
    assert share == "50.0"
    assert 0 < float(false.strip("()")) <= 6  # over splits, near the promised 5
    page = (tmp_path / "docs/peers.md").read_text()
    assert "| anomalib DFM | 50.0 [" in page
    assert "| old |" not in page
    assert page.endswith("After.\n")
    assert "| anomalib DFM | 0.100 |  | 50.0 |" in (tmp_path / "README.md").read_text()
