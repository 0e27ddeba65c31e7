"""Scores become figures: every metric of every method on every set, their means, and what lies between methods."""

import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

import discopatch
from discopatch.benchmark.benchplan import BenchPlan, PlannedSet
from discopatch.benchmark.imageset import Digests, ImageSet
from discopatch.benchmark.metrics import (
    METRICS,
    Counts,
    Estimate,
    difference,
    draw,
    estimate_all,
    estimate_auroc,
    over_seeds,
)
from discopatch.benchmark.pool import Pool
from discopatch.benchmark.scorestore import ScoreStore
from discopatch.benchmark.ways import describe
from discopatch.model.weights import Weights

Report = dict[str, Any]
Scores = Mapping[str, NDArray[np.float64]]  # by seed and method
Figures = dict[str, Estimate]  # by metric
SetFigures = dict[str, Figures]  # by seed and method

FORMAT = 2
DIGITS = 5
GROUPS = ("near", "far", "covariate")


@dataclass(frozen=True, eq=False)
class Measured:
    """A set, and the figures of every seed and method on it."""

    planned: PlannedSet
    figures: SetFigures


def measure(plan: BenchPlan, protocol: str, scores: ScoreStore, pool: Pool) -> list[Measured]:
    """All sets of a protocol, in the processes of the pool; an image and its corrupted copy are drawn together."""
    sets = [each for each in plan.sets(plan.protocol(protocol)) if each.group != "test"]
    calls = [
        partial(measure_set, scores, protocol, each.name, each.paired, plan.seeds, plan.resamples) for each in sets
    ]
    return [Measured(planned, found) for planned, found in zip(sets, pool.stream(calls), strict=True)]


def measure_set(
    scores: ScoreStore, protocol: str, name: str, paired: bool, seeds: Sequence[int], resamples: int
) -> SetFigures:
    """The first seed with resamples, the others by their values alone."""
    normal, shifted = scores.read(protocol, "test"), scores.read(protocol, name)
    along = scores.read(protocol, f"control {name}")
    same, other = draws(normal, shifted, name, paired, resamples=resamples)
    found: SetFigures = {}
    for key, values in shifted.items():
        seed = int(key.partition(":")[0])
        if seed == seeds[0]:
            found[key] = estimate_all(normal[key], values, (same, other))
            if key in along:
                found[key]["control"] = estimate_auroc(normal[key], along[key], (same, same))
                found[key]["route_matched"] = estimate_auroc(along[key], values, (same, other))
        elif seed in seeds:
            none = np.empty(0)
            found[key] = {each: Estimate(metric(normal[key], values), none) for each, metric in METRICS.items()}
    return found


def draws(normal: Scores, shifted: Scores, name: str, paired: bool, *, resamples: int) -> tuple[Counts, Counts]:
    """Which images each resample has, of the normal ones and of the others: the same for every method."""
    first, second = (len(next(iter(each.values()))) for each in (normal, shifted))
    same = draw(first, seed=0, name="test", resamples=resamples)
    return same, same if paired else draw(second, seed=0, name=name, resamples=resamples)


def protocol_report(plan: BenchPlan, measured: Sequence[Measured], names: Sequence[str], reference: str) -> Report:
    """One protocol: sets, corruptions by severity, means of groups, seeds, and differences from the reference."""
    first = plan.seeds[0]
    by_name = {each.planned.name: each for each in measured}

    def of_first(each: Measured) -> dict[str, dict[str, list[float]]]:
        return {name: figures(each.figures[f"{first}:{name}"]) for name in names if f"{first}:{name}" in each.figures}

    corruptions: Report = {}
    for each in measured:
        if each.planned.cell:
            name, severity = each.planned.cell
            corruptions.setdefault(name, {})[str(severity)] = of_first(each)
    means = {group: group_means(measured, group, f"{first}:", names) for group in GROUPS}
    means = {group: found for group, found in means.items() if found}
    control = by_name["control corrupted"].figures
    return {
        "sets": {
            each.planned.name: {
                "group": each.planned.group,
                "images": len(each.planned.images),
                "methods": of_first(each),
            }
            for each in measured
            if each.planned.group in ("near", "far", "control")
        },
        "corruptions": corruptions,
        "control": {name: triple(control[f"{first}:{name}"]["auroc"]) for name in names},
        "means": {group: {name: figures(each) for name, each in found.items()} for group, found in means.items()},
        "severities": severities(plan, measured, names),
        "reference": reference,
        "differences": {
            group: {
                name: {"auroc": triple(difference(found[reference]["auroc"], each["auroc"]))}
                for name, each in found.items()
                if name != reference
            }
            for group, found in means.items()
            if reference in found
        },
        "seeds": {group: seeds_of(plan, measured, group, names) for group in means},
    }


def group_means(measured: Sequence[Measured], group: str, seed: str, names: Sequence[str]) -> dict[str, Figures]:
    """By method: the mean over the sets of a group, metric by metric."""
    sets = [each.figures for each in measured if each.planned.group == group]
    return {name: mean_of([each[seed + name] for each in sets]) for name in names if sets}


def mean_of(found: Sequence[Figures]) -> Figures:
    """Metric by metric, of those that all have."""
    return {
        metric: Estimate.mean([each[metric] for each in found])
        for metric in found[0]
        if all(metric in each for each in found)
    }


def severities(plan: BenchPlan, measured: Sequence[Measured], names: Sequence[str]) -> Report:
    """By method and severity: the mean over corruptions."""
    found: Report = {name: {} for name in names}
    for severity in plan.severities:
        cells = [each for each in measured if each.planned.cell and each.planned.cell[1] == severity]
        for name, each in group_means(cells, "covariate", f"{plan.seeds[0]}:", names).items():
            found[name][str(severity)] = figures(each)
    return found


def seeds_of(plan: BenchPlan, measured: Sequence[Measured], group: str, names: Sequence[str]) -> Report:
    """By method and metric: mean over the seeds, and their spread."""
    runs = [group_means(measured, group, f"{seed}:", names) for seed in plan.seeds]
    return {
        name: {
            metric: [round(number, DIGITS) for number in over_seeds([run[name][metric].value for run in runs])]
            for metric in METRICS
        }
        for name in runs[0]
    }


def data_report(plan: BenchPlan, protocol: str, digests: Digests) -> Report:
    """How many images each set has, what stands for them, and which way they went."""
    chosen = plan.protocol(protocol)
    sets = [(each.name, each.images) for each in plan.sets(chosen)]
    sets += [(f"fit {seed}", plan.fit_set(chosen, seed)) for seed in plan.seeds]
    return {name: set_report(images, digests) for name, images in sets}


def set_report(images: ImageSet, digests: Digests) -> Report:
    """One set."""
    return {"images": len(images), "digest": digests.of(images), "way": shortened(describe(images.way))}


def shortened(way: list[Report]) -> list[Report]:
    """Storages that differ from image to image as the sorted qualities that occur."""
    return [{"store": sorted({quality for quality, _ in step["store"]})} if "store" in step else step for step in way]


def made(weights: Weights, *, seeds: Sequence[int], resamples: int, device: torch.device, seconds: float) -> Report:
    """All that the figures depend on beside images and other networks."""
    return {
        "discopatch": discopatch.__version__,
        "weights digest": weights.digest,
        "transform digest": weights.transform.digest,
        "transform": weights.transform.to_dict(),
        "seeds": list(seeds),
        "resamples": resamples,
        "device": torch.cuda.get_device_name() if device.type == "cuda" else "CPU",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "seconds": round(seconds),
    }


def figures(found: Figures) -> dict[str, list[float]]:
    """For JSON."""
    return {metric: triple(each) for metric, each in found.items()}


def triple(estimate: Estimate) -> list[float]:
    """Value, low and high end."""
    return [round(number, DIGITS) for number in (estimate.value, *estimate.interval)]
