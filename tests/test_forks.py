"""A process that has scored can be forked, and its children score; where that is not possible, a warning says so."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from discopatch import forks
from tests.samples import new_detector, one_camera, save_images

ROOT = Path(__file__).parents[1]
FORK = """
import os, signal, subprocess, sys, time
import numpy as np, torch
from discopatch import forks
from tests.samples import new_detector, one_camera

torch.set_num_threads(2)
ended = []
pause = forks.pause
forks.pause = lambda library: ended.append(library) or pause(library)
images = one_camera(30)
detector = new_detector()
expected = detector.extract_features(images).statistics
subprocess.run(["true"], check=True)
assert not ended, "a subprocess is no fork"
for _ in range(3):
    pid = os.fork()
    if pid == 0:
        same = np.array_equal(detector.extract_features(images).statistics, expected)
        os._exit(0 if same and torch.get_num_threads() == 2 else 1)
    deadline = time.monotonic() + 60
    while not (ending := os.waitpid(pid, os.WNOHANG))[0] and time.monotonic() < deadline:
        time.sleep(0.02)
    if not ending[0]:
        os.kill(pid, signal.SIGKILL)
        sys.exit("the child hangs")
    assert ending[1] == 0
    assert np.array_equal(detector.extract_features(images).statistics, expected), "the parent goes on"
print("scored")
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_a_forked_child_scores_as_its_parent_does() -> None:
    environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    done = subprocess.run([sys.executable, "-c", FORK], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("scored\n", "")


def test_threads_that_cannot_be_ended_are_warned_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.get_num_threads", lambda: 2)
    monkeypatch.setattr(forks, "gnu_openmp", lambda: (object(),))  # older than the function that ends threads
    with pytest.warns(RuntimeWarning, match="spawn"):
        forks.end_threads()
    monkeypatch.setattr("torch.get_num_threads", lambda: 1)
    forks.end_threads()


@pytest.mark.slow
def test_the_recipe_for_processes_gives_the_same_scores(tmp_path: Path) -> None:
    detector = new_detector().fit(one_camera(30))
    detector.save(tmp_path / "camera-3")
    (recipe,) = re.findall(
        r"```python\n(# score_in_processes\.py\n.*?)```", (ROOT / "docs/detector.md").read_text(), re.S
    )
    paths = save_images(tmp_path / "photos", one_camera(8, seed=1))
    (tmp_path / "score_in_processes.py").write_text(recipe)
    done = subprocess.run(
        [sys.executable, "score_in_processes.py"], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    scores = dict(line.rsplit(" ", 1) for line in done.stdout.splitlines())
    expected = detector.score([str(path) for path in sorted(paths)])
    assert [float(scores[f"photos/{path.name}"]) for path in sorted(paths)] == pytest.approx(expected.tolist())
