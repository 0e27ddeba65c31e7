"""Are the reasons right, and does the heatmap stay cold on normal images? The figures of docs/explanations.md.

python studies/reasons.py --photos natural/test.tar --out docs/results/reasons.json
python studies/reasons.py --more-photos natural/train-0002.tar --out docs/results/reasons.json
python studies/reasons.py --solar --out docs/results/reasons.json
python studies/reasons.py --out docs/results/reasons.json --page docs/explanations.md

A detector is fitted on some normal images. On others, new to it, it is counted how many get a reason and how many of
their regions are hot; and on those, degraded in a known way by the corruptions of the benchmark, which reason comes
first. Solar cells come from the installed elpv-dataset: the half of them that nothing was chosen on. What was counted
joins what the file has of other images; without images, the tables of the page are written anew.
"""

import json
import multiprocessing
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any, Literal

import numpy as np
import typer

from common import write_text
from discopatch import Detector
from discopatch.bench.dataset import shuffled
from discopatch.bench.suites.solar import NORMAL_CELL, labelled_cells, solar_folder
from discopatch.calibration import calibration_size
from discopatch.corruptions import corrupt
from discopatch.explain.anomaly_map import GRID
from discopatch.explain.reasons import ReasonModel
from discopatch.fitting import MIN_FIT_IMAGES, N_SAMPLED
from discopatch.heads import PROBES
from discopatch.images import NamedImage, Pixels, Transform, read_images
from discopatch.pretrained import DEFAULT_WEIGHTS

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
DEGRADED = {30: 21, 89: 60, 299: 200}  # images given, and those of them that are fitted
NORMAL = (30, 60, 120, 600)  # images given
MORE = 750
NEW, MIN_NEW, HEATMAPS = 150, 60, 40  # new normal images: at most, at least, and those whose regions are looked at


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
    more_photos: Annotated[Path | None, typer.Option(help="Photos for normal images alone, 750 or more.")] = None,
    solar: Annotated[bool, typer.Option(help="Solar cells, too.")] = False,
    solar_data: Annotated[Path | None, typer.Option(help="With labels.csv and images/. Default: installed.")] = None,
    half: Annotated[Literal["first", "second", "all"], typer.Option(help="Of the solar cells.")] = "second",
    weights: Annotated[str, typer.Option(help="Pretrained weights by name.")] = DEFAULT_WEIGHTS,
    draws: Annotated[int, typer.Option(help="Detectors of each size.")] = 5,
    degraded: Annotated[int, typer.Option(help="Images that are degraded in every way.")] = 40,
    given: Annotated[list[int] | None, typer.Option(help="Normal images to give; default: all sizes.")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, ...")] = "auto",
    heatmaps: Annotated[bool, typer.Option(help="Fit detectors; without, reasons alone, which ask no network.")] = True,
    processes: Annotated[int, typer.Option(help="Detectors that are fitted at once.")] = 2,
    out: Annotated[Path | None, typer.Option(help="JSON file to write, or to join.")] = None,
    page: Annotated[Path | None, typer.Option(help="Page whose tables are written anew from the file.")] = None,
) -> None:
    """Counts, prints the shares, and writes everything that was counted."""
    with TemporaryDirectory() as folder:
        sets = {}
        if solar:
            sets["solar cells"] = save(solar_cells(solar_data, half), Path(folder) / "solar.npy")
        if photos is not None:
            sets["photos"] = save(photos, Path(folder) / "photos.npy")
        if more_photos is not None:
            sets["more photos"] = save(more_photos, Path(folder) / "more.npy", most=MORE)
        counts = {name: len(np.load(path, mmap_mode="r")) for name, path in sets.items()}
        tasks = [task for task in plan(counts, draws, degraded) if given is None or task.given in given]
        with ProcessPoolExecutor(processes, multiprocessing.get_context("spawn")) as pool:
            places = {name: str(path) for name, path in sets.items()}
            work = partial(measure, places, weights=weights, device=device, heatmaps=heatmaps)
            found = list(pool.map(work, tasks))
    result = json.loads(out.read_text()) if out is not None and out.exists() else {}
    for name in sets:
        sizes = summary([each for each in found if each["images"] == name])
        made: dict[str, Any] = {"draws": draws, "degraded": degraded, "rate": RATE}
        if heatmaps:
            made["heatmaps"] = {"weights": weights, "draws": draws}
        elif name in result:  # the heatmaps of an earlier run stay
            made["heatmaps"] = result[name]["made"]["heatmaps"]
            for size, each in sizes.items():
                each |= {key: result[name]["by images given"][size][key] for key in each if key.startswith("hot")}
        result[name] = {"made": made, "by images given": sizes}
        print(name, shares_table(sizes), sep="\n")
    if out is not None:
        write_text(out, json.dumps(result, indent=1) + "\n")
    if page is not None:
        write_page(page, result)


def solar_cells(folder: Path | None, half: str) -> list[Path]:
    """The normal cells of a random half: of the first for choices, of the second for figures."""
    cells = [file.path for file in shuffled(labelled_cells(solar_folder(folder))[NORMAL_CELL], seed=0)]
    middle = len(cells) // 2
    return sorted({"first": cells[:middle], "second": cells[middle:], "all": cells}[half])


def save(images: object, path: Path, *, most: int | None = None) -> Path:
    """All images, or the first, through the transform, as one array on disk."""
    stream = read_images(images, transform=Transform(size=256))
    np.save(path, np.stack([each.pixels for each in islice(stream, most) if isinstance(each, NamedImage)]))
    return path


def plan(counts: dict[str, int], draws: int, degraded: int) -> list[Task]:
    """The longest first; sizes for which there are not enough images are left out."""
    tasks = []
    for name, count in counts.items():
        sizes = set(NORMAL) if name == "more photos" else {*NORMAL, *DEGRADED}
        for given in sizes:
            if count >= given + MIN_NEW:
                tried = degraded if given in DEGRADED and name != "more photos" else 0
                tasks += [Task(name, given, draw, tried) for draw in range(draws)]
    return sorted(tasks, key=lambda task: (-task.degraded, -task.given))


def measure(paths: dict[str, str], task: Task, *, weights: str, device: str, heatmaps: bool) -> dict[str, Any]:
    """What one detector, or its reasons alone, says about images that are new to it."""
    import torch

    torch.set_num_threads(1)
    pixels = np.load(paths[task.images], mmap_mode="r")
    order = np.random.default_rng([task.given, task.draw]).permutation(len(pixels))
    given = np.stack([pixels[place] for place in order[: task.given]])
    new = [np.array(pixels[place]) for place in order[task.given : task.given + NEW]]
    hot = None
    if heatmaps:
        detector = Detector(weights, false_alarm_rate=RATE, device=device, seed=task.draw).fit(list(given), workers=1)
        fitted, model = detector.n_fit_, detector.reasons_
        regions = [detector.encoder_.extract_regions(image, GRID**2) for image in new[:HEATMAPS]]
        hot = float(np.mean([(detector.regions_.excess(each) > 0).mean() for each in regions]))
    else:
        fitted = task.given - calibration_size(task.given, RATE, min_fit=MIN_FIT_IMAGES)
        model = ReasonModel.fit(given[: min(fitted, N_SAMPLED)], seed=task.draw)
    grey = all((image == image[..., :1]).all() for image in new)
    cells = []
    for kind, corruptions in KINDS.items():
        for corruption in corruptions:
            for severity in SEVERITIES:
                if right := right_reasons(kind, severity, grey=grey):
                    tried = [
                        corrupt(image, corruption, severity, seed=i) for i, image in enumerate(new[: task.degraded])
                    ]
                    first = Counter(first_reason(model, image) for image in tried)
                    cells.append({"kind": kind, "severity": severity, "right": list(right), "first": dict(first)})
    return {
        **asdict(task),
        "fitted": fitted,
        "silent": [name for name in PROBES if name not in model.probes],
        "normal": dict(Counter(first_reason(model, image) for image in new)),
        "hot": hot,
        "cells": cells if task.degraded else [],
    }


def first_reason(model: ReasonModel, image: Pixels) -> str:
    return next(iter(model.reasons(image)), NONE)


def summary(found: list[dict[str, Any]]) -> dict[str, Any]:
    """By images given: the shares of new normal images, and the first reasons of degraded ones by kind."""
    result = {}
    for given in sorted({each["given"] for each in found}):
        parts = [each for each in found if each["given"] == given]
        normal = sum((Counter(each["normal"]) for each in parts), Counter[str]())
        result[str(given)] = {
            "fitted": parts[0]["fitted"],
            "silent": sorted({name for each in parts for name in each["silent"]}),
            "new normal images": normal.total(),
            "with a reason": 1 - normal[NONE] / normal.total(),
            "with a reason, by draw": [
                1 - each["normal"].get(NONE, 0) / sum(each["normal"].values()) for each in parts
            ],
            "hot regions": float(np.mean([each["hot"] for each in parts])) if parts[0]["hot"] is not None else None,
            "hot regions, by draw": [each["hot"] for each in parts],
            "degraded": degraded_summary([cell for each in parts for cell in each["cells"]]),
        }
    return result


def degraded_summary(cells: list[dict[str, Any]]) -> dict[str, Any]:
    """The share that is right, over all kinds alike and for each; and what came first, by kind."""
    if not cells:
        return {}
    kinds = {kind: share_right(cell for cell in cells if cell["kind"] == kind) for kind in KINDS}
    matrix = {
        kind: dict(
            sum((Counter(cell["first"]) for cell in cells if cell["kind"] == kind), Counter[str]()).most_common()
        )
        for kind in KINDS
    }
    severities = {str(each): share_right(cell for cell in cells if cell["severity"] == each) for each in SEVERITIES}
    return {
        "right": float(np.mean(list(kinds.values()))),
        "by kind": kinds,
        "by severity": severities,
        "first reasons": matrix,
    }


def shares_table(sizes: dict[str, Any]) -> str:
    """Markdown: a row for every number of images given."""
    rows = [
        "| given | fitted | new normal images with a reason | hot regions | first reason right |",
        "|---|---|---|---|---|",
    ]
    for given, each in sizes.items():
        right = f"{each['degraded']['right']:.0%}" if each["degraded"] else ""
        hot = "" if each["hot regions"] is None else f"{each['hot regions']:.1%}"
        rows.append(f"| {given} | {each['fitted']} | {each['with a reason']:.1%} | {hot} | {right} |")
    return "\n".join(rows)


def matrix_table(degraded: dict[str, Any]) -> str:
    """Markdown: a row for every kind, and what share of its images each reason was the first of."""
    matrix = degraded["first reasons"]
    found = sorted({name for row in matrix.values() for name in row} - {NONE})
    order = [name for names in RIGHT.values() for name in names] + ["paler", "stronger", "warmer"]
    columns = [name for name in order if name in found] + [name for name in found if name not in order] + [NONE]
    rows = ["| degraded | right | " + " | ".join(columns) + " |", "|---" * (len(columns) + 2) + "|"]
    for kind, row in matrix.items():
        shares = [row.get(name, 0) / sum(row.values()) for name in columns]
        cells = [f"{share:.0%}" if share >= 0.005 else "" for share in shares]
        rows.append(f"| {kind} | **{degraded['by kind'][kind]:.0%}** | " + " | ".join(cells) + " |")
    return "\n".join(rows)


def write_page(page: Path, result: dict[str, Any]) -> None:
    """Puts every table between the marks that name it."""
    tables = {}
    for name, found in result.items():
        sizes = found["by images given"]
        tables[f"{name}"] = shares_table(sizes)
        for given, each in sizes.items():
            if each["degraded"]:
                tables[f"{name} {given}"] = matrix_table(each["degraded"])
    text = page.read_text(encoding="utf-8")
    for name, table in tables.items():
        begin, end = f"<!-- {name} -->\n", "<!-- end -->"
        if begin in text:
            before, _, rest = text.partition(begin)
            text = before + begin + table + "\n" + end + rest.partition(end)[2]
    write_text(page, text)


def share_right(cells: Iterable[dict[str, Any]]) -> float:
    """The mean over corruptions and severities."""
    shares = [sum(cell["first"].get(name, 0) for name in cell["right"]) / sum(cell["first"].values()) for cell in cells]
    return float(np.mean(shares))


if __name__ == "__main__":
    typer.run(main)
