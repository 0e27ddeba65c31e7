"""The stored results of the studies: what is read from studies.json, and how figures over seeds are summed up."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from pathlib import Path
from typing import Any, Self

from discopatch.bench.bootstrap import CONFIDENCE, mean_and_std
from discopatch.errors import ParameterError

Results = Mapping[str, Any]

FORMAT = 1
NAME, LOSSES = "studies.json", "losses.csv"
RENAMED = {"count_pictures": "count_images"}  # fields of the plan in files of earlier versions


def read_results(path: Path) -> dict[str, Any]:
    """The results that `paper_studies.py run` wrote, from its folder or from the JSON in it."""
    path = path / NAME if path.is_dir() else path
    remedy = "give the folder that `python studies/paper_studies.py run --out FOLDER` wrote"
    if not path.is_file():
        raise ParameterError(f"no studies in {path}: {remedy}")
    try:
        results = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ParameterError(f"{path} is no JSON ({error}): {remedy}") from error
    if not isinstance(results, dict) or results.get("format") != FORMAT or not {"plan", "made"} <= results.keys():
        raise ParameterError(f"{path} holds no studies of this version: {remedy}")
    results["plan"] = {RENAMED.get(name, name): value for name, value in results["plan"].items()}
    return results


def join_results(parts: Sequence[Results]) -> dict[str, Any]:
    """The results of calls that shared the runs among them, as if one had made them all."""
    joined: dict[str, Any] = {}
    for part in parts:
        for name in ("plan", "made", "data"):
            if part.get(name) != joined.get(name, part.get(name)):
                raise ParameterError(f"the {name} of the studies differs: join those of one plan, version and data")
        for name, value in part.items():
            if isinstance(value, dict):
                joined[name] = {**joined.get(name, {}), **value}
            else:
                joined[name] = [*joined.get(name, []), *value] if isinstance(value, list) else value
    return joined


def get_part(part: Any, *keys: str) -> Any:
    """What lies under the keys, one below the other; None where one of them is missing."""
    for key in keys:
        if not isinstance(part, Mapping) or key not in part:
            return None
        part = part[key]
    return part


def get_section(results: Results, name: str) -> Mapping[str, Any]:
    """A section by run; empty where it was not measured."""
    return results.get(name) or {}


@dataclass(frozen=True)
class SeedSummary:
    """Mean and standard deviation over seeds; the interval is Student's, for the mean."""

    mean: float
    std: float  # 0 for a single seed
    seeds: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Self:
        return cls(*mean_and_std(values), len(values))

    @property
    def interval(self) -> tuple[float, float] | None:
        """Where the mean over all seeds lies with 95 % confidence; None for a single seed."""
        if self.seeds < 2:
            return None
        from scipy.stats import t

        reach = float(t.ppf((1 + CONFIDENCE) / 2, self.seeds - 1)) * self.std / sqrt(self.seeds)
        return self.mean - reach, self.mean + reach


def by_seed(results: Results, kind: str, group: str, score: str) -> dict[int, float]:
    """The AUROC of every run of that kind; runs that lack it are left out."""
    values = {}
    for name, run in get_section(results, "evaluation").items():
        own, _, seed = name.rpartition("-")
        if own == kind and (figure := get_part(run, "groups", group, score)) is not None:
            values[int(seed)] = float(figure[0])
    return values


def over_seeds(results: Results, kind: str, group: str, score: str) -> SeedSummary | None:
    """None where nothing was measured."""
    values = by_seed(results, kind, group, score)
    return SeedSummary.of([*values.values()]) if values else None


def paired_difference(results: Results, first: str, second: str, group: str, score: str) -> SeedSummary | None:
    """First minus second over the seeds that both have: these begin with the same weights and images."""
    left, right = (by_seed(results, kind, group, score) for kind in (first, second))
    values = [left[seed] - right[seed] for seed in sorted(left.keys() & right.keys())]
    return SeedSummary.of(values) if values else None
