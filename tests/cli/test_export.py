"""`discopatch export`, and what it wrote in the place of a detector, as a person types it."""

import csv
import io
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from discopatch import Detector
from tests.cli.conftest import Run
from tests.deploy.test_runtime import ALONE
from tests.scoring.samples import of_one_camera, save_pictures, tiny_weights


@pytest.fixture(scope="module")
def workshop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A detector, and new images of which one is red and one is broken."""
    folder = tmp_path_factory.mktemp("workshop")
    detector = Detector(tiny_weights(seed=2), head="statistics", sampling="random", patches=5, false_alarm_rate=0.1)
    detector.fit(of_one_camera(40), workers=1).save(folder / "camera-3.safetensors")
    fresh = of_one_camera(4, size=80, seed=1)
    save_pictures(folder / "new", fresh)
    Image.new("RGB", (80, 80), "red").save(folder / "new" / "red.png")
    (folder / "new" / "broken.png").write_bytes(b"nothing")
    return folder


@pytest.fixture
def exported(workshop: Path, run: Run) -> Path:
    """Made once, under the name that it gets by itself."""
    folder, detector = workshop / "camera-3-onnx", workshop / "camera-3.safetensors"
    if not folder.exists():
        before = detector.read_bytes()
        status, out, said = run("export", detector, "--format", "onnx")
        assert status == 0, said
        assert out == ""
        assert "camera-3-onnx: on 64 reference images, scores agree to" in said
        assert "no p-value differs" in said
        assert len(said.splitlines()) == 1
        assert detector.read_bytes() == before
    return folder


def rows(printed: str) -> dict[str, dict[str, str]]:
    return {row["name"]: row for row in csv.DictReader(io.StringIO(printed))}


def test_score_takes_the_folder_as_a_detector(exported: Path, workshop: Path, run: Run) -> None:
    status, by_export, said = run("score", workshop / "new", "--detector", exported, "--csv")
    assert status == 0
    assert "1 of 6 images refused" in said
    _, by_detector, _ = run("score", workshop / "new", "--detector", workshop / "camera-3.safetensors", "--csv")
    found, expected = rows(by_export), rows(by_detector)
    assert list(found) == list(expected)
    for name, row in found.items():
        assert (row["p_value"], row["is_ood"], row["error"]) == (
            expected[name]["p_value"],
            expected[name]["is_ood"],
            expected[name]["error"],
        )
        if row["score"]:
            assert float(row["score"]) == pytest.approx(float(expected[name]["score"]), abs=1e-3)
    assert found[str(workshop / "new" / "red.png")]["is_ood"] == "true"


def test_fail_on_ood_is_status_3(exported: Path, workshop: Path, run: Run) -> None:
    assert run("score", workshop / "new", "--detector", exported, "--fail-on-ood")[0] == 3


def test_explain_draws_the_heatmap(exported: Path, workshop: Path, run: Run, tmp_path: Path) -> None:
    status, out, _ = run("explain", workshop / "new" / "red.png", "--detector", exported, "-o", tmp_path / "heat.png")
    assert status == 0
    assert "unlike normal" in out
    with Image.open(tmp_path / "heat.png") as picture:
        assert np.asarray(picture).std() > 0


def test_both_work_where_there_is_no_torch(exported: Path, workshop: Path, tmp_path: Path) -> None:
    heat = tmp_path / "heat.png"
    for words in (
        ["score", str(workshop / "new"), "--detector", str(exported), "--csv"],
        ["explain", str(workshop / "new" / "red.png"), "--detector", str(exported), "-o", str(heat)],
    ):
        code = (
            ALONE.format(more="") + f"sys.argv = {['discopatch', *words]!r}\nfrom discopatch.cli import main\nmain()\n"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert "red.png" in done.stdout
    assert heat.exists()


def test_an_export_is_never_replaced_unasked(exported: Path, workshop: Path, run: Run) -> None:
    before = (exported / "detector.json").read_bytes()
    status, _, said = run("export", workshop / "camera-3.safetensors", "--format", "onnx")
    assert status == 2
    assert "--force" in said
    assert (exported / "detector.json").read_bytes() == before


def plain(said: str) -> str:
    return " ".join(said.replace("\u2502", " ").split())


def test_a_report_needs_the_detector_itself(exported: Path, workshop: Path, run: Run, tmp_path: Path) -> None:
    status, _, said = run("score", workshop / "new", "--detector", exported, "--report", tmp_path / "report.html")
    assert status == 2
    assert "give the detector that it was made from" in plain(said)


def test_an_export_runs_on_a_cpu(exported: Path, workshop: Path, run: Run) -> None:
    status, _, said = run("score", workshop / "new", "--detector", exported, "--device", "cuda")
    assert status == 2
    assert "leave --device out" in plain(said)


@pytest.mark.parametrize(
    ("words", "remedy"),
    [
        (("--format", "tflite"), "choose one of onnx, openvino, torch-export"),
        (("--format", "onnx", "--int8"), "give --reference with normal images"),
        (("--format", "torch-export", "--int8"), "choose the format onnx or openvino"),
        (("--format", "onnx", "--reference", "nowhere"), "no such file or folder: nowhere"),
    ],
)
def test_a_mistake_is_said_in_one_line_and_writes_nothing(
    workshop: Path, run: Run, tmp_path: Path, words: tuple[str, ...], remedy: str
) -> None:
    status, _, said = run("export", workshop / "camera-3.safetensors", "-o", tmp_path / "out", *words)
    assert status == 1
    assert said.startswith("error: ")
    assert remedy in said
    assert len(said.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


def test_a_folder_is_no_detector_to_export(exported: Path, run: Run, tmp_path: Path) -> None:
    status, _, said = run("export", exported, "--format", "onnx", "-o", tmp_path / "out")
    assert status == 1
    assert "give the path of a file that `discopatch fit` wrote" in said


def test_the_detector_stays_loadable(workshop: Path, exported: Path) -> None:
    assert exported.is_dir()
    Detector.load(workshop / "camera-3.safetensors")
