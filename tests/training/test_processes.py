"""Runs in processes that are killed, and in two processes that train together."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from discopatch.training.folder import RunFolder
from tests.training.tiny import first_step, read_losses, tiny_config

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "tests" / "training" / "run_tiny.py"
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}


def start(*command: object) -> "subprocess.Popen[str]":
    arguments = [sys.executable, *map(str, command)]
    return subprocess.Popen(arguments, cwd=ROOT, env=ENVIRONMENT, stderr=subprocess.PIPE, text=True)


def complete(*command: object) -> None:
    process = start(*command)
    _, printed = process.communicate(timeout=240)
    assert process.returncode == 0, printed


def wait_for_checkpoint_beyond(run: RunFolder, step: int, process: "subprocess.Popen[str]") -> None:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and process.poll() is None:
        newest = run.checkpoints()
        if newest and int(newest[0].stem.removeprefix("step-")) > step:
            return
        time.sleep(0.002)
    process.kill()
    raise AssertionError(f"no checkpoint beyond step {step}: {process.communicate()}")


def assert_same_run(one: RunFolder, other: RunFolder) -> None:
    assert one.losses.read_text() == other.losses.read_text()
    for first, second in ((one.checkpoints()[0], other.checkpoints()[0]), (one.weights, other.weights)):
        expected, found = load_file(first), load_file(second)
        assert expected.keys() == found.keys()
        assert [name for name in expected if not expected[name].equal(found[name])] == []


def test_a_run_killed_twice_equals_the_uninterrupted_one_to_the_bit(photos, cache, tmp_path) -> None:
    run, options = (SCRIPT, photos, cache), ("--steps", 60, "--checkpoint-every", 3)
    whole, killed = RunFolder(tmp_path / "whole"), RunFolder(tmp_path / "killed")
    complete(*run, whole.path, *options)
    for attempt, step in enumerate((10, 40)):
        process = start(*run, killed.path, *options, *(["--resume"] if attempt else []))
        wait_for_checkpoint_beyond(killed, step, process)
        process.kill()
        process.communicate()
        assert process.returncode == -signal.SIGKILL
    complete(*run, killed.path, *options, "--resume")
    assert_same_run(whole, killed)


def test_ctrl_c_saves_and_prints_how_to_continue(photos, cache, tmp_path) -> None:
    run = RunFolder(tmp_path / "run")
    sizes = (f"--set={each}" for each in ("images=2", "patches=2", "checkpoint_every=2"))
    command = ("train", photos, "--out", run.path, "--cache", cache, "--preset", "tiny", "--steps", 100_000, *sizes)
    process = start("-m", "discopatch", *command)
    wait_for_checkpoint_beyond(run, 1, process)
    process.send_signal(signal.SIGINT)
    _, printed = process.communicate(timeout=60)
    assert process.returncode == 130, printed
    assert printed.rstrip().endswith("--resume")
    step = int(run.checkpoints()[0].stem.removeprefix("step-"))
    assert f"interrupted after step {step:,}:" in printed
    assert len(run.losses.read_text().splitlines()) == step + 1


def gradients_of_rank(rank: int, photos: Path, cache: Path) -> dict[str, torch.Tensor]:
    """Gradients of that rank's first batch, by the names of the first moments in a checkpoint."""
    config = tiny_config(weight_degraded=1.0, weight_classified=0.5)
    return {
        f"{name}/optimiser/{key}/exp_avg": parameter.grad
        for name, network in first_step(photos, cache, config, rank)[1].items()
        for key, parameter in network.named_parameters()
        if parameter.grad is not None
    }


def test_two_ranks_have_the_mean_gradient_and_resume_to_the_bit(photos, cache, tmp_path) -> None:
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", SCRIPT, photos, cache)
    options = ("--ranks", 2, "--checkpoint-every", 1, "--steps")
    whole, parts = RunFolder(tmp_path / "whole"), RunFolder(tmp_path / "parts")
    complete(*torchrun, whole.path, *options, 6)
    complete(*torchrun, parts.path, *options, 1)
    first = load_file(parts.checkpoints()[0])
    complete(*torchrun, parts.path, *options, 6, "--resume")
    assert read_losses(whole.losses)["step"].tolist() == list(range(1, 7))
    assert_same_run(whole, parts)

    one, other = (gradients_of_rank(rank, photos, cache) for rank in (0, 1))
    assert not torch.equal(one["vae/optimiser/to_mean.weight/exp_avg"], other["vae/optimiser/to_mean.weight/exp_avg"])
    for name, gradient in one.items():  # after one step the first moment of Adam is a tenth of the gradient
        torch.testing.assert_close(10 * first[name], (gradient + other[name]) / 2, rtol=1e-4, atol=1e-6)
