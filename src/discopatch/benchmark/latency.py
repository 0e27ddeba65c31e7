"""How long one image takes, from pixels to score, by itself."""

import time
from collections.abc import Callable
from statistics import median

import torch

from discopatch.baselines.method import Method
from discopatch.benchmark.eyes import Eye
from discopatch.images import Pixels

WARM_UP = 2
FEWEST, MOST = 3, 50
SECONDS = 2.0


def milliseconds(eye: Eye, method: Method, picture: Pixels) -> float:
    """Of one picture (1, size, size, 3) that is decoded already, as in the paper's table."""
    return timed(lambda: method.score(eye.look(picture, method.needs)))


def timed(once: Callable[[], object]) -> float:
    """Median milliseconds of as many repeats as two seconds hold; a GPU is waited for."""
    for _ in range(WARM_UP):
        once()
    found: list[float] = []
    while len(found) < FEWEST or (len(found) < MOST and sum(found) < 1000 * SECONDS):
        start = time.perf_counter()
        once()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        found.append(1000 * (time.perf_counter() - start))
    return round(median(found), 3)
