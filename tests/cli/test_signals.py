"""Ctrl-C and a termination: one line, the status that shells expect, no temporary files."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from discopatch.utils import workplace

from .conftest import Run

SIGNALS = {signal.SIGINT: 130, signal.SIGTERM: 143}


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_is_one_line_and_a_status(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, number: signal.Signals
) -> None:
    def load(*_: object, **__: object) -> None:
        with workplace(tmp_path) as place:
            (place / "new").write_text("half of")
            os.kill(os.getpid(), number)
            time.sleep(60)

    handlers = [signal.getsignal(each) for each in SIGNALS]
    monkeypatch.setattr("discopatch.load", load)
    finished = run("explain", "a.png", "--detector", "d", "-o", tmp_path / "h.png")
    assert finished.status == SIGNALS[number]
    (line,) = finished.err.splitlines()
    assert line.startswith("stopped: ")
    assert list(tmp_path.iterdir()) == []
    assert [signal.getsignal(each) for each in SIGNALS] == handlers


def test_ctrl_c_while_modules_are_imported_is_a_status_and_no_traceback(tmp_path: Path) -> None:
    (tmp_path / "typer.py").write_text("import time\nprint('importing', flush=True)\ntime.sleep(600)\n")
    path = os.pathsep.join([str(tmp_path), *sys.path])
    command = [sys.executable, "-m", "discopatch", "--help"]
    environment, pipe = {**os.environ, "PYTHONPATH": path}, subprocess.PIPE
    with subprocess.Popen(command, env=environment, text=True, stdout=pipe, stderr=pipe) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "importing\n"
        process.send_signal(signal.SIGINT)
        assert process.communicate() == ("", "")
    assert process.returncode == 130


@pytest.mark.slow
def test_an_export_that_is_stopped_leaves_nothing(tmp_path: Path, detector_file: Path) -> None:
    command = [sys.executable, "-m", "discopatch", "export", str(detector_file), "--format", "onnx"]
    process = subprocess.Popen([*command, "-o", str(tmp_path / "export")], stderr=subprocess.PIPE, text=True)
    while not list(tmp_path.glob(".discopatch-*/new")) and process.poll() is None:
        time.sleep(0.001)
    process.terminate()
    _, printed = process.communicate(timeout=120)
    assert process.returncode == 143
    assert printed.splitlines()[-1].startswith("stopped: ")
    assert list(tmp_path.iterdir()) == []
