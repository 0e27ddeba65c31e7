"""What cannot end well is told before the long work: unwritable outputs, missing packages, missing devices.

The images of these commands do not exist, so that an error about anything else came first.
"""

import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from .conftest import Run, assert_error

COMMANDS = {
    "audit": ("audit", "nowhere", "--out", "OUT"),
    "audit --exclude-list": ("audit", "nowhere", "--exclude-list", "OUT"),
    "fit": ("fit", "nowhere", "-o", "OUT"),
    "score": ("score", "nowhere", "--detector", "DETECTOR", "--report", "OUT"),
    "score --boxes": ("score", "nowhere", "--detector", "DETECTOR", "--boxes", "OUT"),
    "score --out": ("score", "nowhere", "--detector", "DETECTOR", "--out", "OUT"),
    "explain": ("explain", "nowhere.png", "--detector", "DETECTOR", "-o", "OUT.png"),
    "export": ("export", "DETECTOR", "--reference", "nowhere", "-o", "OUT"),
    "train": ("train", "nowhere", "--preset", "tiny", "--out", "OUT"),
    "train --tensorboard": ("train", "nowhere", "--preset", "tiny", "--tensorboard", "--out", "OUT"),
    "bench": ("bench", "--suite", "folder", "--normal", "nowhere", "--no-figures", "-o", "OUT"),
    "demo": ("demo", "--out", "OUT"),
}


@contextmanager
def mounted(folder: Path, options: str) -> Iterator[Path]:
    """A file system of its own, where mounting is allowed; otherwise the test is skipped."""
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)]
    if shutil.which("mount") is None or subprocess.run(command, capture_output=True).returncode:
        pytest.skip("mounting is not allowed")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def arguments(command: str, out: Path, detector: Path) -> list[str]:
    names = {"OUT": str(out), "OUT.png": f"{out}.png", "DETECTOR": str(detector)}
    return [names.get(each, each) for each in COMMANDS[command]]


@pytest.mark.parametrize("command", COMMANDS)
def test_an_unwritable_output_is_an_error_before_the_work(
    command: str, tmp_path: Path, detector_file: Path, run: Run
) -> None:
    (tmp_path / "file").write_text("precious")
    finished = run(*arguments(command, tmp_path / "file" / "out", detector_file))
    assert_error(finished, str(tmp_path / "file"), "choose another place")
    assert len(finished.err.splitlines()) == 1
    if command in ("score --out", "train", "bench"):
        assert_error(run(*arguments(command, tmp_path / "file", detector_file)), "file", "choose another place")
    assert (tmp_path / "file").read_text() == "precious"


@pytest.mark.parametrize("options", ["size=4k", "ro"])
def test_a_full_or_read_only_disk_is_an_error_before_the_work(
    options: str, tmp_path: Path, detector_file: Path, run: Run
) -> None:
    with mounted(tmp_path / "disk", options) as disk:
        for command in ("fit", "score --out"):
            assert_error(run(*arguments(command, disk / "out", detector_file)), str(disk), "choose another place")


def test_folders_and_devices_are_not_replaced_by_a_file(tmp_path: Path, detector_file: Path, run: Run) -> None:
    for out in (tmp_path, Path("/dev/null")):
        assert_error(run("score", "nowhere", "--detector", detector_file, "--report", out), str(out))
    assert Path("/dev/null").is_char_device()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize("command", ["fit", "score", "bench", "train"])
def test_a_missing_gpu_is_told_before_the_work(command: str, tmp_path: Path, detector_file: Path, run: Run) -> None:
    option = "--accelerator" if command == "train" else "--device"
    finished = run(*arguments(command, tmp_path / "out", detector_file), option, "cuda")
    assert_error(finished, "cuda", "cpu")
    assert len(finished.err.splitlines()) == 1


@pytest.mark.parametrize(
    ("command", "package"),
    [
        ("score --out", "pyarrow"),
        ("export", "onnx"),
        ("bench", "pandas"),
        ("demo", "skimage"),
        ("train --tensorboard", "tensorboard"),
    ],
)
def test_a_missing_package_is_told_before_the_work(
    command: str, package: str, tmp_path: Path, detector_file: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    finished = run(*arguments(command, tmp_path / "out", detector_file))
    assert_error(finished, f"{package} is not installed", "pip install")
    assert not (tmp_path / "out").exists()
