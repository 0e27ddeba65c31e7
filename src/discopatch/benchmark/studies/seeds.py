"""Several trainings of one recipe: how far chance moves a figure, and what is left of a difference."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from typing import Any, Self

from discopatch.benchmark.bootstrap import over_seeds

SURE = 0.95


@dataclass(frozen=True)
class Spread:
    """Over seeds; the interval is Student's, for the mean of as many values as there are."""

    mean: float
    deviation: float  # 0 for a single one
    seeds: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Self:
        """Of one value a seed."""
        return cls(*over_seeds(values), len(values))

    @property
    def interval(self) -> tuple[float, float]:
        """Where the mean over all seeds lies; anywhere, if there is one alone."""
        if self.seeds < 2:
            return -float("inf"), float("inf")
        from scipy.stats import t

        reach = float(t.ppf((1 + SURE) / 2, self.seeds - 1)) * self.deviation / sqrt(self.seeds)
        return self.mean - reach, self.mean + reach


def by_seed(evaluation: Mapping[str, Any], kind: str, group: str, score: str) -> dict[int, float]:
    """The figure of every run of that kind."""
    found = {}
    for name, each in evaluation.items():
        recipe, _, seed = name.rpartition("-")
        if recipe == kind:
            found[int(seed)] = float(each["groups"][group][score][0])
    return found


def paired(first: Mapping[int, float], second: Mapping[int, float]) -> list[float]:
    """First less second, for the seeds that both have: with one seed both begin with the same weights and pictures."""
    return [first[seed] - second[seed] for seed in sorted(first.keys() & second.keys())]
