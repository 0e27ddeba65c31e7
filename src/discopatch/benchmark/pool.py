"""Processes that prepare pictures while others are scored."""

import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import cache, partial
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Self, TypeVar

import numpy as np

from discopatch.benchmark.storage import Storage
from discopatch.images import Pixels
from discopatch.images.corrupt import corrupt
from discopatch.images.corrupt.frost import TEXTURES, frost_texture
from discopatch.images.workers import leave_with_parent
from discopatch.streams import behind

T = TypeVar("T")

PART = 32  # pictures a task
AHEAD = 3  # tasks a process, finished or under way, before someone takes the first
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")


class Pool:
    """Started once for a whole run: each process grows its frost at once, and none inherits the state of CUDA.

    The processes have one thread each, as there are as many of them as cores.
    """

    def __init__(self, workers: int, *, frost: bool = True) -> None:
        self.workers, self.frost = workers, frost

    def __enter__(self) -> Self:
        import torch

        torch.set_num_threads(torch.get_num_threads())  # torch looks at the environment late: it must not find ours
        self._folder = TemporaryDirectory()
        self._before = {name: os.environ.get(name) for name in ONE_THREAD}
        os.environ.update(ONE_THREAD)  # read by the libraries of processes yet to start
        self._executor = ProcessPoolExecutor(
            self.workers, mp_context=get_context("spawn"), initializer=begin, initargs=(self.frost,)
        )
        for _ in range(self.workers):
            self._executor.submit(int)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._executor.shutdown(cancel_futures=True)
        for name, value in self._before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
        self._folder.cleanup()

    def stream(self, calls: Iterable[Callable[[], T]]) -> Iterator[T]:
        """The results in the order of the calls, never more than a few ahead."""
        return (future.result() for future in behind(map(self._executor.submit, calls), AHEAD * self.workers))

    def corrupted(
        self, pixels: Pixels, cells: Iterable[tuple[str, int]], storage: Storage
    ) -> Iterator[tuple[str, int, Pixels]]:
        """Every corruption and severity of the pictures (N, H, W, 3), then stored, part by part."""
        path = Path(self._folder.name) / "pictures.npy"
        np.save(path, pixels)
        parts = [
            (name, severity, start, min(start + PART, len(pixels)))
            for name, severity in cells
            for start in range(0, len(pixels), PART)
        ]
        version = path.stat().st_mtime_ns
        found = self.stream(partial(corrupt_part, path, version, storage, *part) for part in parts)
        for (name, severity, _, _), part in zip(parts, found, strict=True):
            yield name, severity, part


def begin(frost: bool) -> None:
    """What every process does once."""
    leave_with_parent()
    for number in range(TEXTURES if frost else 0):
        frost_texture(number)


def corrupt_part(path: Path, version: int, storage: Storage, name: str, severity: int, start: int, stop: int) -> Pixels:
    """Pictures start to stop of the file; each has its number for a seed."""
    pixels = pictures_at(path, version)
    found = [corrupt(pixels[place], name, severity, seed=place) for place in range(start, stop)]
    return storage.store_all(np.stack(found))


@cache
def pictures_at(path: Path, version: int) -> Pixels:
    """Mapped into memory, so that processes share them."""
    return np.load(path, mmap_mode="r")  # type: ignore[no-any-return]
