"""Results from scores: every metric of every method on every set, with bootstrap intervals over the test images.

Resamples are paired between methods: the same images are drawn for all of them.
"""

import platform
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from zlib import crc32

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from discopatch.bench.dataset import CorruptionPool, Digests, ImageSet
from discopatch.bench.plan import RESAMPLES, BenchPlan, PlannedSet
from discopatch.bench.store import Results, ScoreStore
from discopatch.metrics import METRICS, Floats, check_scores
from discopatch.model import Weights
from discopatch.version import __version__

FORMAT = 2
GROUPS = ("near", "far", "covariate")
Counts = NDArray[np.float32]  # (resamples, images): how often each image was drawn; whole numbers, exact to 2**24
Indices = NDArray[np.int64]

CONFIDENCE = 0.95
DIGITS = 5  # of stored results
BLOCK = 2**22  # counts worked on at a time: 16 MB, of which some copies are made


@dataclass(frozen=True, eq=False)
class Estimate:
    """The value of a metric, and its values on the resamples."""

    value: float
    samples: Floats  # (resamples,)

    @property
    def interval(self) -> tuple[float, float]:
        """The ends of the range that holds the middle 95 % of the resamples."""
        low, high = np.quantile(self.samples, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
        return float(low), float(high)

    def rounded(self) -> list[float]:
        """[value, low, high] for JSON."""
        return [round(number, DIGITS) for number in (self.value, *self.interval)]

    @classmethod
    def mean(cls, estimates: Sequence["Estimate"]) -> "Estimate":
        """The mean, resample by resample, since the estimates rest on the same images."""
        samples: Floats = np.mean([each.samples for each in estimates], axis=0)
        return cls(float(np.mean([each.value for each in estimates])), samples)


Estimates = dict[str, Estimate]  # by metric


def difference(first: Estimate, second: Estimate) -> Estimate:
    """First minus second, resample by resample: both must rest on the same draws."""
    return Estimate(first.value - second.value, first.samples - second.samples)


def draw_resamples(images: int, *, seed: int, name: str = "", resamples: int = RESAMPLES) -> Counts:
    """Counts (resamples, images) of draws with replacement; `name` gives each image set draws of its own."""
    rng = np.random.default_rng([seed, crc32(name.encode())])
    drawn = rng.multinomial(images, np.full(images, 1 / images), size=resamples)
    return np.asfortranarray(drawn, np.float32)  # an image's counts side by side, since `resample` sorts images


def estimate_all(
    normal: ArrayLike, shifted: ArrayLike, drawn: tuple[Counts, Counts], *, metrics: Iterable[str] = tuple(METRICS)
) -> Estimates:
    """Each metric with its resamples; `drawn` are those of the normal images and of the shifted ones."""
    normal, shifted = check_scores(normal, shifted)
    samples = resample(normal, shifted, drawn, tuple(metrics))
    return {name: Estimate(METRICS[name](normal, shifted), found) for name, found in samples.items()}


def estimate_auroc(normal: ArrayLike, shifted: ArrayLike, drawn: tuple[Counts, Counts]) -> Estimate:
    return estimate_all(normal, shifted, drawn, metrics=["auroc"])["auroc"]


def estimate_set(
    scores: ScoreStore,
    protocol: str,
    name: str,
    methods: Sequence[str],
    *,
    seeds: Sequence[int],
    paired: bool,
    resamples: int,
) -> dict[str, Estimates]:
    """The estimates on a set, by `seed:method`: of the first seed with resamples, of others the values alone.

    Every method has the same resamples; an image and its corrupted copy (`paired`) are drawn together.
    """
    normal, shifted = scores.read(protocol, "test"), scores.read(protocol, name)
    control = scores.read(protocol, f"control {name}")
    first = f"{seeds[0]}:{methods[0]}"
    drawn = draw_resamples(len(normal[first]), seed=0, name="test", resamples=resamples)
    others = drawn if paired else draw_resamples(len(shifted[first]), seed=0, name=name, resamples=resamples)
    found: dict[str, Estimates] = {}
    for seed, method in product(seeds, methods):
        key = f"{seed}:{method}"
        if seed != seeds[0]:
            values = {each: metric(normal[key], shifted[key]) for each, metric in METRICS.items()}
            found[key] = {each: Estimate(value, np.empty(0)) for each, value in values.items()}
            continue
        found[key] = estimate_all(normal[key], shifted[key], (drawn, others))
        if key in control:
            found[key]["control"] = estimate_auroc(normal[key], control[key], (drawn, drawn))
            found[key]["route_matched"] = estimate_auroc(control[key], shifted[key], (drawn, others))
    return found


def resample(
    normal: Floats, shifted: Floats, drawn: tuple[Counts, Counts], metrics: Sequence[str]
) -> dict[str, Floats]:
    """Each metric (resamples,) on scores (images,) that are repeated as often as their images were drawn.

    The scores are sorted. The number of drawn images below a score is then a cumulative sum of counts, and the metrics
    are sums over those, for many resamples at a time.
    """
    parts = [[_RESAMPLED[name](*block) for name in metrics] for block in _blocks(normal, shifted, drawn[0], drawn[1])]
    return {name: np.concatenate(each) for name, each in zip(metrics, zip(*parts, strict=True), strict=True)}


class _Drawn:
    """Images in ascending order of their scores, each as often as some resamples (R) drew it."""

    def __init__(self, scores: Floats, order: Indices, counts: Counts) -> None:
        self.scores = scores[order]
        self.counts = counts.T.take(order, axis=0)  # (images, R)
        self.sums = np.zeros((len(order) + 1, len(counts)), np.float32)  # row i: how many of the first i images
        for before, count, after in zip(self.sums[:-1], self.counts, self.sums[1:], strict=True):
            np.add(before, count, out=after)  # row by row: np.cumsum, which goes by columns, takes twice as long
        self.total = self.sums[-1]  # (R,)
        self.needed = -(-19 * self.total.astype(np.int64) // 20)  # the fewest that are 95 %

    def below(self, scores: Floats) -> Counts:
        """(scores, R): how many lie below each score."""
        return self.sums.take(np.searchsorted(self.scores, scores, side="left"), axis=0)

    def up_to(self, scores: Floats) -> Counts:
        """(scores, R): how many lie at or below each score."""
        return self.sums.take(np.searchsorted(self.scores, scores, side="right"), axis=0)

    def from_on(self, scores: Floats) -> Counts:
        """(scores, R): how many lie at or above each score."""
        below = self.below(scores)
        np.subtract(self.total, below, out=below)
        return below

    def reaching(self, count: NDArray[np.int64]) -> Floats:
        """(R,): the score of the image with which so many have been drawn."""
        index: Indices = (self.sums < count.astype(np.float32)).sum(axis=0) - 1
        return self.scores[index]

    def at(self, rows: Indices) -> Floats:
        """(R,): how many of the first so many images were drawn; each resample has a row of its own."""
        return self.sums[rows, np.arange(rows.size)].astype(np.float64)

    def mean(self, values: Counts) -> Floats:
        """(R,): the mean of values (images, R), which are overwritten."""
        values *= self.counts
        result: Floats = values.sum(axis=0, dtype=np.float64) / self.total
        return result


def _blocks(normal: Floats, shifted: Floats, *drawn: Counts) -> Iterator[tuple[_Drawn, _Drawn]]:
    orders = np.argsort(normal), np.argsort(shifted)
    size = max(1, BLOCK // (normal.size + shifted.size))
    for start in range(0, len(drawn[0]), size):
        part = slice(start, start + size)
        yield _Drawn(normal, orders[0], drawn[0][part]), _Drawn(shifted, orders[1], drawn[1][part])


def _auroc(normal: _Drawn, shifted: _Drawn) -> Floats:
    below_twice = normal.below(shifted.scores)
    below_twice += normal.up_to(shifted.scores)
    result: Floats = shifted.mean(below_twice) / (2 * normal.total)
    return result


def _fpr95(normal: _Drawn, shifted: _Drawn) -> Floats:
    threshold = shifted.reaching(shifted.total.astype(np.int64) - shifted.needed + 1)
    accepted = normal.at(np.searchsorted(normal.scores, threshold, side="left"))
    result: Floats = (normal.total - accepted) / normal.total
    return result


def _fpr95_in(normal: _Drawn, shifted: _Drawn) -> Floats:
    threshold = normal.reaching(normal.needed)
    result: Floats = shifted.at(np.searchsorted(shifted.scores, threshold, side="right")) / shifted.total
    return result


def _aupr_in(normal: _Drawn, shifted: _Drawn) -> Floats:
    return normal.mean(_precision(normal.up_to(normal.scores), shifted.up_to(normal.scores)))


def _aupr_out(normal: _Drawn, shifted: _Drawn) -> Floats:
    return shifted.mean(_precision(shifted.from_on(shifted.scores), normal.from_on(shifted.scores)))


def _precision(hits: Counts, false_alarms: Counts) -> Counts:
    false_alarms += hits
    np.maximum(false_alarms, 1, out=false_alarms)  # where nothing was drawn there are no hits either
    hits /= false_alarms
    return hits


_RESAMPLED: dict[str, Callable[[_Drawn, _Drawn], Floats]] = {
    "auroc": _auroc,
    "fpr95": _fpr95,
    "fpr95_in": _fpr95_in,
    "aupr_in": _aupr_in,
    "aupr_out": _aupr_out,
}


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
    found: Results = {name: {} for name in names}
    for name, metric in product(names, METRICS):
        values = np.array([run[name][metric].value for run in runs])
        spread = values.std(ddof=1) if len(runs) > 1 else 0.0
        found[name][metric] = [round(float(number), DIGITS) for number in (values.mean(), spread)]
    return found


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
