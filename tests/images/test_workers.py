"""The stream is lazy, ordered, bounded, and the same for any number of threads or processes."""

import gc
import io
import itertools
import multiprocessing
import os
import signal
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from discopatch.errors import WorkerError
from discopatch.images import NamedImage, Pixels, Processes, Refusal, Transform, Workers, read_images
from discopatch.images.workers import ProcessPool

from .samples import as_bytes, encoded, endless, noise, photo

TWO = Processes(2)

GUARDED = """
import multiprocessing, itertools
import numpy as np
from discopatch.images import Processes, read_images
if __name__ == "__main__":
    stream = read_images(itertools.repeat(np.zeros((64, 64, 3), np.uint8)), workers=Processes(2))
    next(stream)
    print(*(child.pid for child in multiprocessing.active_children()), flush=True)
    for _ in stream:
        pass
"""


@pytest.mark.parametrize("workers", [3, TWO])
def test_order_pixels_and_refusals_do_not_depend_on_workers(tmp_path: Path, workers: Workers) -> None:
    for number in range(20):
        side = 40 + 37 * (number % 5)  # unequal work, so that workers finish out of order
        (tmp_path / f"{number:02}.png").write_bytes(encoded(noise(side, side, seed=number), "PNG"))
    (tmp_path / "07.png").write_bytes(b"broken")
    source = [str(tmp_path), "not there.png", photo(), Image.fromarray(photo()), encoded(photo(), "JPEG")]
    one = as_bytes(read_images(source, workers=1, transform=Transform(64)))
    assert as_bytes(read_images(source, workers=workers, transform=Transform(64))) == one
    assert sum(isinstance(item, Refusal) for item in one) == 2
    assert len(one) == 24


@pytest.mark.parametrize(("workers", "ahead"), [(1, 2), (4, 8), (TWO, 8 * 2 * 2)])
def test_an_endless_generator_is_read_only_a_few_images_ahead(workers: Workers, ahead: int) -> None:
    consumed: list[int] = []
    stream = read_images(endless(consumed), workers=workers)
    assert consumed == []
    for taken in range(1, 100):
        assert isinstance(next(stream), NamedImage)
        assert len(consumed) <= taken + ahead
    assert len(multiprocessing.active_children()) == (2 if workers == TWO else 0)
    stream.close()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("discopatch-images")]
    assert multiprocessing.active_children() == []


def test_one_lazily_opened_image_may_come_many_times() -> None:
    image = Image.open(io.BytesIO(encoded(photo(900, 900), "PNG")))
    pixels = [item.pixels for item in read_images([image] * 8, workers=8) if isinstance(item, NamedImage)]
    assert len(pixels) == 8
    assert all(np.array_equal(one, pixels[0]) for one in pixels)


@pytest.mark.parametrize("workers", [1, 4, TWO])
def test_when_a_source_fails_the_images_before_come_first(workers: Workers) -> None:
    def failing() -> Iterator[Pixels]:
        yield from [photo()] * 3
        raise RuntimeError("camera unplugged")

    stream = read_images(failing(), workers=workers)
    assert len(list(itertools.islice(stream, 3))) == 3
    with pytest.raises(RuntimeError, match="camera unplugged"):
        next(stream)


def test_a_process_that_is_killed_is_an_error() -> None:
    stream = read_images(endless([]), workers=TWO)
    next(stream)
    os.kill(next(iter(multiprocessing.active_children())).pid or 0, signal.SIGKILL)
    with pytest.raises(WorkerError):
        list(itertools.islice(stream, 500))


def started(folder: Path, code: str) -> subprocess.Popen[str]:
    script = folder / "script.py"
    script.write_text(code, encoding="utf-8")
    return subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def is_alive(process: int) -> bool:
    status = Path(f"/proc/{process}/stat")
    return status.exists() and status.read_text().rpartition(")")[2].split()[0] != "Z"


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self").exists(), reason="asks Linux which processes are alive")
def test_processes_end_when_their_parent_is_killed(tmp_path: Path) -> None:
    with started(tmp_path, GUARDED) as parent:
        assert parent.stdout is not None
        children = [int(number) for number in parent.stdout.readline().split()]
        assert len(children) == 2
        parent.kill()
    deadline = time.monotonic() + 30
    while any(map(is_alive, children)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(map(is_alive, children))


@pytest.mark.slow
def test_a_script_that_starts_processes_while_it_is_imported_is_an_error(tmp_path: Path) -> None:
    with started(tmp_path, GUARDED.replace('if __name__ == "__main__":', "if True:")) as script:
        _, errors = script.communicate(timeout=120)
    assert script.returncode
    assert "WorkerError" in errors
    assert '`if __name__ == "__main__":`' in errors


# The pool of processes.

LONG = 60  # seconds, after which an answer will never come


def half_an_answer() -> None:
    """Ends its process as if it had been killed in the midst of a long answer."""
    pipe = next(each for each in gc.get_objects() if isinstance(each, Connection))
    os.write(pipe.fileno(), struct.pack("!i", 1000) + b"the beginning")
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_process_that_ends_in_the_midst_of_an_answer_is_not_waited_for() -> None:
    with ProcessPool(1) as pool:
        for call in (half_an_answer, os.getpid):
            with pytest.raises(BrokenProcessPool):
                pool.submit(call).result(LONG)
    assert multiprocessing.active_children() == []
