"""A whole benchmark run: networks opened, everything scored, figures, tables and pictures written."""

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from discopatch.benchmark.benchplan import BenchPlan
from discopatch.benchmark.eyes import DiscriminatorEye
from discopatch.benchmark.featurecache import FeatureCache
from discopatch.benchmark.imageset import ImageSet
from discopatch.benchmark.methods import OURS, REFERENCE, MethodName, open_eye
from discopatch.benchmark.pool import PART, Pool
from discopatch.benchmark.report import FORMAT, Report, data_report, made, measure, protocol_report
from discopatch.benchmark.runner import Runner, Tell, prepare
from discopatch.benchmark.tables.labels import patch_count
from discopatch.files import write_atomically, write_json
from discopatch.model.weights import Weights
from discopatch.scoring.scorer import chosen

RESULTS = "results.json"
MEAN_FEATURES, MEAN = "umap.npz", "mean features"
DRAWN = 120  # images of a set in the picture of mean features


@dataclass(frozen=True)
class Setting:
    """Where and with what a run takes place."""

    folder: Path
    weights: Weights
    cache: Path
    device: str = "auto"
    backbones: Path | None = None


def run_bench(plan: BenchPlan, methods: Sequence[MethodName], setting: Setting, pool: Pool, tell: Tell) -> Report:
    """Scores what is not scored yet, and writes the report of all that was asked for."""
    start = time.perf_counter()
    in_full_precision()
    eyes = {
        name: open_eye(name, setting.weights, seed=plan.seeds[0], device=setting.device, folder=setting.backbones)
        for name in dict.fromkeys(each.eye for each in methods)
    }
    runner = Runner(plan, eyes, methods, setting.folder, FeatureCache(setting.cache), pool, tell)
    runner.run()
    report = build_report(runner, setting, before=start)
    write_json(setting.folder / RESULTS, report)
    if isinstance(ours := eyes.get(OURS), DiscriminatorEye):
        store_mean_features(runner, ours)
    return report


def build_report(runner: Runner, setting: Setting, *, before: float) -> Report:
    """Everything that tables and pictures are made from."""
    plan, names = runner.plan, [str(name) for name in runner.methods]
    reference = REFERENCE if REFERENCE in names else names[0]
    protocols = {}
    for protocol in plan.protocols:
        runner.tell(f"{protocol}: resampling", 0, 1)
        measured = measure(plan, protocol, runner.scores, runner.pool)
        protocols[protocol] = protocol_report(plan, measured, names, reference)
    latencies = runner.latencies()
    seconds = earlier_seconds(setting.folder) + time.perf_counter() - before
    device = chosen(setting.device)
    return {
        "format": FORMAT,
        "suite": plan.suite.name,
        "made": made(setting.weights, seeds=plan.seeds, resamples=plan.resamples, device=device, seconds=seconds),
        "sizes": {"fit": plan.fit, "test": len(plan.sets(plan.protocol(plan.protocols[0]))[0].images)},
        "methods": {
            str(name): {
                "eye": name.eye,
                "digest": runner.eyes[name.eye].digest,
                "parameters": runner.eyes[name.eye].parameters,
                "milliseconds": latencies.get(str(name)),
                "patches": patch_count(str(name)),
            }
            for name in runner.methods
        },
        "protocols": protocols,
        "data": {protocol: data_report(plan, protocol, runner.digests) for protocol in plan.protocols},
    }


def earlier_seconds(folder: Path) -> float:
    """What the run took before it was stopped, or before something was added to it."""
    path = folder / RESULTS
    return float(json.loads(path.read_text())["made"]["seconds"]) if path.exists() else 0.0


def store_mean_features(runner: Runner, eye: DiscriminatorEye) -> None:
    """The discriminator's mean features of a hundred images of each set, for a picture of where they lie."""
    plan = runner.plan
    planned = [each for each in plan.sets(plan.protocol(plan.protocols[0])) if each.group in ("test", "near", "far")]
    found = {}
    for each in planned:
        runner.tell(f"mean features: {each.name}", 0, 1)
        found[each.name] = mean_features(runner, eye, next(each.images.parts(DRAWN)))
    write_atomically(runner.folder / MEAN_FEATURES, lambda beside: save_arrays(beside, found))


def mean_features(runner: Runner, eye: DiscriminatorEye, images: ImageSet) -> NDArray[np.floating]:
    """(images, channels), looked at once."""
    digest = f"{runner.digests.of(images)} {MEAN}"
    known = runner.cache.read(eye.digest, digest, (MEAN,))
    if known is None:
        parts = [prepare(part.files, part.way, part.first) for part in images.parts(PART)]
        known = {MEAN: np.concatenate([eye.mean_features(part) for part in parts])}
        runner.cache.write(eye.digest, digest, known)
    return known[MEAN]


def stored_features(folder: Path) -> dict[str, NDArray[np.floating]] | None:
    """The mean features of each set, if there are any."""
    path = folder / MEAN_FEATURES
    return dict(np.load(path, allow_pickle=False)) if path.exists() else None


def save_arrays(path: Path, arrays: dict[str, NDArray[np.floating]]) -> None:
    """Without numpy's habit of renaming the file."""
    with path.open("wb") as file:
        np.savez(file, allow_pickle=False, **arrays)


def in_full_precision() -> None:
    """Every product in float32, on GPUs that would round otherwise."""
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
