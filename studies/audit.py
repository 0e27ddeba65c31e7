"""A folder of normal images with 3 % of anomalous ones: what an audit names, and what is gained without them.

python studies/audit.py --only solar --out audit.json
python studies/audit.py --only photos --out audit.json    # adds to the file, also draws

A draw takes normal and anomalous images at random: a folder, and others to test with. Detectors are fitted on the whole
folder, without the images that the audit names, and without exactly the anomalous ones.
"""

import json
import time
import warnings
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from scipy.stats import t

from discopatch import Detector
from discopatch.audit import audit
from discopatch.bench.suites import DEFECTIVE_CELL, NORMAL_CELL, labelled_cells, solar_folder
from discopatch.calibration import share_interval
from discopatch.corruptions import CORRUPTIONS, corrupt
from discopatch.demo import TRAINING, crops, sample_photos
from discopatch.images import NamedImage, read_images
from discopatch.metrics import auroc
from discopatch.utils import write_json

SHARE, ALARMS, SEVERITY = 0.03, 0.05, 3
CLEAN = 2  # draws in which a folder without anomalous images is audited too
FITS = "all", "named left out", "anomalous left out"


def solar(rng: np.random.Generator, normal: int, anomalous: int) -> tuple[list[NamedImage], list[NamedImage]]:
    """Solar cells without and with a defect."""
    cells = labelled_cells(solar_folder())
    found = []
    for label, count in ((NORMAL_CELL, normal), (DEFECTIVE_CELL, anomalous)):
        paths = [str(cells[label][number].path) for number in rng.permutation(len(cells[label]))[:count]]
        found.append([each for each in read_images(paths) if isinstance(each, NamedImage)])
    return found[0], found[1]


def photos(rng: np.random.Generator, normal: int, anomalous: int) -> tuple[list[NamedImage], list[NamedImage]]:
    """Squares of six photos, and others, each with a random corruption of severity 3."""
    each = -(-(normal + anomalous) // len(TRAINING))
    squares = crops(sample_photos(TRAINING), each, size=256, seed=int(rng.integers(2**31)))
    squares = [squares[number] for number in rng.permutation(len(squares))[: normal + anomalous]]
    kinds = rng.choice(list(CORRUPTIONS), anomalous)
    changed = [
        NamedImage(f"{image.name} {kind}", corrupt(image.pixels, str(kind), SEVERITY, seed=number))
        for number, (image, kind) in enumerate(zip(squares[normal:], kinds, strict=True))
    ]
    return squares[:normal], changed


def measure(name: str, draw: int, images: int, tested: tuple[int, int]) -> dict[str, Any]:
    """One draw: what is named, and how the three detectors separate other images."""
    rng, bad = np.random.default_rng(draw), round(SHARE * images)
    normal, anomalous = {"solar": solar, "photos": photos}[name](rng, images + tested[0], bad + tested[1])
    folder, wrong = [*normal[: images - bad], *anomalous[:bad]], {each.name for each in anomalous[:bad]}
    folder = [folder[number] for number in rng.permutation(images)]
    start = time.perf_counter()
    names = {each.name for each in audit(folder, seed=draw).unsupported}
    row: dict[str, Any] = {"draw": draw, "seconds": time.perf_counter() - start, "anomalous": bad, "images": images}
    row |= {"found": len(names & wrong), "named normal": len(names - wrong)}
    if draw < CLEAN:
        row["named of clean"] = len(audit(normal[:images], seed=draw).unsupported)
    left_out = dict(zip(FITS, (set[str](), names, wrong), strict=True))
    for fit in FITS:
        if same := next((each for each in FITS if each in row and left_out[each] == left_out[fit]), None):
            row[fit] = row[same]
            continue
        detector = Detector(seed=draw, resolution=256, false_alarm_rate=ALARMS, reason_images=0, detection_images=0)
        with warnings.catch_warnings(action="ignore"):
            detector.fit(folder, exclude=sorted(left_out[fit]))
        usual, unusual = detector.score(normal[images:]), detector.score(anomalous[bad:])
        cut = np.sort(usual)[-1 - int(ALARMS * len(usual))]
        row[fit] = {"auroc": auroc(usual, unusual), "found at 5 %": float((unusual > cut).mean())}
        row[fit] |= {
            name: float((each > detector.threshold_).mean())
            for name, each in (("flagged", unusual), ("false alarms", usual))
        }
    return row


def interval(values: list[float]) -> list[float]:
    """The mean over draws and its 95 % interval (Student)."""
    width = t.ppf(0.975, len(values) - 1) * np.std(values, ddof=1) / len(values) ** 0.5 if len(values) > 1 else 0.0
    return [float(np.mean(values)), float(np.mean(values) - width), float(np.mean(values) + width)]


def pooled(counts: list[int], images: list[int]) -> list[float]:
    """The share of all draws together in per cent, and its exact 95 % interval."""
    return [100 * each for each in (sum(counts) / sum(images), *share_interval(sum(counts), sum(images)))]


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Means over draws with intervals, and gains over the fit on all images, in per cent and points."""
    found: dict[str, Any] = {
        "draws": len(rows),
        "anomalous found": pooled([each["found"] for each in rows], [each["anomalous"] for each in rows]),
        "normal named": pooled(
            [each["named normal"] for each in rows], [each["images"] - each["anomalous"] for each in rows]
        ),
        "clean named": pooled(
            [each["named of clean"] for each in rows[:CLEAN]], [each["images"] for each in rows[:CLEAN]]
        ),
    }
    for fit in FITS:
        for key in rows[0][fit]:
            found[f"{fit}: {key}"] = interval([100 * each[fit][key] for each in rows])
            if fit != "all":
                found[f"{fit}: gain in {key}"] = interval([100 * (each[fit][key] - each["all"][key]) for each in rows])
    return found


def main(
    out: Annotated[Path, typer.Option()],
    only: str = "solar,photos",
    draws: int = 5,
    images: int = 200,
    normal: int = 100,
    anomalous: int = 80,
) -> None:
    for name in only.split(","):
        results = json.loads(out.read_text()) if out.exists() else {}
        rows = results.get(name, {}).get("draws", [])
        for draw in range(len(rows), draws):
            rows.append(measure(name, draw, images, (normal, anomalous)))
            print(name, rows[-1], flush=True)
            results[name] = {"draws": rows, "summary": summary(rows)}
            write_json(out, results)


if __name__ == "__main__":
    typer.run(main)
