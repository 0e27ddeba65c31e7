"""The measurement behind docs/results.md: what each head tells apart, and whether promises are kept."""

import platform
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path

import numpy as np
import PIL
import torch

import discopatch
from discopatch.benchmark.bench import Bench, Report, Seen
from discopatch.benchmark.covariate import corruption_estimates, corruption_report, fit_size_report, severity_0
from discopatch.benchmark.falsealarms import count_alarms, fitted_scores, random_splits, side_by_side, summary
from discopatch.benchmark.plan import Folders
from discopatch.benchmark.reading import ImageSet, in_random_order, natural_train, normal_cells, shard_files
from discopatch.benchmark.semantic import Photos, ood_report, storage_report
from discopatch.decision.conformal import images_needed
from discopatch.detector import Detector
from discopatch.fitting import CHANGED
from discopatch.scoring import Evidence, Head
from discopatch.scoring.changes import displacements

FORMAT = 1


def measure(bench: Bench, folders: Folders) -> Iterator[Report]:
    """The report, ever more of it, so that what is done can be stored at once."""
    start = time.perf_counter()
    without_tf32()
    report: Report = {"format": FORMAT, "made": provenance(bench), "plan": asdict(bench.plan), "data": bench.data}
    sections = (measure_solar(bench, folders.solar), measure_natural(bench, folders.natural, folders.ood))
    for sections_of_one in sections:
        for name, section in sections_of_one:
            report[name] = report.get(name, {}) | section
            report["made"]["seconds"] = round(time.perf_counter() - start)
            yield report


def measure_solar(bench: Bench, folder: Path) -> Iterator[tuple[str, Report]]:
    """Cells without a defect: corruptions, how many images a fit needs, and false alarms."""
    plan = bench.plan
    files = in_random_order(normal_cells(folder), seed=plan.seed)
    fit_end = plan.solar_test + plan.solar_fit
    test = bench.load("solar test", files[: plan.solar_test][: plan.limit])
    fit = bench.load("solar fit", files[plan.solar_test : fit_end])
    bench.tell("fitting solar cells", 0, len(fit))
    detector = bench.detector().fit(fit.pictures)
    clean = bench.look(test.pixels)
    estimates, kept = corruption_estimates(bench, "solar", test, clean, heads_of(detector))
    yield (
        "solar",
        {
            "images": set_sizes(test, detector),
            **corruption_report(estimates, plan),
            "severity 0": severity_0(bench, test.pixels, clean, heads_of(detector)),
        },
    )
    bench.tell("fits of several sizes", 0, 1)
    yield "fit size", {"solar": fit_size_report(bench, fit, clean.dense, kept)}
    rest = bench.load("solar rest", files[fit_end:][: plan.solar_rest])
    yield "false alarms", {"solar": solar_alarms(bench, clean, test, fit, rest)}


def measure_natural(bench: Bench, natural: Path, ood: Path) -> Iterator[tuple[str, Report]]:
    """Photos: false alarms, other kinds of images and the routes that these took, corruptions.

    The photos to fit on are stored at the size of the transform as JPEG, and a discriminator that was trained on such
    files knows them by it. So the last step of every other image is the same storage, corrupted or not.
    """
    plan = bench.plan
    train = in_random_order(natural_train(natural), seed=plan.seed, count=plan.natural_fit + plan.natural_calibration)
    files = in_random_order(shard_files(natural / "test.tar"), seed=plan.seed, count=plan.limit)
    test = bench.load("natural test", files)
    fit = bench.load("natural fit", train[: plan.natural_fit])
    calibration = bench.load("natural calibration", train[plan.natural_fit :])
    bench.tell("fitting photos", 0, len(fit))
    detector = bench.detector().fit(fit.pictures, calibration=calibration.pictures)
    heads, storage = heads_of(detector), plan.natural_storage
    stored = storage.store_all(test.pixels)
    photos = Photos(files, bench.look(stored), bench.look(test.pixels))
    yield "false alarms", {"natural": natural_alarms(bench, photos.stored, heads)}
    yield "out of distribution", ood_report(bench, ood, photos, heads)
    yield "storage", storage_report(bench, photos, calibration, heads)
    estimates, _ = corruption_estimates(bench, "natural", test, photos.stored, heads, storage=storage)
    yield (
        "natural",
        {
            "images": set_sizes(test, detector),
            **corruption_report(estimates, plan),
            "severity 0": severity_0(bench, stored, photos.stored, heads),
        },
    )


def solar_alarms(bench: Bench, clean: Seen, test: ImageSet, fit: ImageSet, rest: ImageSet) -> Report:
    """Heads fitted anew on a part of each split; no image passes the network for it twice.

    The few images on which the known changes are tried are fitted in every split, as a detector does it.
    """
    plan = bench.plan
    bench.tell("false alarms on solar cells", 0, plan.splits)
    others = [bench.look(each.pixels, paper=False).dense for each in (fit, rest)]
    evidence = Evidence.concatenate([others[0], clean.dense, others[1]])
    splits = random_splits(
        len(evidence.logits),
        splits=plan.splits,
        fit=plan.split_fit,
        calibration=plan.split_calibration,
        always_fit=range(CHANGED),
        seed=plan.seed,
    )
    moved = displacements(bench.dense.inspect_pixels, fit.pixels[:CHANGED], seed=plan.seed)
    scores = list(bench.pool.stream(partial(fitted_scores, evidence, moved, split) for split in splits))
    return {
        head: {
            str(rate): summary(
                [count_alarms(each[head], split, rate) for each, split in zip(scores, splits, strict=True)],
                tests=len(splits[0].test),
                calibration=plan.split_calibration,
                rate=rate,
            )
            for rate in plan.rates
        }
        for head in scores[0]
    }


def natural_alarms(bench: Bench, clean: Seen, heads: Mapping[str, Head]) -> Report:
    """The head stays; each split draws other test photos to calibrate with."""
    plan = bench.plan
    images = len(clean.dense.logits)
    calibration = min(plan.split_calibration, images // 2)
    splits = random_splits(images, splits=plan.splits, calibration=calibration, seed=plan.seed)
    scores = {name: head.score(clean.dense) for name, head in heads.items()}
    return {
        name: {
            str(rate): summary(
                [count_alarms(each, split, rate) for split in splits],
                tests=images - calibration,
                calibration=calibration,
                rate=rate,
            )
            for rate in plan.rates
            if calibration >= images_needed(rate)
        }
        for name, each in scores.items()
    }


def heads_of(detector: Detector) -> dict[str, Head]:
    """Side by side; the detector's own is the combined one."""
    return side_by_side(detector.fitted.head)  # type: ignore[arg-type]


def set_sizes(test: ImageSet, detector: Detector) -> Report:
    """How many images each part has."""
    return {"test": len(test), "fit": detector.fitted.images, "calibration": len(detector.fitted.calibration)}


def without_tf32() -> None:
    """Every product in full float32, on GPUs that would round otherwise."""
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False


def provenance(bench: Bench) -> Report:
    """All that the figures depend on beside the images."""
    weights = bench.dense.weights
    on_gpu = bench.dense.device.type == "cuda"
    return {
        "discopatch": discopatch.__version__,
        "weights": bench.weights if isinstance(bench.weights, str) else "custom",
        "weights digest": weights.digest,
        "transform": weights.transform.to_dict(),
        "transform digest": weights.transform.digest,
        "seed": bench.plan.seed,
        "device": torch.cuda.get_device_name() if on_gpu else "CPU",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "pillow": PIL.__version__,
    }
