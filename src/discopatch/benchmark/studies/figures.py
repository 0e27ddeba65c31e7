"""Scores become AUROC with intervals, set by set and in the mean over a group of sets."""

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from discopatch.benchmark.metrics import Estimate, draw, estimate_auroc
from discopatch.benchmark.studies.gallery import CONTROL, FAR, NEAR, TEST

Floats = NDArray[np.float64]
Scores = Mapping[str, Floats]  # by the name of the score, higher for more out-of-distribution

DIGITS = 5
THREADS = 8


@dataclass(frozen=True)
class Draws:
    """Which images each resample has: a test photo and its corrupted copies are drawn together."""

    seed: int
    resamples: int

    def of(self, name: str, images: int) -> NDArray[np.float32]:
        """(resamples, images)."""
        own = name if name in (*NEAR, *FAR, *CONTROL) else TEST
        return drawn(images, self.seed, own, self.resamples)

    def compare(self, normal: Floats, shifted: Floats, name: str) -> Estimate:
        """AUROC of the set of that name against the test photos."""
        return estimate_auroc(normal, shifted, (self.of(TEST, len(normal)), self.of(name, len(shifted))))


@lru_cache(maxsize=64)
def drawn(images: int, seed: int, name: str, resamples: int) -> NDArray[np.float32]:
    """Once for all figures: drawing takes longer than they do."""
    return draw(images, seed=seed, name=name, resamples=resamples)


def compare_sets(
    scores: Mapping[str, Scores], groups: Mapping[str, Sequence[str]], draws: Draws, threads: ThreadPoolExecutor
) -> dict[str, Any]:
    """Scores by set -> figures of each set and each group, by the name of the score; the test photos are normal."""
    normal = scores[TEST]

    def judge(name: str) -> dict[str, Estimate]:
        return {score: draws.compare(normal[score], each, name) for score, each in scores[name].items()}

    names = [name for group in groups.values() for name in group]
    found = dict(zip(names, threads.map(judge, names), strict=True))
    means = {
        group: {score: Estimate.mean([found[name][score] for name in members]) for score in normal}
        for group, members in groups.items()
    }
    return {"groups": named_figures(means), "sets": named_figures(found)}


def named_figures(estimates: Mapping[str, Mapping[str, Estimate]]) -> dict[str, dict[str, list[float]]]:
    """For JSON."""
    return {name: {score: figure(each) for score, each in scores.items()} for name, scores in estimates.items()}


def figure(estimate: Estimate) -> list[float]:
    """Value, low and high end."""
    return [round(float(number), DIGITS) for number in (estimate.value, *estimate.interval)]
