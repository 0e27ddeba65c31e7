"""Methods of a user's own, registered by a plugin and measured by `discopatch bench`."""

import csv
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.bench.bench_samples import save_images
from tests.docs.blocks import blocks_of
from tests.samples import tiny_weights

PLUGIN = blocks_of("docs/how-to/own-method.md")[0].text
IMAGES = ("--suite", "folder", "--normal", "normal", "--other", "coins", "--corruption", "contrast", "--severity", "5")
SMALL = ("--fit-images", "30", "--test-images", "8", "--workers", "1", "--no-figures", "--protocol", "matched")
METHODS = "discopatch/distance,discopatch/centre,discopatch-4/distance,edges/knn,edges/distance,edges/centre"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Own images, own weights and a plugin, which is the file on the page."""
    root = tmp_path_factory.mktemp("place")
    save_images(root / "normal", ["temple"], 50, seed=0)
    save_images(root / "coins", ["coins"], 9, seed=1)
    tiny_weights().save(root / "mine.safetensors")
    (root / "my_methods.py").write_text(PLUGIN)
    return root


def bench(place: Path, *options: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = ["bench", *IMAGES, *SMALL, "--weights", "mine.safetensors", "--device", "cpu"]
    words = [sys.executable, "-m", "discopatch", *command, *options]
    environment = {**os.environ, "COLUMNS": "120", **environment}
    return subprocess.run(words, cwd=place, env=environment, capture_output=True, text=True)


def read_results(place: Path, out: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((place / out / "results.json").read_text())
    return found


@pytest.fixture(scope="module")
def measured(place: Path) -> subprocess.CompletedProcess[str]:
    return bench(place, "--plugin", "my_methods.py", "--methods", METHODS, "-o", "out")


def test_methods_of_a_plugin_are_measured_like_all_others(
    measured: subprocess.CompletedProcess[str], place: Path
) -> None:
    assert measured.returncode == 0, measured.stderr
    results = read_results(place, "out")
    assert set(results["methods"]) == {each.replace("discopatch", "mine.safetensors") for each in METHODS.split(",")}
    assert results["made"]["plugins"].keys() == {"my_methods.py"}
    assert len(results["made"]["plugins"]["my_methods.py"]) == 16
    values = results["protocols"]["matched"]["means"]["far"]
    assert all(0 <= low <= value <= high <= 1 for value, low, high in (each["auroc"] for each in values.values()))


def test_own_weights_have_the_name_of_their_file_in_tables_and_results(
    measured: subprocess.CompletedProcess[str], place: Path
) -> None:
    assert "mine.safetensors-4/" in measured.stdout
    text = (place / "out/tables.md").read_text()
    assert "| mine.safetensors, centre (dense) |" in text
    with (place / "out/results.csv").open() as file:
        names = {row["method"] for row in csv.DictReader(file)}
    assert not any(name.startswith("discopatch") for name in names)


def test_every_mean_has_its_interval_and_its_number_of_images(
    measured: subprocess.CompletedProcess[str], place: Path
) -> None:
    value, low, high = read_results(place, "out")["protocols"]["matched"]["means"]["far"]["edges/knn"]["auroc"]
    assert f"{100 * value:.1f}/" in measured.stdout
    assert f"{100 * low:.1f}-{100 * high:.1f}" in measured.stdout
    assert "n=9" in measured.stdout
    tables = (place / "out/tables.md").read_text().split("\n## ")[1:-1]  # the last has latencies
    for table in tables:
        heading, _, *rows = [line.split("|")[2:-1] for line in table.splitlines() if line.startswith("|")]
        assert all("n=" in cell for cell in heading), table
        assert all("[" in cell for row in rows for cell in row if cell.strip()), table


@pytest.mark.slow
def test_methods_of_a_changed_plugin_are_scored_again_and_others_are_not(
    measured: subprocess.CompletedProcess[str], place: Path
) -> None:
    assert measured.returncode == 0
    changed = PLUGIN.replace("return np.linalg.norm(", "return -np.linalg.norm(")
    (place / "changed.py").write_text(changed)
    before = read_results(place, "out")
    again = bench(place, "--plugin", "changed.py", "--methods", "discopatch/logit,edges/distance", "-o", "out")
    assert again.returncode == 0, again.stderr
    after = read_results(place, "out")
    assert before["made"]["plugins"] != after["made"]["plugins"]
    auroc = [each["protocols"]["matched"]["means"]["far"]["edges/distance"]["auroc"][0] for each in (before, after)]
    assert auroc[0] == pytest.approx(1 - auroc[1], abs=1e-4)


@pytest.mark.parametrize(
    ("text", "mentioned"),
    [
        ("import numpy\n\n1 / 0\n", ("bad.py, line 3", "ZeroDivisionError")),
        ("def broken(:\n", ("bad.py, line 1", "SyntaxError")),
        (PLUGIN.replace('"distance"', '"knn"'), ("bad.py, line 10", "'knn' is there already")),
        (PLUGIN.replace('"distance"', '"a/b"'), ("bad.py, line 10", "'a/b'")),
        (PLUGIN.replace("/ self.spread", "/ self.sprad"), ("bad.py, line 20", "AttributeError", "sprad")),
        (PLUGIN.replace("axis=1", "axis=0"), ("edges/distance", "shape")),
        (
            PLUGIN.replace("return self\n\n    def score", "pass\n\n    def score"),
            ("distance returns NoneType", "return self"),
        ),
    ],
)
def test_an_error_in_a_plugin_is_one_line_with_its_place(place: Path, text: str, mentioned: tuple[str, ...]) -> None:
    (place / "bad.py").write_text(text)
    options = ("--plugin", "bad.py", "--methods", "edges/distance", "-o", "bad")
    finished = bench(place, *options)
    assert finished.returncode == 1
    *_, last = finished.stderr.splitlines()
    assert last.startswith("error: ")
    assert "Traceback" not in finished.stderr
    assert all(each in last for each in mentioned), last


def test_the_whole_error_is_shown_on_request(place: Path) -> None:
    (place / "bad.py").write_text("1 / 0\n")
    finished = bench(place, "--plugin", "bad.py", "-o", "bad", DISCOPATCH_TRACEBACK="1")
    assert finished.returncode == 1
    assert "Traceback" in finished.stderr
    assert "ZeroDivisionError" in finished.stderr


@pytest.mark.slow
def test_an_installed_package_registers_methods_which_only_bench_loads(place: Path, tmp_path: Path) -> None:
    (tmp_path / "our_methods.py").write_text(PLUGIN + "\nprint('loaded')\n")
    info = tmp_path / "our_methods-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: our-methods\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[discopatch.plugins]\nours = our_methods\n")
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-c", "import discopatch, discopatch.bench.methods"]
    environment = {**os.environ, "PYTHONPATH": path}
    assert subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout == ""
    finished = bench(place, "--methods", "edges/distance", "-o", "installed", PYTHONPATH=path)
    assert finished.returncode == 0, finished.stderr
    assert read_results(place, "installed")["made"]["plugins"].keys() == {"our_methods.py"}
    (tmp_path / "our_methods.py").write_text("import nothing_of_this_name\n")
    finished = bench(place, "--methods", "edges/distance", "-o", "broken", PYTHONPATH=path)
    assert "our_methods" in finished.stderr.splitlines()[-1]
    assert "nothing_of_this_name" in finished.stderr.splitlines()[-1]
