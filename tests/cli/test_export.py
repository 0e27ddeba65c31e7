"""`discopatch export`, and the exported folder as a detector of other commands."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.export.samples import run_without_torch, tiny_detector
from tests.samples import one_camera, save_images

from .conftest import Run, assert_error, assert_usage_error


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A detector, and new images of which one is noise and one is broken."""
    folder = tmp_path_factory.mktemp("camera")
    tiny_detector().save(folder / "camera-3.safetensors")
    save_images(folder / "new", one_camera(4, size=80, seed=1))
    noise = np.random.default_rng(0).integers(0, 256, (80, 80, 3), dtype=np.uint8)
    Image.fromarray(noise).save(folder / "new" / "noise.png")
    (folder / "new" / "broken.png").write_bytes(b"nothing")
    return folder


@pytest.mark.slow
def test_the_default_folder_is_beside_the_detector_and_is_replaced_on_request(folder: Path, run: Run) -> None:
    detector, export = folder / "camera-3.safetensors", folder / "camera-3-onnx"
    references = folder / "references"
    save_images(references, one_camera(8, size=80, seed=5))
    status, out, err = run("export", detector, "--format", "onnx", "--reference", references)
    assert (status, out) == (0, ""), err
    assert str(export) in err
    before = (export / "detector.json").read_bytes()
    assert_usage_error(run("export", detector, "--format", "onnx"), "--force")
    assert (export / "detector.json").read_bytes() == before
    assert_error(run("export", export, "--format", "onnx", "-o", folder / "out"), str(export))


def test_score_prints_what_it_prints_with_the_detector(
    folder: Path, detector_file: Path, export_folder: Path, run: Run
) -> None:
    found, expected = (
        run("score", folder / "new", "--detector", detector, "--fail-on", "any", "--json")
        for detector in (export_folder, detector_file)
    )
    assert found.status == expected.status
    assert_error(run("score", folder / "new", "--detector", export_folder, "--device", "cuda"), "device")
    for one, other in zip(json.loads(found.out), json.loads(expected.out), strict=True):
        assert one == pytest.approx(other, abs=1e-3)


def test_score_and_explain_work_without_torch(folder: Path, export_folder: Path, tmp_path: Path) -> None:
    heatmap = tmp_path / "heatmap.png"
    for arguments in (
        ["score", str(folder / "new"), "--detector", str(export_folder)],
        ["explain", str(folder / "new" / "noise.png"), "--detector", str(export_folder), "-o", str(heatmap)],
    ):
        code = f"sys.argv = {['discopatch', *arguments]!r}\nfrom discopatch.cli import main\nmain()\n"
        assert "noise.png" in run_without_torch(code)
    with Image.open(heatmap) as image:
        assert np.asarray(image).std() > 0


def test_a_mistake_is_one_line_and_writes_nothing(folder: Path, run: Run, tmp_path: Path) -> None:
    for arguments, mentioned in (
        (("--format", "tflite"), "onnx"),
        (("--format", "onnx", "--int8"), "--reference"),
        (("--format", "onnx", "--reference", "nowhere"), "nowhere"),
    ):
        finished = run("export", folder / "camera-3.safetensors", "-o", tmp_path / "out", *arguments)
        assert_error(finished, mentioned)
        assert len(finished.err.splitlines()) == 1
        assert list(tmp_path.iterdir()) == []
