"""Cost of a score: milliseconds per image, and multiplications of a discriminator."""

import time
from collections.abc import Callable
from statistics import median

import torch
from torch import Tensor, nn

from discopatch.bench.baselines import Baseline
from discopatch.bench.networks.base import Backbone, FeatureDict
from discopatch.images import Pixels
from discopatch.model import Architecture, Discriminator

WARM_UP = 2
MIN_REPEATS, MAX_REPEATS = 3, 50


class LatencyTimer:
    """Times methods on one decoded image (1, size, size, 3), as in the paper's table.

    An extraction is timed once for all methods that need the same kinds of features.
    """

    def __init__(self, image: Pixels) -> None:
        self.image = image
        self._extractions: dict[tuple[str, tuple[str, ...]], tuple[float, FeatureDict]] = {}

    def milliseconds(self, network: Backbone, method: Baseline) -> float:
        """The median time to extract the features and to score them."""
        key = (network.name, method.needs)
        if key not in self._extractions:
            duration = median_milliseconds(lambda: network.extract(self.image, method.needs), seconds=1.0)
            self._extractions[key] = duration, network.extract(self.image, method.needs)
        duration, features = self._extractions[key]
        return round(duration + median_milliseconds(lambda: method.score(features), seconds=0.1), 3)


def median_milliseconds(call: Callable[[], object], *, seconds: float) -> float:
    """The median duration of as many calls as fit into `seconds`, with the work of a GPU."""
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
