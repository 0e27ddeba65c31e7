"""A small plan of the studies, a dataset that needs no files, and made-up results of all studies."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from common import Timer
from discopatch.images.samples import crops, sample_photos
from discopatch.training import Hardware
from discopatch.training.logging import COLUMNS
from paper.dataset import CONTROL, FAR, FIT, NEAR, TEST, Dataset, corrupted_name
from paper.plan import Plan
from paper.run import Studies
from paper.trainings import Trainings

Results = dict[str, Any]

SMALL = replace(
    Plan.tiny(),
    patches_in_all=32,
    images=2,
    patches=4,
    fit=12,
    limit=5,
    severities=(3,),
    batch_sizes=(1, 4),
    resamples=20,
)
PLAN = Plan(seeds=3, corruptions=("fog", "jpeg_compression"), severities=(1, 3))  # of the made-up results
SCORES = ("patches", "logit", "statistics", "combined")
RUNS = ("paper-0", "natural-0", "group-0", "instance-0", "full-0", "paper-1", "natural-1", "paper-2")
SIZES = (1, 16, 32, 64, 128, 256)


def make_dataset(plan: Plan = SMALL, *, images: int = 6) -> Dataset:
    """So many images of each set."""
    names = [FIT, TEST, *NEAR, *FAR, *CONTROL, *(corrupted_name(*cell) for cell in plan.cells)]
    photos = crops(sample_photos(["cat", "coins"]), len(names) * images, size=plan.transform.size, seed=0)
    pixels = np.stack([photo.pixels for photo in photos[: len(names) * images]])
    sets = {name: slice(number * images, (number + 1) * images) for number, name in enumerate(names)}
    return Dataset(pixels, sets, "key", dict.fromkeys(names, "digest"))


def make_trainings(folders: Path, work: Path, *, compile: bool = False) -> Trainings:
    shards = tuple(sorted(map(str, (folders / "natural").glob("train-*.tar"))))
    hardware = Hardware(accelerator="cpu", compile=compile, workers=1)
    return Trainings(shards, work, hardware, Console(quiet=True))


def make_studies(folders: Path, work: Path, out: Path, *, minutes: float | None = None) -> Studies:
    out.mkdir(exist_ok=True)
    timer = Timer(minutes, log=lambda line: None)
    return Studies(SMALL, folders, out, make_trainings(folders, work), timer, device="cpu", workers=1)


def make_study_results(seed: int = 0) -> Results:
    """Everything that the results of the studies can hold: three seeds, and the released weights."""
    rng = np.random.default_rng(seed)
    groups = {"near": NEAR, "far": FAR, "control": CONTROL}
    groups["covariate"] = tuple(corrupted_name(name, level) for name in PLAN.corruptions for level in PLAN.severities)
    versions = dict.fromkeys(("discopatch", "python", "torch", "numpy", "pillow"), "1.0")
    return {
        "format": 1,
        "plan": PLAN.to_dict(),
        "made": versions | {"device": "CPU", "training precision": "float32"},
        "failed": {},
        "runs": {name: make_run(name, rng) for name in RUNS},
        "data": {
            name: {"images": 100 + place, "digest": f"{place:016x}"}
            for place, name in enumerate((FIT, TEST, *NEAR, *FAR, *CONTROL, *groups["covariate"]))
        },
        "evaluation": {name: make_evaluation(groups, rng) for name in (*RUNS, "released") if name != "full-0"},
        "patch counts": {
            name: {
                "severity": 3,
                "counts": {
                    str(count): {group: make_figures(SCORES[1:], rng) for group in ("near", "far", "covariate")}
                    for count in PLAN.counts
                },
            }
            for name in PLAN.counted
        },
        "batch normalisation": {"full-0": make_batch_figures(rng)},
        "spectra": {name: {"patches": 2048, "curves": make_curves(rng)} for name in ("paper-0", "natural-0")},
    }


def make_run(name: str, rng: np.random.Generator) -> Results:
    return {
        "steps": PLAN.steps,
        "patches": PLAN.steps * PLAN.images * PLAN.patches,
        "patch size": 256 if name == "full-0" else 64,
        "seconds": round(rng.uniform(50, 200), 1),
        "passes": "fused, whole images plain",
        "weights digest": f"{rng.integers(2**60):016x}",
    }


def make_evaluation(groups: dict[str, tuple[str, ...]], rng: np.random.Generator) -> Results:
    sets = {name: make_figures(SCORES, rng) for names in groups.values() for name in names}
    means = {
        group: {score: np.mean([sets[name][score] for name in names], axis=0).tolist() for score in SCORES}
        for group, names in groups.items()
    }
    return {"groups": means, "sets": sets}


def make_batch_figures(rng: np.random.Generator) -> Results:
    """Sets of 64 images at most, so that none fills the largest batches alone."""

    def figures(value: float, rounds: int, groups: Iterable[str] = ("near", "far", "covariate")) -> Results:
        found = {}
        for place, group in enumerate(groups):
            mean = value + 0.02 * place
            found[group] = {
                "auroc": [mean, mean - 0.02, mean + 0.02],
                "rounds": (mean + rng.uniform(-0.02, 0.02, rounds)).round(5).tolist(),
                "sets": list(FAR[: place + 2]),
            }
        return found

    own = ("near", "far")
    return {
        "severity": 3,
        "rounds": 3,
        "alone among normal": 30,
        "images": {"near": 270, "far": 570, "covariate": 900},
        "learned": figures(0.38, 1),
        "batch": {str(size): figures(0.55 + 0.05 * place, 3) for place, size in enumerate(SIZES)},
        "own sets": {
            str(size): figures(0.6 + 0.05 * place, 3, own) if size <= 64 else {} for place, size in enumerate(SIZES)
        },
        "half": {str(size): figures(0.52 - 0.01 * place, 3) for place, size in enumerate(SIZES[1:])},
        "one": {str(size): figures(0.58 - 0.01 * place, 1) for place, size in enumerate(SIZES[1:])},
    }


def make_curves(rng: np.random.Generator) -> Results:
    frequencies = np.arange(1, 33) / 64
    real = 1e-3 / frequencies**2
    return {
        "frequencies": frequencies.tolist(),
        "real": real.tolist(),
        "reconstructed": (real * rng.uniform(0.1, 0.5, 32)).tolist(),
        "generated": (real * rng.uniform(0.5, 2, 32)).tolist(),
    }


def make_figures(names: Iterable[str], rng: np.random.Generator) -> dict[str, list[float]]:
    return {name: [value := round(rng.uniform(0.4, 0.95), 5), value - 0.02, value + 0.02] for name in names}


def losses_text(runs: Iterable[str] = ("paper-0", "natural-0", "paper-1"), steps: int = 30) -> str:
    """A losses.csv of all runs."""
    lines = [["run", *COLUMNS]]
    lines += [[run, str(step), *["0.5"] * (len(COLUMNS) - 1)] for run in runs for step in range(1, steps + 1)]
    return "".join(f"{','.join(line)}\n" for line in lines)
