"""`discopatch export`, and the folder that it wrote in the place of a detector."""

import csv
import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from discopatch import Detector
from tests.export.samples import run_without_torch
from tests.samples import one_camera, save_images, tiny_weights

from .conftest import Run, assert_error, assert_usage_error


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A detector, and new images of which one is red and one is broken."""
    folder = tmp_path_factory.mktemp("camera")
    detector = Detector(tiny_weights(seed=2), head="statistics", patches=5, false_alarm_rate=0.1)
    detector.fit(one_camera(40), workers=1).save(folder / "camera-3.safetensors")
    save_images(folder / "new", one_camera(4, size=80, seed=1))
    Image.new("RGB", (80, 80), "red").save(folder / "new" / "red.png")
    (folder / "new" / "broken.png").write_bytes(b"nothing")
    return folder


@pytest.fixture
def exported(folder: Path, run: Run) -> Path:
    """Written once, under its default name."""
    export, detector = folder / "camera-3-onnx", folder / "camera-3.safetensors"
    if not export.exists():
        before = detector.read_bytes()
        status, out, err = run("export", detector, "--format", "onnx")
        assert (status, out) == (0, ""), err
        assert str(export) in err
        assert len(err.splitlines()) == 1
        assert detector.read_bytes() == before
    return export


def rows(printed: str) -> dict[str, dict[str, str]]:
    return {row["name"]: row for row in csv.DictReader(io.StringIO(printed))}


def test_score_takes_the_folder_as_a_detector(exported: Path, folder: Path, run: Run) -> None:
    status, by_export, err = run("score", folder / "new", "--detector", exported, "--csv")
    assert status == 0
    assert "1 of 6" in err
    by_detector = run("score", folder / "new", "--detector", folder / "camera-3.safetensors", "--csv").out
    found, expected = rows(by_export), rows(by_detector)
    assert list(found) == list(expected)
    for name, row in found.items():
        for field in ("p_value", "is_ood", "error"):
            assert row[field] == expected[name][field]
        if row["score"]:
            assert float(row["score"]) == pytest.approx(float(expected[name]["score"]), abs=1e-3)
    assert found[str(folder / "new" / "red.png")]["is_ood"] == "true"


def test_the_gate_is_that_of_the_detector(exported: Path, folder: Path, run: Run) -> None:
    for options, status in ((("--fail-on", "any"), 3), (("--fail-on", "folder"), 4)):
        finished = run("score", folder / "new", "--detector", exported, *options)
        assert finished.status == status
        by_detector = run("score", folder / "new", "--detector", folder / "camera-3.safetensors", *options)
        assert finished.err.splitlines()[-1] == by_detector.err.splitlines()[-1]


def test_explain_draws_the_heatmap(exported: Path, folder: Path, run: Run, tmp_path: Path) -> None:
    heatmap = tmp_path / "heatmap.png"
    status, out, _ = run("explain", folder / "new" / "red.png", "--detector", exported, "-o", heatmap)
    assert status == 0
    assert "out-of-distribution" in out
    with Image.open(heatmap) as image:
        assert np.asarray(image).std() > 0


def test_both_work_where_there_is_no_torch(exported: Path, folder: Path, tmp_path: Path) -> None:
    heatmap = tmp_path / "heatmap.png"
    for arguments in (
        ["score", str(folder / "new"), "--detector", str(exported), "--csv"],
        ["explain", str(folder / "new" / "red.png"), "--detector", str(exported), "-o", str(heatmap)],
    ):
        code = f"sys.argv = {['discopatch', *arguments]!r}\nfrom discopatch.cli import main\nmain()\n"
        assert "red.png" in run_without_torch(code)
    assert heatmap.exists()


def test_an_export_is_never_replaced_unasked(exported: Path, folder: Path, run: Run) -> None:
    before = (exported / "detector.json").read_bytes()
    assert_usage_error(run("export", folder / "camera-3.safetensors", "--format", "onnx"), "--force")
    assert (exported / "detector.json").read_bytes() == before


def test_a_report_needs_the_detector_itself(exported: Path, folder: Path, run: Run, tmp_path: Path) -> None:
    report = tmp_path / "report.html"
    assert_usage_error(run("score", folder / "new", "--detector", exported, "--report", report), "--report")
    assert not report.exists()


def test_an_export_runs_on_a_cpu(exported: Path, folder: Path, run: Run) -> None:
    assert_error(run("score", folder / "new", "--detector", exported, "--device", "cuda"), "device")


@pytest.mark.parametrize(
    ("arguments", "mentioned"),
    [
        (("--format", "tflite"), ("onnx", "openvino", "torch-export")),
        (("--format", "onnx", "--int8"), ("reference",)),
        (("--format", "torch-export", "--int8"), ("onnx", "openvino")),
        (("--format", "onnx", "--reference", "nowhere"), ("nowhere",)),
    ],
)
def test_a_mistake_is_one_line_and_writes_nothing(
    folder: Path, run: Run, tmp_path: Path, arguments: tuple[str, ...], mentioned: tuple[str, ...]
) -> None:
    finished = run("export", folder / "camera-3.safetensors", "-o", tmp_path / "out", *arguments)
    assert_error(finished, *mentioned)
    assert len(finished.err.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


def test_a_folder_is_no_detector_to_export(exported: Path, run: Run, tmp_path: Path) -> None:
    assert_error(run("export", exported, "--format", "onnx", "-o", tmp_path / "out"), str(exported))
