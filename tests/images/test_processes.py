"""Processes decode what threads decode, and are gone when nobody needs them."""

import itertools
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from PIL import Image

from discopatch import images
from discopatch.images import Picture, Processes, Refusal, Transform

from .samples import as_bytes, encoded, endless, noise, photo

TWO = Processes(2)


def test_they_give_what_threads_give_refusals_and_all(tmp_path: Path) -> None:
    for number in range(20):
        side = 40 + 37 * (number % 5)
        (tmp_path / f"{number:02}.png").write_bytes(encoded(noise(side, side, seed=number), "PNG"))
    (tmp_path / "07.png").write_bytes(b"broken")
    source = [str(tmp_path), "not there.png", photo(), Image.fromarray(photo()), encoded(photo(), "JPEG")]
    found = as_bytes(images.open(source, transform=Transform(64), workers=TWO))
    assert found == as_bytes(images.open(source, transform=Transform(64), workers=2))
    assert sum(isinstance(item, Refusal) for item in found) == 2
    assert len(found) == 24


def test_an_endless_source_is_read_only_a_little_ahead_and_closing_ends_them() -> None:
    consumed: list[int] = []
    stream = images.open(endless(consumed), workers=TWO)
    for taken in range(1, 60):
        assert isinstance(next(stream), Picture)
        assert len(consumed) <= taken + 8 * 2 * TWO.count
    assert len(multiprocessing.active_children()) == 2
    stream.close()
    assert multiprocessing.active_children() == []


def test_one_that_is_killed_is_an_error_with_the_remedies() -> None:
    stream = images.open(endless([]), workers=TWO)
    next(stream)
    os.kill(next(iter(multiprocessing.active_children())).pid or 0, signal.SIGKILL)
    with pytest.raises(RuntimeError, match=r"memory ran out .* use fewer.* or use threads"):
        list(itertools.islice(stream, 500))


def test_none_is_no_number_of_them() -> None:
    with pytest.raises(ValueError, match="at least one worker"):
        images.open([photo()], workers=Processes(0))


GUARDED = """
import multiprocessing, itertools
import numpy as np
from discopatch import images
if __name__ == "__main__":
    stream = images.open(itertools.repeat(np.zeros((64, 64, 3), np.uint8)), workers=images.Processes(2))
    next(stream)
    print(*(child.pid for child in multiprocessing.active_children()), flush=True)
    for _ in stream:
        pass
"""


def started(folder: Path, code: str) -> subprocess.Popen[str]:
    script = folder / "script.py"
    script.write_text(code, encoding="utf-8")
    return subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def is_alive(process: int) -> bool:
    status = Path(f"/proc/{process}/stat")
    return status.exists() and status.read_text().rpartition(")")[2].split()[0] != "Z"


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="asks Linux which processes are alive")
def test_they_end_when_their_parent_is_killed(tmp_path: Path) -> None:
    with started(tmp_path, GUARDED) as parent:
        assert parent.stdout is not None
        children = [int(number) for number in parent.stdout.readline().split()]
        assert len(children) == 2
        parent.kill()
    deadline = time.monotonic() + 30
    while any(map(is_alive, children)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(map(is_alive, children))


def test_a_script_that_is_not_ready_for_them_is_told_how_to_be(tmp_path: Path) -> None:
    with started(tmp_path, GUARDED.replace('if __name__ == "__main__":', "if True:")) as script:
        _, words = script.communicate(timeout=120)
    assert script.returncode
    assert 'put its code below `if __name__ == "__main__":`' in words
