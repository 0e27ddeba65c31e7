"""Networks from outside on the command line: `--weights` names them, and says where they are now."""

import shutil
from pathlib import Path

import pytest

from discopatch import fitting
from tests.cli.conftest import Run, assert_error
from tests.encoders.outside_samples import SmallNetwork
from tests.samples import one_camera, save_images, tiny_weights

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")


def test_a_detector_is_fitted_and_used_where_its_network_is_found(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fitting, "N_PROBED", 2)
    tiny_weights().save(tmp_path / "tiny.safetensors")
    camera, images = tmp_path / "camera", tmp_path / "images"
    paths = save_images(images, one_camera(30))
    for folder in ("here", "there"):
        (tmp_path / folder).mkdir()
        SmallNetwork().save(tmp_path / folder / "small.onnx")
    network = f"onnx={tmp_path / 'here' / 'small.onnx'}:layer1,layer2,pooled"
    own = ("--weights", tmp_path / "tiny.safetensors", "--weights", network)
    assert run("fit", images, *own, "-o", camera, "--device", "cpu").status == 0
    shutil.rmtree(tmp_path / "here")
    assert_error(run("score", images, "--detector", camera), "--weights onnx=FILE")
    there = ("--weights", f"onnx={tmp_path / 'there' / 'small.onnx'}")
    report = tmp_path / "report.html"
    scored = run("score", images, "--detector", camera, *there, "--csv", "--report", report, "--close-ups", 1)
    assert scored.status == 0
    assert scored.out.count("\n") == 31
    assert str(tmp_path / "there") in report.read_text()
    explained = run("explain", paths[0], "--detector", camera, *there, "-o", tmp_path / "map.png")
    assert explained.status == 0
    assert (tmp_path / "map.png").is_file()


@pytest.mark.parametrize(
    "options", [("--detector", "camera", "--weights", "paper-v1"), ("--weights", "paper-v1") * 2, ()]
)
def test_score_takes_a_detector_or_weights(options: tuple[str, ...], run: Run, tmp_path: Path) -> None:
    assert run("score", tmp_path, *options).status == 2


def test_an_unknown_network_is_an_error_with_those_that_there_are(run: Run, tmp_path: Path) -> None:
    save_images(tmp_path / "images", one_camera(30))
    found = run("fit", tmp_path / "images", "--weights", "nothing=folder", "-o", tmp_path / "camera")
    assert_error(found, "dinov2", "onnx=FILE")
