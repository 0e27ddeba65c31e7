"""Stored scores, and results from them: every metric on every set, with bootstrap intervals over the test images.

Resamples are paired between methods: the same images are drawn for all of them.
"""

import json
import platform
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from discopatch.bench.dataset import TEST, BenchPlan, CorruptionPool, ImageSet
from discopatch.metrics import METRICS, Counts, Floats, check_scores, draw_resamples, middle, resample
from discopatch.model import Weights
from discopatch.utils import write_atomically
from discopatch.version import __version__

Results = dict[str, Any]
Arrays = dict[str, NDArray[Any]]

GROUPS = ("near", "far", "covariate")
DIGITS = 5  # of stored results


@dataclass(frozen=True, eq=False)
class Estimate:
    """The value of a metric, and its values on the resamples, of which there may be none."""

    value: float
    samples: Floats  # (resamples,)

    def rounded(self) -> list[float]:
        """[value, low, high] for JSON, or [value] without resamples."""
        return [round(number, DIGITS) for number in (self.value, *(middle(self.samples) if self.samples.size else ()))]

    @classmethod
    def mean(cls, estimates: Sequence["Estimate"]) -> "Estimate":
        """The mean, resample by resample, since the estimates rest on the same images."""
        samples: Floats = np.mean([each.samples for each in estimates], axis=0)
        return cls(float(np.mean([each.value for each in estimates])), samples)


Estimates = dict[str, Estimate]  # by metric
Measured = list[tuple[ImageSet, dict[str, Estimates]]]  # each set with its estimates by `seed:method`


def difference(first: Estimate, second: Estimate) -> Estimate:
    """First minus second, resample by resample: both must rest on the same draws."""
    return Estimate(first.value - second.value, first.samples - second.samples)


def estimate_all(normal: ArrayLike, shifted: ArrayLike, drawn: tuple[Counts, Counts] | None) -> Estimates:
    """Each metric, AUROC and FPR95 with resamples; `drawn` are those of the normal and of the shifted images."""
    normal, shifted = check_scores(normal, shifted)
    samples = dict.fromkeys(METRICS, np.empty(0))
    if drawn is not None:
        samples["auroc"], samples["fpr95"] = resample(normal, shifted, drawn)
    return {name: Estimate(metric(normal, shifted), samples[name]) for name, metric in METRICS.items()}


def estimate_auroc(normal: ArrayLike, shifted: ArrayLike, drawn: tuple[Counts, Counts]) -> Estimate:
    return estimate_all(normal, shifted, drawn)["auroc"]


def estimate_set(
    folder: Path, name: str, methods: Sequence[str], *, seeds: Sequence[int], paired: bool, resamples: int
) -> dict[str, Estimates]:
    """The estimates on a set, by `seed:method`: of the first seed with resamples, of others the values alone.

    Every method has the same resamples; an image and its corrupted copy (`paired`) are drawn together.
    """
    normal, shifted, control = (read_scores(folder, each) for each in (TEST, name, f"control {name}"))
    first = f"{seeds[0]}:{methods[0]}"
    drawn = draw_resamples(len(normal[first]), seed=0, name=TEST, resamples=resamples)
    others = drawn if paired else draw_resamples(len(shifted[first]), seed=0, name=name, resamples=resamples)
    found: dict[str, Estimates] = {}
    for seed, method in product(seeds, methods):
        key, is_first = f"{seed}:{method}", seed == seeds[0]
        found[key] = estimate_all(normal[key], shifted[key], (drawn, others) if is_first else None)
        if is_first and key in control:
            found[key]["control"] = estimate_auroc(normal[key], control[key], (drawn, drawn))
            found[key]["route_matched"] = estimate_auroc(control[key], shifted[key], (drawn, others))
    return found


def summarise_protocol(
    plan: BenchPlan, protocol: str, names: Sequence[str], reference: str, scores: Path, pool: CorruptionPool
) -> Results:
    """One protocol: sets, corruptions by severity, means of groups, seeds, and differences from the reference."""
    sets = [each for each in plan.sets(protocol) if each.name != TEST]
    estimate = partial(estimate_set, scores / protocol, methods=names, seeds=plan.seeds, resamples=plan.resamples)
    calls = [partial(estimate, each.name, paired=each.paired) for each in sets]
    measured: Measured = list(zip(sets, pool.stream(calls), strict=True))
    first = plan.seeds[0]

    def by_method(estimates: Mapping[str, Estimates]) -> Results:
        return {name: rounded(estimates[f"{first}:{name}"]) for name in names}

    corruptions: Results = {}
    severities: Results = {name: {} for name in names}
    corrupted: dict[str, Measured] = {}
    for images, estimates in measured:
        if images.level:
            corruptions.setdefault(images.level[0], {})[str(images.level[1])] = by_method(estimates)
            corrupted.setdefault(images.level[0], []).append((images, estimates))
    for severity in plan.severities:
        if found := [each for each in measured if each[0].level and each[0].level[1] == severity]:
            for name in names:
                severities[name][str(severity)] = rounded(mean_estimates(found, f"{first}:{name}"))
    groups = {group: found for group in GROUPS if (found := [each for each in measured if each[0].group == group])}
    means = {
        group: {name: mean_estimates(found, f"{first}:{name}") for name in names} for group, found in groups.items()
    }
    control = next(estimates for images, estimates in measured if images.name == "control corrupted")
    return {
        "sets": {
            images.name: {"group": images.group, "images": len(images), "methods": by_method(estimates)}
            for images, estimates in measured
            if images.group in ("near", "far", "control")
        },
        "corruptions": corruptions,
        "corruption_means": {
            corruption: {name: rounded(mean_estimates(found, f"{first}:{name}")) for name in names}
            for corruption, found in corrupted.items()
        },
        "control": {name: control[f"{first}:{name}"]["auroc"].rounded() for name in names},
        "images": {group: sum(len(images) for images, _ in found) for group, found in groups.items()},
        "means": {group: {name: rounded(each) for name, each in found.items()} for group, found in means.items()},
        "severities": severities,
        "reference": reference,
        "differences": {
            group: {
                name: {"auroc": difference(found[reference]["auroc"], each["auroc"]).rounded()}
                for name, each in found.items()
                if name != reference
            }
            for group, found in means.items()
        },
        "seeds": {group: {name: seed_means(plan, found, name) for name in names} for group, found in groups.items()},
    }


def mean_estimates(measured: Measured, key: str) -> Estimates:
    """The mean over the sets for one `seed:method`, of the metrics that all sets have."""
    found = [estimates[key] for _, estimates in measured]
    shared = [metric for metric in found[0] if all(metric in each for each in found)]
    return {metric: Estimate.mean([each[metric] for each in found]) for metric in shared}


def seed_means(plan: BenchPlan, measured: Measured, name: str) -> dict[str, list[float]]:
    """By metric: mean and standard deviation over the seeds."""
    runs = [mean_estimates(measured, f"{seed}:{name}") for seed in plan.seeds]
    values = {metric: np.array([run[metric].value for run in runs]) for metric in METRICS}
    return {
        metric: [round(float(each.mean()), DIGITS), round(float(each.std(ddof=1)) if len(runs) > 1 else 0.0, DIGITS)]
        for metric, each in values.items()
    }


def rounded(estimates: Mapping[str, Estimate]) -> dict[str, list[float]]:
    """For JSON: [value, low, high] by metric."""
    return {metric: each.rounded() for metric, each in estimates.items()}


def describe_set(images: ImageSet) -> Results:
    """A set in the results; of storages that differ from image to image, the sorted qualities."""
    steps = [
        {"store": sorted({quality for quality, _ in step["store"]})} if "store" in step else step
        for step in images.steps
    ]
    return {"images": len(images), "digest": images.digest, "way": steps}


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


def stored_keys(path: Path) -> dict[str, str]:
    """The key of each array of a file; none where there is no file, or a damaged one."""
    try:
        with safe_open(path, "numpy") as file:
            found: dict[str, str] = json.loads(file.metadata()["keys"])
            return found
    except (FileNotFoundError, SafetensorError):
        return {}


def read_arrays(path: Path, names: Collection[str]) -> Arrays:
    with safe_open(path, "numpy") as file:
        return {name: file.get_tensor(name) for name in names}


def add_arrays(path: Path, arrays: Mapping[str, NDArray[Any]], keys: Mapping[str, str]) -> None:
    """Adds arrays and their keys to a file; those of the same names are replaced."""
    stored = stored_keys(path)
    old = read_arrays(path, stored) if stored else {}
    merged = {**old, **{name: np.ascontiguousarray(each) for name, each in arrays.items()}}
    metadata = {"keys": json.dumps(stored | {name: keys[name] for name in arrays})}
    write_atomically(path, lambda partial: save_file(merged, partial, metadata))


def scores_path(folder: Path, name: str) -> Path:
    """The file of a set's scores in the folder of a protocol."""
    return folder / f"{name.replace('/', '-')}.safetensors"


def read_scores(folder: Path, name: str) -> dict[str, NDArray[np.float64]]:
    """The scores (images,) of a set by `seed:method`; none where it was not scored."""
    path = scores_path(folder, name)
    names = stored_keys(path)
    return read_arrays(path, names) if names else {}
