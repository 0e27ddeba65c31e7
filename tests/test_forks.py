"""A process that has scored can be forked, and its children score."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

FORK = """
import os, signal, sys, time
import numpy as np, torch
from tests.samples import new_detector, one_camera

torch.set_num_threads(2)
images = one_camera(30)
detector = new_detector()
expected = detector.extract_features(images).statistics
for _ in range(2):
    pid = os.fork()
    if pid == 0:
        os._exit(0 if np.array_equal(detector.extract_features(images).statistics, expected) else 1)
    deadline = time.monotonic() + 60
    while not (ending := os.waitpid(pid, os.WNOHANG))[0]:
        time.sleep(0.02)
        if time.monotonic() > deadline:
            os.kill(pid, signal.SIGKILL)
            sys.exit("the child hangs")
    assert ending[1] == 0
    assert np.array_equal(detector.extract_features(images).statistics, expected), "the parent goes on"
print("scored")
"""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_a_forked_child_scores_as_its_parent_does() -> None:
    environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    root = Path(__file__).parents[1]
    done = subprocess.run([sys.executable, "-c", FORK], cwd=root, env=environment, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("scored\n", "")
