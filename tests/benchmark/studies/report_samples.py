"""A made-up report of all studies, as `benchmarks/studies.py run` leaves it: three seeds, and the released weights."""

from collections.abc import Iterable
from typing import Any

import numpy as np

from discopatch.benchmark.studies.gallery import CONTROL, FAR, FIT, NEAR, TEST, cell_name
from discopatch.benchmark.studies.plan import Plan
from discopatch.training.log import COLUMNS

Report = dict[str, Any]

PLAN = Plan(seeds=3, corruptions=("fog", "jpeg_compression"), severities=(1, 3))
SCORES = ("patches", "logit", "statistics", "combined")
RUNS = ("paper-0", "natural-0", "group-0", "instance-0", "full-0", "paper-1", "natural-1", "paper-2")
SIZES = (1, 16, 32, 64, 128, 256)


def make_studies_report(seed: int = 0) -> Report:
    """Everything that a report of the studies can hold."""
    rng = np.random.default_rng(seed)
    groups = {"near": NEAR, "far": FAR, "control": CONTROL}
    groups["covariate"] = tuple(cell_name(name, level) for name in PLAN.corruptions for level in PLAN.severities)
    of_patches = [name for name in RUNS if name != "full-0"]
    return {
        "format": 1,
        "plan": PLAN.to_dict(),
        "made": dict.fromkeys(("discopatch", "python", "torch", "numpy", "pillow"), "1.0")
        | {"device": "CPU", "training precision": "float32"},
        "failed": {},
        "runs": {name: make_run(name, rng) for name in RUNS},
        "data": {
            name: {"images": 100 + place, "digest": f"{place:016x}"}
            for place, name in enumerate((FIT, TEST, *NEAR, *FAR, *CONTROL, *groups["covariate"]))
        },
        "evaluation": {name: make_evaluation(groups, rng) for name in (*of_patches, "released")},
        "patch counts": {
            name: {
                "severity": 3,
                "counts": {
                    str(count): {group: figures(SCORES[1:], rng) for group in ("near", "far", "covariate")}
                    for count in PLAN.counts
                },
            }
            for name in PLAN.counted
        },
        "batch normalisation": {"full-0": make_bias(rng)},
        "spectra": {name: {"patches": 2048, "curves": make_curves(rng)} for name in ("paper-0", "natural-0")},
    }


def make_run(name: str, rng: np.random.Generator) -> Report:
    return {
        "steps": PLAN.steps,
        "patches": PLAN.steps * PLAN.images * PLAN.patches,
        "patch size": 256 if name == "full-0" else 64,
        "seconds": round(rng.uniform(50, 200), 1),
        "passes": "fused, whole pictures plain",
        "weights digest": f"{rng.integers(2**60):016x}",
    }


def make_evaluation(groups: dict[str, tuple[str, ...]], rng: np.random.Generator) -> Report:
    sets = {name: figures(SCORES, rng) for names in groups.values() for name in names}
    means = {
        group: {score: np.mean([sets[name][score] for name in names], axis=0).tolist() for score in SCORES}
        for group, names in groups.items()
    }
    return {"groups": means, "sets": sets}


def make_bias(rng: np.random.Generator) -> Report:
    """Sets of 64 images at most, so that none fills the largest batches alone."""

    def shown(value: float, rounds: int, groups: Iterable[str] = ("near", "far", "covariate")) -> Report:
        found = {}
        for place, group in enumerate(groups):
            mean = value + 0.02 * place
            by_round = (mean + rng.uniform(-0.02, 0.02, rounds)).round(5).tolist()
            found[group] = {
                "auroc": [mean, mean - 0.02, mean + 0.02],
                "rounds": by_round,
                "sets": list(FAR[: place + 2]),
            }
        return found

    own = ("near", "far")
    return {
        "severity": 3,
        "rounds": 3,
        "alone among normal": 30,
        "images": {"near": 270, "far": 570, "covariate": 900},
        "learned": shown(0.38, 1),
        "batch": {str(size): shown(0.55 + 0.05 * place, 3) for place, size in enumerate(SIZES)},
        "own sets": {
            str(size): shown(0.6 + 0.05 * place, 3, own) if size <= 64 else {} for place, size in enumerate(SIZES)
        },
        "half": {str(size): shown(0.52 - 0.01 * place, 3) for place, size in enumerate(SIZES[1:])},
        "one": {str(size): shown(0.58 - 0.01 * place, 1) for place, size in enumerate(SIZES[1:])},
    }


def make_curves(rng: np.random.Generator) -> Report:
    frequencies = np.arange(1, 33) / 64
    real = 1e-3 / frequencies**2
    return {
        "frequencies": frequencies.tolist(),
        "real": real.tolist(),
        "reconstructed": (real * rng.uniform(0.1, 0.5, 32)).tolist(),
        "generated": (real * rng.uniform(0.5, 2, 32)).tolist(),
    }


def figures(names: Iterable[str], rng: np.random.Generator) -> dict[str, list[float]]:
    return {name: [value := round(rng.uniform(0.4, 0.95), 5), value - 0.02, value + 0.02] for name in names}


def losses_text(runs: Iterable[str] = ("paper-0", "natural-0", "paper-1"), steps: int = 30) -> str:
    """A losses.csv of all runs."""
    lines = [["run", *COLUMNS]]
    lines += [[run, str(step), *["0.5"] * (len(COLUMNS) - 1)] for run in runs for step in range(1, steps + 1)]
    return "".join(f"{','.join(line)}\n" for line in lines)
