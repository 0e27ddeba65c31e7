"""What a score costs: milliseconds for one image, multiplications, parameters, memory."""

import sys
import time
from collections.abc import Callable
from math import nan
from statistics import median
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from discopatch.images import Pixels
from discopatch.model import Architecture, Discriminator

if TYPE_CHECKING:
    from discopatch.bench.baselines import Baseline, FeatureDict
    from discopatch.bench.methods import BenchEncoder

WARM_UP = 2
MIN_REPEATS, MAX_REPEATS = 3, 50


class LatencyTimer:
    """Times methods on one image (1, size, size, 3) that is decoded already, as in the paper's table.

    An extraction is timed once for all methods that need the same kinds of features.
    """

    def __init__(self, image: Pixels) -> None:
        self.image = image
        self._extractions: dict[tuple[str, tuple[str, ...]], tuple[float, FeatureDict]] = {}

    def milliseconds(self, encoder: "BenchEncoder", method: "Baseline") -> float:
        """The median time to extract the features and to score them."""
        key = (encoder.name, method.needs)
        if key not in self._extractions:
            duration = median_milliseconds(lambda: encoder.extract(self.image, method.needs), seconds=1.0)
            self._extractions[key] = duration, encoder.extract(self.image, method.needs)
        duration, features = self._extractions[key]
        return round(duration + median_milliseconds(lambda: method.score(features), seconds=0.1), 3)


def median_milliseconds(call: Callable[[], object], *, seconds: float) -> float:
    """The median duration of as many calls as fit into `seconds`, a GPU's work included."""
    for _ in range(WARM_UP):
        call()
    durations: list[float] = []
    while len(durations) < MIN_REPEATS or (len(durations) < MAX_REPEATS and sum(durations) < 1000 * seconds):
        start = time.perf_counter()
        call()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        durations.append(1000 * (time.perf_counter() - start))
    return median(durations)


def multiplications(architecture: Architecture, *, size: int, patches: int | None = None) -> int:
    """The multiplications of all convolutions for one image: one dense pass over it, or `patches` patches."""
    side = size if patches is None else architecture.patch_size
    counted = []

    def count(layer: nn.Module, inputs: object, output: Tensor) -> None:
        assert isinstance(layer, nn.Conv2d)
        counted.append(layer.weight[0].numel() * output.numel())

    with torch.device("meta"):
        network = Discriminator(architecture).eval()
        for layer in network.modules():
            if isinstance(layer, nn.Conv2d):
                layer.register_forward_hook(count)
        network(torch.empty(1, 3, side, side), 1)
    return sum(counted) * (1 if patches is None else patches)


def peak_mib() -> float:
    """The most resident memory that this process has ever held, in MiB; not a number on Windows, which counts none."""
    if sys.platform == "win32":
        return nan
    import resource  # only where there is one

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (2**20 if sys.platform == "darwin" else 2**10)  # macOS counts in bytes, Linux in KiB
