"""Real processes, really killed."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from discopatch.model import read_safetensors
from discopatch.training.checkpoint import RunFolder
from tests.training.shards import write_shards

ROOT = Path(__file__).parents[2]


def start(*arguments: object, module: str = "tests.training.run_tiny") -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-m", module, *map(str, arguments)],
        cwd=ROOT,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


def complete(*arguments: object) -> None:
    process = start(*arguments)
    assert process.wait(timeout=120) == 0, process.stderr and process.stderr.read()
    process.communicate()


def wait_for_checkpoint_beyond(run: RunFolder, step: int, process: "subprocess.Popen[str]") -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and process.poll() is None:
        newest = run.checkpoints.newest_first()
        if newest and int(newest[0].stem.removeprefix("step-")) > step:
            return
        time.sleep(0.002)
    raise AssertionError(f"no checkpoint beyond step {step}: {process.communicate()}")


@pytest.mark.slow
@pytest.mark.parametrize("way", [(), ("--stream",)])
def test_a_run_killed_again_and_again_equals_the_uninterrupted_one_to_the_bit(photos, cache, tmp_path, way) -> None:
    steps = ("--steps", 120, "--checkpoint-every", 3, *way)
    if way:
        photos = write_shards(tmp_path / "shards", (7, 3, 9, 5), broken=(2, 20))
    complete(photos, cache, tmp_path / "whole", *steps)
    killed = RunFolder(tmp_path / "killed")
    for attempt, step in enumerate((10, 50, 90)):
        process = start(photos, cache, killed.path, *steps, *(["--resume"] if attempt else []))
        wait_for_checkpoint_beyond(killed, step, process)
        process.kill()
        process.communicate()
        assert process.returncode == -signal.SIGKILL
    complete(photos, cache, killed.path, *steps, "--resume")

    whole = RunFolder(tmp_path / "whole")
    assert killed.losses.read_text() == whole.losses.read_text()
    for kind in ("checkpoints/step-000000120.safetensors", "discriminator.safetensors"):
        expected, found = (
            read_safetensors(run.path / kind, kind="checkpoint" if "step" in kind else "discriminator")[1]
            for run in (whole, killed)
        )
        assert expected.keys() == found.keys()
        assert [name for name in expected if not expected[name].equal(found[name])] == []


@pytest.mark.slow
def test_ctrl_c_saves_and_prints_how_to_continue(photos, cache, tmp_path) -> None:
    run = RunFolder(tmp_path / "run")
    small = ("--preset", "tiny", "--images", 2, "--patches", 2, "--steps", 100_000, "--checkpoint-every", 2)
    command = (photos, "--out", run.path, "--cache", cache, *small)
    process = subprocess.Popen(
        [Path(sys.executable).with_name("discopatch"), "train", *map(str, command)],
        stderr=subprocess.PIPE,
        text=True,
    )
    wait_for_checkpoint_beyond(run, 1, process)
    process.send_signal(signal.SIGINT)
    _, printed = process.communicate(timeout=60)
    assert process.returncode == 130
    assert f"discopatch train {photos}" in printed
    assert printed.rstrip().endswith("--resume")
    step = int(run.checkpoints.newest_first()[0].stem.removeprefix("step-"))
    assert f"interrupted after step {step:,}:" in printed
    assert len(run.losses.read_text().splitlines()) == step + 1
