"""Reasons of explanations: whether the first is right.

python studies/reasons.py --photos natural/test.tar --solar      # docs/results/reasons.json

A detector is fitted on some normal images. Counted are which reason comes first on new images that are degraded in a
known way, and how many new normal images get a reason. Solar cells come from the installed elpv-dataset.
"""

import json
import multiprocessing
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import numpy as np
import typer

from common import read_pixels
from discopatch import Detector
from discopatch.bench.dataset import shuffled
from discopatch.bench.suites import NORMAL_CELL, labelled_cells, solar_folder
from discopatch.corruptions import corrupt
from discopatch.images import Pixels
from discopatch.pretrained import DEFAULT_WEIGHTS
from discopatch.utils import write_json

NONE = "none"
SEVERITIES = (2, 3, 4)
KINDS = {
    "blur": ("gaussian_blur", "defocus_blur"),
    "noise": ("gaussian_noise", "shot_noise"),
    "compression": ("jpeg_compression",),
    "coarse pixels": ("pixelate",),
    "haze": ("fog",),
    "brightness": ("brightness",),
    "contrast": ("contrast",),
    "colours": ("saturate",),
}
RIGHT = {
    "blur": ("blur",),
    "noise": ("noise",),
    "compression": ("compression",),
    "coarse pixels": ("pixelation",),
    "haze": ("haze",),
    "brightness": ("brighter",),
    "contrast": ("less_contrast",),
}
RATE = 0.1  # at which detectors are fitted: 30 images allow no smaller one
GIVEN = (30, 89, 299)  # images
NEW, MIN_NEW = 150, 60  # new normal images: at most, and at least


@dataclass(frozen=True)
class Task:
    """One detector: which images, how many of them, which draw, and on how many others each degradation is tried."""

    images: str
    given: int
    draw: int
    degraded: int


def right_reasons(kind: str, severity: int, *, grey: bool) -> tuple[str, ...]:
    """The ids that count as right; none where the degradation leaves the image as it is.

    ImageNet-C's `saturate` makes colours paler at severities 1 and 2 and stronger above; grey stays grey up to
    severity 3, and turns reddish from 4 on.
    """
    if kind != "colours":
        return RIGHT[kind]
    if grey:
        return ("warmer", "stronger") if severity >= 4 else ()
    return ("paler",) if severity <= 2 else ("stronger",)


def main(
    photos: Annotated[Path | None, typer.Option(help="Photos: a folder or a tar shard.")] = None,
    solar: Annotated[bool, typer.Option(help="Solar cells, too.")] = False,
    solar_data: Annotated[Path | None, typer.Option(help="With labels.csv and images/. Default: installed.")] = None,
    weights: Annotated[str, typer.Option(help="Pretrained weights by name.")] = DEFAULT_WEIGHTS,
    draws: Annotated[int, typer.Option(help="Detectors of each size.")] = 5,
    degraded: Annotated[int, typer.Option(help="Images that are degraded in every way.")] = 40,
    given: Annotated[list[int] | None, typer.Option(help="Numbers of normal images. Default: all sizes.")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, ...")] = "auto",
    processes: Annotated[int, typer.Option(help="Detectors that are fitted at once.")] = 2,
    out: Annotated[Path, typer.Option(help="JSON file; other images in it stay.")] = Path("docs/results/reasons.json"),
) -> None:
    with TemporaryDirectory() as folder:
        sets = {}
        if solar:
            sets["solar cells"] = save(solar_cells(solar_data), Path(folder) / "solar.npy")
        if photos is not None:
            sets["photos"] = save(photos, Path(folder) / "photos.npy")
        counts = {name: len(np.load(path, mmap_mode="r")) for name, path in sets.items()}
        tasks = [task for task in plan(counts, draws, degraded) if given is None or task.given in given]
        with ProcessPoolExecutor(processes, multiprocessing.get_context("spawn")) as pool:
            places = {name: str(path) for name, path in sets.items()}
            found = list(pool.map(partial(measure, places, weights=weights, device=device), tasks))
    result = json.loads(out.read_text()) if out.exists() else {}
    for name in sets:
        sizes = summary([each for each in found if each["images"] == name])
        made = {"draws": draws, "degraded": degraded, "rate": RATE, "weights": weights}
        result[name] = {"made": made, "by images given": sizes}
        print(name, shares_table(sizes), sep="\n")
    write_json(out, result)


def solar_cells(folder: Path | None) -> list[Path]:
    """The normal cells of a random half; the other half was used for choices."""
    cells = [file.path for file in shuffled(labelled_cells(solar_folder(folder))[NORMAL_CELL], seed=0)]
    return sorted(cells[len(cells) // 2 :])


def save(images: object, path: Path) -> Path:
    """All images, through the transform, as one array on disk."""
    np.save(path, read_pixels(images))
    return path


def plan(counts: dict[str, int], draws: int, degraded: int) -> list[Task]:
    """The longest first; sizes for which there are not enough images are left out."""
    tasks = []
    for name, count in counts.items():
        for given in GIVEN:
            if count >= given + MIN_NEW:
                tasks += [Task(name, given, draw, degraded) for draw in range(draws)]
    return sorted(tasks, key=lambda task: -task.given)


def measure(paths: dict[str, str], task: Task, *, weights: str, device: str) -> dict[str, Any]:
    """What one detector, or its reasons alone, says about images that are new to it."""
    import torch

    torch.set_num_threads(1)
    pixels = np.load(paths[task.images], mmap_mode="r")
    order = np.random.default_rng([task.given, task.draw]).permutation(len(pixels))
    given = np.stack([pixels[place] for place in order[: task.given]])
    new = [np.array(pixels[place]) for place in order[task.given : task.given + NEW]]
    detector = Detector(weights, false_alarm_rate=RATE, device=device, seed=task.draw).fit(list(given), workers=1)
    grey = all((image == image[..., :1]).all() for image in new)
    cells = []
    for kind, corruptions in KINDS.items():
        for corruption in corruptions:
            for severity in SEVERITIES:
                if right := right_reasons(kind, severity, grey=grey):
                    tried = [
                        corrupt(image, corruption, severity, seed=i) for i, image in enumerate(new[: task.degraded])
                    ]
                    first = Counter(first_reason(detector, image) for image in tried)
                    cells.append({"kind": kind, "severity": severity, "right": list(right), "first": dict(first)})
    return {
        **asdict(task),
        "fitted": detector.guarantee_.n_fit,
        "normal": dict(Counter(first_reason(detector, image) for image in new)),
        "cells": cells,
    }


def first_reason(detector: Detector, image: Pixels) -> str:
    assert detector.reasons_ is not None
    return next(iter(detector.reasons_.reasons(image, detector.encoder_.embed)), NONE)


def summary(found: list[dict[str, Any]]) -> dict[str, Any]:
    """By images given: the shares of new normal images, and the first reasons of degraded ones by kind."""
    result = {}
    for given in sorted({each["given"] for each in found}):
        parts = [each for each in found if each["given"] == given]
        normal = sum((Counter(each["normal"]) for each in parts), Counter[str]())
        result[str(given)] = {
            "fitted": parts[0]["fitted"],
            "new normal images": normal.total(),
            "with a reason": 1 - normal[NONE] / normal.total(),
            "degraded": degraded_summary([cell for each in parts for cell in each["cells"]]),
        }
    return result


def degraded_summary(cells: list[dict[str, Any]]) -> dict[str, Any]:
    """The share that is right, over all kinds alike and for each; and what came first, by kind."""
    kinds = {kind: share_right(cell for cell in cells if cell["kind"] == kind) for kind in KINDS}
    matrix = {
        kind: dict(
            sum((Counter(cell["first"]) for cell in cells if cell["kind"] == kind), Counter[str]()).most_common()
        )
        for kind in KINDS
    }
    return {
        "right": float(np.mean(list(kinds.values()))),
        "by kind": kinds,
        "first reasons": matrix,
    }


def shares_table(sizes: dict[str, Any]) -> str:
    """Markdown: a row for every number of images given."""
    rows = [
        "| given | fitted | new normal images with a reason | first reason right |",
        "|---|---|---|---|",
    ]
    for given, each in sizes.items():
        right = f"{each['degraded']['right']:.0%}"
        rows.append(f"| {given} | {each['fitted']} | {each['with a reason']:.1%} | {right} |")
    return "\n".join(rows)


def share_right(cells: Iterable[dict[str, Any]]) -> float:
    """The mean over corruptions and severities."""
    shares = [sum(cell["first"].get(name, 0) for name in cell["right"]) / sum(cell["first"].values()) for cell in cells]
    return float(np.mean(shares))


if __name__ == "__main__":
    main.__doc__ = __doc__
    typer.run(main)
