"""A disk that fills up in the midst of the work: one line, and nothing half-written."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from discopatch import Detector
from discopatch.errors import RunError
from discopatch.images import Transform
from discopatch.model import Architecture, Networks, Weights
from discopatch.report.content import ReportContent
from discopatch.report.page import write_report
from discopatch.training import RunOptions, train
from tests.samples import new_detector, one_camera, save_images
from tests.training.tiny import tiny_config

from .conftest import Finished, Run, assert_error
from .test_outputs import mounted

MEDIUM = Architecture(patch_size=32, hidden=(64, 64), latent=8)  # more than the space that is tried before a fit
SMALL = "size=100k"
WEIGHTS_FILE = "medium.safetensors"


@pytest.fixture(scope="module")
def material(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("material")
    save_images(folder / "normal", one_camera(30))
    weights = Weights(Networks.from_seed(MEDIUM, 0).discriminator, Transform(size=64))
    weights.save(folder / WEIGHTS_FILE)
    detector = new_detector(weights, head="statistics", patches=5)
    detector.fit(folder / "normal", workers=1).save(folder / "detector")
    return folder


@pytest.fixture
def fit(run: Run, material: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], Finished]:
    """The command, with what it takes long to find out at hand."""
    fitted = Detector.load(material / "detector", device="cpu")
    monkeypatch.setattr(Detector, "fit", lambda self, images, **options: self._accept(fitted.state_))

    def command(out: Path) -> Finished:
        return run("fit", material / "normal", "--weights", material / WEIGHTS_FILE, "--device", "cpu", "-o", out)

    return command


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*") if path.is_file())


def test_a_fit_that_cannot_be_saved_leaves_nothing(fit: Callable[[Path], Finished], tmp_path: Path) -> None:
    with mounted(tmp_path / "disk", SMALL) as disk:
        assert_error(fit(disk / "camera 3"), str(disk / "camera 3"), "No space left")
        assert files(disk) == []


def test_a_report_that_cannot_be_written_costs_no_prediction(
    run: Run, material: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write_late(path: Path, content: ReportContent) -> None:
        (path.parent / "filler").write_bytes(bytes(90_000))  # somebody else's, meanwhile
        write_report(path, content)

    monkeypatch.setattr("discopatch.report.page.write_report", write_late)
    shown = ("--csv", "--device", "cpu")
    with mounted(tmp_path / "disk", SMALL) as disk:
        (disk / "report.html").write_text("yesterday's")
        finished = run(
            "score", material / "normal", "--detector", material / "detector", "--report", disk / "report.html", *shown
        )
        assert_error(finished, str(disk / "report.html"), "No space left")
        assert len(finished.out.splitlines()) == 31
        assert files(disk) == ["filler", "report.html"]
        assert (disk / "report.html").read_text() == "yesterday's"


@pytest.mark.slow
@pytest.mark.parametrize("format", ["onnx", "openvino"])
def test_an_export_to_a_full_disk_is_one_line(run: Run, material: Path, tmp_path: Path, format: str) -> None:
    with mounted(tmp_path / "disk", SMALL) as disk:
        finished = run("export", material / "detector", "--format", format, "-o", disk / "export")
        assert_error(finished, str(disk / "export"), "No space left")
        assert list(disk.iterdir()) == []


def test_a_training_names_its_last_checkpoint_and_goes_on_from_there(material: Path, tmp_path: Path) -> None:
    def go(out: Path, *, resume: bool = False) -> None:
        options = RunOptions(accelerator="cpu", checkpoint_every=2, samples_every=100, log_every=1)
        shared: Any = {"cache": tmp_path / "cache", "resume": resume, "workers": 1, "options": options}
        train(material / "normal", out, tiny_config(steps=6), **shared)

    go(tmp_path / "whole")
    expected = Weights.load(tmp_path / "whole" / "discriminator.safetensors")
    size = sum(path.stat().st_size for path in (tmp_path / "whole" / "checkpoints").iterdir())
    with mounted(tmp_path / "disk", f"size={5 * size // 4096}k") as disk:
        with pytest.raises(RunError, match=r"step-00000000\d.*--resume"):
            go(disk / "run")
        assert not list(disk.rglob("*.partial"))
        subprocess.run(["mount", "-o", f"remount,size={10 * size}", str(disk)], check=True)
        go(disk / "run", resume=True)
        assert Weights.load(disk / "run" / "discriminator.safetensors").digest == expected.digest


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no such device")
@pytest.mark.parametrize("command", ["--version", "fit --help", pytest.param("score", marks=pytest.mark.slow)])
def test_what_is_printed_to_a_full_disk_is_one_line_and_a_status(material: Path, command: str) -> None:
    scored = [f"{material}/normal", "--detector", f"{material}/detector"] if command == "score" else []
    with Path("/dev/full").open("w") as full:
        words = [sys.executable, "-m", "discopatch", *command.split(), *scored]
        done = subprocess.run(words, stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: the output could not be written (No space left")
