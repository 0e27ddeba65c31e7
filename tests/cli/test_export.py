"""`discopatch export`, and the exported folder as a detector of other commands."""

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
