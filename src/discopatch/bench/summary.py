"""Results from scores: every metric of every method on every set, their means, and differences between methods."""

import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch

from discopatch.bench.bootstrap import DIGITS, Estimate, Estimates, difference, estimate_set, mean_and_std
from discopatch.bench.dataset import CorruptionPool, Digests, ImageSet
from discopatch.bench.plan import BenchPlan, PlannedSet
from discopatch.bench.store import Results, ScoreStore
from discopatch.metrics import METRICS
from discopatch.model import Weights
from discopatch.version import __version__

FORMAT = 2
GROUPS = ("near", "far", "covariate")


@dataclass(frozen=True, eq=False)
class MeasuredSet:
    """A set and the estimates of every metric on it, by `seed:method`."""

    planned: PlannedSet
    estimates: dict[str, Estimates]

    def of_seed(self, seed: int, names: Sequence[str]) -> dict[str, dict[str, list[float]]]:
        """For JSON: by method and metric, value and interval."""
        return {name: rounded(self.estimates[f"{seed}:{name}"]) for name in names}


def measure_sets(
    plan: BenchPlan, protocol: str, names: Sequence[str], scores: ScoreStore, pool: CorruptionPool
) -> list[MeasuredSet]:
    """All sets of a protocol with the named methods, in the processes of the pool."""
    sets = [each for each in plan.sets(plan.protocol(protocol)) if each.group != "test"]
    estimate = partial(estimate_set, seeds=plan.seeds, resamples=plan.resamples)
    calls = [partial(estimate, scores, protocol, each.name, names, paired=each.paired) for each in sets]
    return [MeasuredSet(planned, found) for planned, found in zip(sets, pool.stream(calls), strict=True)]


def summarise_protocol(
    plan: BenchPlan, measured: Sequence[MeasuredSet], names: Sequence[str], reference: str
) -> Results:
    """One protocol: sets, corruptions by severity, means of groups, seeds, and differences from the reference."""
    first = plan.seeds[0]
    corruptions: Results = {}
    for each in measured:
        if each.planned.level:
            name, severity = each.planned.level
            corruptions.setdefault(name, {})[str(severity)] = each.of_seed(first, names)
    groups = {group: [each for each in measured if each.planned.group == group] for group in GROUPS}
    groups = {group: sets for group, sets in groups.items() if sets}
    means = {group: mean_estimates(sets, first, names) for group, sets in groups.items()}
    control = next(each.estimates for each in measured if each.planned.name == "control corrupted")
    return {
        "sets": {
            each.planned.name: {
                "group": each.planned.group,
                "images": len(each.planned.images),
                "methods": each.of_seed(first, names),
            }
            for each in measured
            if each.planned.group in ("near", "far", "control")
        },
        "corruptions": corruptions,
        "control": {name: control[f"{first}:{name}"]["auroc"].rounded() for name in names},
        "means": {group: {name: rounded(each) for name, each in found.items()} for group, found in means.items()},
        "severities": severity_means(plan, measured, names),
        "reference": reference,
        "differences": {
            group: {
                name: {"auroc": difference(found[reference]["auroc"], each["auroc"]).rounded()}
                for name, each in found.items()
                if name != reference
            }
            for group, found in means.items()
            if reference in found
        },
        "seeds": {group: seed_means(plan, sets, names) for group, sets in groups.items()},
    }


def mean_estimates(sets: Sequence[MeasuredSet], seed: int, names: Sequence[str]) -> dict[str, Estimates]:
    """By method: the mean over the sets, of the metrics that all sets have."""
    means = {}
    for name in names:
        found = [each.estimates[f"{seed}:{name}"] for each in sets]
        shared = [metric for metric in found[0] if all(metric in each for each in found)]
        means[name] = {metric: Estimate.mean([each[metric] for each in found]) for metric in shared}
    return means


def severity_means(plan: BenchPlan, measured: Sequence[MeasuredSet], names: Sequence[str]) -> Results:
    """By method and severity: the mean over corruptions."""
    found: Results = {name: {} for name in names}
    for severity in plan.severities:
        sets = [each for each in measured if each.planned.level and each.planned.level[1] == severity]
        for name, means in mean_estimates(sets, plan.seeds[0], names).items() if sets else ():
            found[name][str(severity)] = rounded(means)
    return found


def seed_means(plan: BenchPlan, sets: Sequence[MeasuredSet], names: Sequence[str]) -> Results:
    """By method and metric: mean and standard deviation over the seeds."""
    runs = [mean_estimates(sets, seed, names) for seed in plan.seeds]
    return {
        name: {
            metric: [round(number, DIGITS) for number in mean_and_std([run[name][metric].value for run in runs])]
            for metric in METRICS
        }
        for name in names
    }


def rounded(estimates: Mapping[str, Estimate]) -> dict[str, list[float]]:
    """For JSON: [value, low, high] by metric."""
    return {metric: each.rounded() for metric, each in estimates.items()}


def describe_data(plan: BenchPlan, protocol: str, digests: Digests) -> Results:
    """By set: the number of images, their digest, and their preprocessing."""
    chosen = plan.protocol(protocol)
    sets = [each.images for each in plan.sets(chosen)] + [plan.fit_set(chosen, seed) for seed in plan.seeds]
    return {images.name: describe_set(images, digests) for images in sets}


def describe_set(images: ImageSet, digests: Digests) -> Results:
    """A set in the results; of storages that differ from image to image, the sorted qualities."""
    steps = [
        {"store": sorted({quality for quality, _ in step["store"]})} if "store" in step else step
        for step in images.steps
    ]
    return {"images": len(images), "digest": digests.of(images), "way": steps}


def provenance(
    weights: Weights, *, seeds: Sequence[int], resamples: int, device: torch.device, seconds: float
) -> Results:
    """Versions, digests, device and settings that the results depend on."""
    return {
        "discopatch": __version__,
        "weights digest": weights.digest,
        "transform digest": weights.transform.digest,
        "transform": weights.transform.to_dict(),
        "seeds": list(seeds),
        "resamples": resamples,
        "device": torch.cuda.get_device_name() if device.type == "cuda" else "CPU",
        "tf32": torch.backends.cudnn.allow_tf32,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "seconds": round(seconds),
    }
