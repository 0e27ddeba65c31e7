"""Processes that prepare images while others are scored."""

import os
from collections.abc import Callable, Iterable, Iterator
from typing import Self, TypeVar

from discopatch.corruptions.imagenet_c.frost import TEXTURES, frost_texture
from discopatch.images.processes import ProcessPool
from discopatch.utils import prefetch

T = TypeVar("T")

PART = 32  # images a task
AHEAD = 3  # tasks a process, finished or under way, before the first is taken
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")


class CorruptionPool:
    """Worker processes that load, corrupt and preprocess images; started once for a whole run.

    Each prepares its frost textures at its start, none inherits the state of CUDA, and each has one thread, as there
    are as many of them as cores.
    """

    def __init__(self, workers: int, *, frost: bool = True) -> None:
        self.workers, self.frost = workers, frost

    def __enter__(self) -> Self:
        import torch

        torch.set_num_threads(torch.get_num_threads())  # torch reads the environment late: it must not find ours
        self._environment = {name: os.environ.get(name) for name in ONE_THREAD}
        os.environ.update(ONE_THREAD)  # read by the libraries of processes yet to start
        self._executor = ProcessPool(self.workers, prepare_frost if self.frost else int)
        for _ in range(self.workers):
            self._executor.submit(int)
        return self

    def __exit__(self, *error: object) -> None:
        self._executor.shutdown(cancel_futures=True)
        for name, value in self._environment.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value

    def stream(self, calls: Iterable[Callable[[], T]]) -> Iterator[T]:
        """The results in the order of the calls, computed at most a few tasks ahead."""
        return (future.result() for future in prefetch(map(self._executor.submit, calls), AHEAD * self.workers))


def prepare_frost() -> None:
    for number in range(TEXTURES):
        frost_texture(number)
