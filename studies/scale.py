"""Many images on one machine: whether time is linear and memory flat, and what decoders cost and change.

python studies/scale.py images --count 100000 --weights natural-small-v2     # docs/results/scale.json
python studies/scale.py plan --count 300000                                  # the same file
python studies/scale.py decoders --photos train.tar --new test.tar           # docs/results/decoders.json

`images` scores crops of sample photos, as JPEG in tar shards, some thousands over and over. `decoders` fits a detector
with each decoder and compares their AUROC on corrupted photos; a default may be replaced only where it stays within
0.2 points.
"""

import gc
import json
import os
import resource
import time
from dataclasses import replace
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import numpy as np
import typer

from common import jpeg_files, print_rows, write_shards
from discopatch import Detector
from discopatch.batch.plan import Listing, Part, from_lines, plan_parts, to_lines
from discopatch.corruptions import CORRUPTIONS, corrupt
from discopatch.demo import TRAINING, crops, sample_photos
from discopatch.images import Decoder, Limits, NamedImage, Transform, list_source, read_images
from discopatch.metrics import auroc
from discopatch.pretrained import DEFAULT_WEIGHTS, load_pretrained
from discopatch.utils import write_json

DISTINCT = 2_500  # images that are repeated in the shards
MOMENTS = 40  # at which time and memory are noted
COMPARED: tuple[Decoder, ...] = ("pillow", "scaled")
LIMIT = 0.002

app = typer.Typer(help=__doc__, no_args_is_help=True, add_completion=False)

Weights = Annotated[str, typer.Option(help="Released weights.")]
Out = Annotated[Path, typer.Option(help="JSON file of the results.")]


@app.command()
def images(
    count: Annotated[int, typer.Option(help="Images to score.")] = 100_000,
    fit: Annotated[int, typer.Option(help="Images to fit on.")] = 300,
    weights: Weights = DEFAULT_WEIGHTS,
    patches: Annotated[int | None, typer.Option(help="Patches of an image. Default: one dense pass.")] = None,
    out: Out = Path("docs/results/scale.json"),
) -> None:
    """Images a second in each part of a long run, and the memory that the process holds."""
    normal = crops(sample_photos(TRAINING), -(-fit // len(TRAINING)), size=256, seed=0)[:fit]
    detector = Detector(
        weights, patches=patches or "dense", false_alarm_rate=0.1, device="cpu", reason_images=0, detection_images=0
    )
    detector.fit(normal)
    rates, memory, step = [], [], max(1, count // MOMENTS)
    with TemporaryDirectory() as place:
        shards = write_shards(Path(place) / "shards", jpeg_files(min(DISTINCT, count), 512), count)
        stream = detector.predict_iter(shards)
        for _ in range(count // step):
            start = time.perf_counter()
            done = sum(1 for _ in islice(stream, step))
            rates.append(round(done / (time.perf_counter() - start), 1))
            memory.append(round(resident_mib()))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 2**10
    found = {"images": count, "cores": os.cpu_count(), "images/s": rates, "MiB": memory, "peak MiB": peak}
    results = json.loads(out.read_text()) if out.exists() else {}
    write_json(out, {**results, "images": found})
    half = len(rates) // 2
    print_rows(
        [
            {"part": name, "images/s": float(np.median(rates[part])), "MiB": float(np.median(memory[part]))}
            for name, part in (("first half", slice(max(1, half))), ("second half", slice(half, None)))
        ]
    )


@app.command()
def plan(
    count: Annotated[int, typer.Option(help="Names of loose images.")] = 300_000,
    out: Out = Path("docs/results/scale.json"),
) -> None:
    """Memory of a process for the plan of loose images: at most, while it lists them, and afterwards."""
    with TemporaryDirectory() as place:
        for number in range(count):
            path = Path(place) / f"camera-{number // 1000:03d}" / f"2026-11-{number % 28:02d}_{number:07d}.jpg"
            path.parent.mkdir(exist_ok=True)
            path.touch()
        before, peak = resident_mib(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        parts = list[Part]()
        for _ in range(2):  # the plan of the first process, and that of a second one
            planned = dict(enumerate(from_lines(to_lines(parts))))
            listing = Listing(list_source(place), Limits())
            parts, _, _ = plan_parts(listing, planned, set(), set(), 10_000, allow_missing=False)
            del listing, planned
            gc.collect()
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak
        after = {"bytes an image": round((resident_mib() - before) * 2**20 / count), "parts": len(parts)}
    results = json.loads(out.read_text()) if out.exists() else {}
    found = {"images": count, **after, "bytes an image, at most": round(most * 2**10 / count)}
    write_json(out, {**results, "plan": found})
    print_rows([found])


def resident_mib() -> float:
    """Memory that the process holds now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


@app.command()
def decoders(
    photos: Annotated[Path, typer.Option(help="Normal photos: a tar shard or a folder.")],
    new: Annotated[Path, typer.Option(help="Other photos of the same kind, to score.")],
    normal: Annotated[int, typer.Option(help="Images to fit on.")] = 400,
    test: Annotated[int, typer.Option(help="New images.")] = 100,
    severity: Annotated[list[int] | None, typer.Option(help="Of the corruptions. Default: 1, 3 and 5.")] = None,
    corruption: Annotated[list[str] | None, typer.Option(help="Default: all.")] = None,
    weights: Weights = DEFAULT_WEIGHTS,
    out: Out = Path("docs/results/decoders.json"),
) -> None:
    """AUROC by decoder, severity and corruption, on photos as they are."""
    found: dict[str, Any] = {"weights": weights, "normal": normal, "test": test, "auroc": {}}
    for decoder in COMPARED:
        transform = replace(load_pretrained(weights).transform, decoder=decoder)

        def some(source: Path, count: int, transform: Transform = transform) -> list[NamedImage]:
            stream = islice(read_images(str(source), transform=transform), count)
            return [each for each in stream if isinstance(each, NamedImage)]

        detector = Detector(weights, decoder=decoder, false_alarm_rate=0.05, reason_images=0, detection_images=0)
        detector.fit(some(photos, normal))
        squares = some(new, test)
        clean = detector.score(squares)

        def changed(name: str, level: int, squares: list[NamedImage] = squares) -> list[NamedImage]:
            return [NamedImage(each.name, corrupt(each.pixels, name, level, seed=i)) for i, each in enumerate(squares)]

        found["auroc"][decoder] = {
            f"{name}/{level}": auroc(clean, detector.score(changed(name, level)))
            for level in severity or (1, 3, 5)
            for name in corruption or CORRUPTIONS
        }
    write_json(out, found)
    one, other = (float(np.mean([*found["auroc"][each].values()])) for each in COMPARED)
    outcome = "within the limit" if abs(other - one) <= LIMIT else "beyond the limit"
    print(f"mean AUROC {one:.4f} with {COMPARED[0]}, {other:.4f} with {COMPARED[1]}: {outcome}")


if __name__ == "__main__":
    app()
