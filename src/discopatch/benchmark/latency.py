"""How long one image takes, from pixels to score, by itself."""

import time
from collections.abc import Callable
from statistics import median

import torch

from discopatch.baselines.method import Features, Method
from discopatch.benchmark.eyes import Eye
from discopatch.images import Pixels

WARM_UP = 2
FEWEST, MOST = 3, 50


class Stopwatch:
    """Of one picture (1, size, size, 3) that is decoded already, as in the paper's table.

    A look is timed once for all methods that need the same of it.
    """

    def __init__(self, picture: Pixels) -> None:
        self.picture = picture
        self._looks: dict[tuple[str, tuple[str, ...]], tuple[float, Features]] = {}

    def milliseconds(self, eye: Eye, method: Method) -> float:
        """The look and the score."""
        key = (eye.name, method.needs)
        if key not in self._looks:
            looked = timed(lambda: eye.look(self.picture, method.needs), seconds=1.0)
            self._looks[key] = looked, eye.look(self.picture, method.needs)
        looked, features = self._looks[key]
        return round(looked + timed(lambda: method.score(features), seconds=0.1), 3)


def timed(once: Callable[[], object], *, seconds: float) -> float:
    """Median milliseconds of as many repeats as so many seconds hold; a GPU is waited for."""
    for _ in range(WARM_UP):
        once()
    found: list[float] = []
    while len(found) < FEWEST or (len(found) < MOST and sum(found) < 1000 * seconds):
        start = time.perf_counter()
        once()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        found.append(1000 * (time.perf_counter() - start))
    return median(found)
