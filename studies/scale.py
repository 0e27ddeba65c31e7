"""Many images on one machine: whether time is linear and memory flat, what decoders, rescoring and float16 cost.

python studies/scale.py images --count 100000 --weights natural-small-v1 --patches 4 --page docs/scale.md
python studies/scale.py decoders --page docs/scale.md
python studies/scale.py rescore --rows 1000000 --page docs/scale.md
python studies/scale.py rounding --page docs/scale.md

Images are crops of sample photos as JPEG in tar shards, each of some thousands over and over. `images` asks about time
and memory, which a network that takes long would only hide; `decoders` takes the default one. Features for `rescore`
are made up, of the sizes that the default network has; its time does not depend on what they are. `rounding` takes
real ones. Results go to docs/results/scale.json, each under its name.
"""

import io
import json
import os
import tarfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import numpy as np
import torch
import typer
from numpy.typing import NDArray
from PIL import Image

from common import write_between
from discopatch import Detector
from discopatch.batch import PartScorer, Run, ScoresFolder, finish_part, open_store, rescore, score_to
from discopatch.batch.features import Column, Layout, stored_kinds
from discopatch.batch.folder import create_plan, first_listing
from discopatch.batch.manifest import MANIFEST
from discopatch.batch.plan import Part
from discopatch.batch.rescore import ROWS_TOGETHER, for_many_rows
from discopatch.batch.table import TableBuilder
from discopatch.bench.cost import peak_mib
from discopatch.encoders import Features
from discopatch.images import Decoder, NamedImage, Transform, read_images
from discopatch.images.samples import PHOTOS, TRAINING, crops, sample_photos
from discopatch.pretrained import DEFAULT_WEIGHTS
from discopatch.results import ComponentScore, Prediction
from discopatch.scorer import score_one_by_one
from discopatch.utils import write_json
from gpu_decode import jpeg_files, write_shards

OUT = Path("docs/results/scale.json")
DISTINCT = 2_500  # images that stand in all shards
PASSES = 5  # over a shard, of which the fastest counts: other work on the machine only adds
SHARDS = 40  # of the run, so that there are as many moments to compare
PER_PART = 10_000
app = typer.Typer(no_args_is_help=True)

Out = Annotated[Path, typer.Option(help="JSON file of the results.")]
Page = Annotated[Path | None, typer.Option(help="Page whose table is written anew.")]


@app.command()
def images(
    count: Annotated[int, typer.Option(help="Images to score.")] = 100_000,
    fit: Annotated[int, typer.Option(help="Images to fit on.")] = 300,
    weights: Annotated[str, typer.Option(help="Released weights.")] = DEFAULT_WEIGHTS,
    patches: Annotated[int | None, typer.Option(help="Of each image, instead of one pass over all of it.")] = None,
    out: Out = OUT,
    page: Page = None,
) -> None:
    """Scores so many images into Parquet, with features, and notes time and memory after every shard."""
    detector = Detector(weights, patches=patches or "dense", device="cpu").fit(photos(fit, seed=0))
    moments: list[dict[str, float]] = []

    def note(run: Run) -> None:
        if run.parts > len(moments):
            moments.append({"images": run.counts.images, "seconds": run.seconds, "MiB": resident_mib()})

    with TemporaryDirectory() as place:
        make_shards(Path(place) / "shards", count)
        run = score_to(detector, Path(place) / "shards", Path(place) / "scores", features=True, progress=note)
        written = sum(path.stat().st_size for path in (Path(place) / "scores").iterdir())
    done, seconds = (np.array([each[name] for each in moments]) for name in ("images", "seconds"))
    slope, start = np.polyfit(done, seconds, 1)
    found = {
        "made": made(),
        "weights": weights,
        "patches": patches or "dense",
        "images": run.counts.images,
        "seconds": round(run.seconds, 1),
        "images a second": round(run.rate, 1),
        "largest distance from a line, % of the time": round(
            100 * float(np.abs(seconds - slope * done - start).max() / seconds[-1]), 2
        ),
        "MiB after a tenth": round(moments[len(moments) // 10]["MiB"]),
        "MiB at the end": round(moments[-1]["MiB"]),
        "peak MiB": round(peak_mib()),
        "bytes an image": round(written / run.counts.images),
        "moments": [{name: round(value, 1) for name, value in each.items()} for each in moments],
    }
    store("images", found, out, page)


def seconds_to_read(shard: Path, transform: Transform) -> float:
    """Of one core, for an image."""
    began = time.perf_counter()
    read = sum(1 for _ in read_images([shard], transform=transform, workers=1))
    return (time.perf_counter() - began) / read


@app.command()
def decoders(
    count: Annotated[int, typer.Option(help="Images to score.")] = 1_500,
    side: Annotated[int, typer.Option(help="Of the images, in pixels.")] = 1024,
    fit: Annotated[int, typer.Option(help="Images to fit on.")] = 120,
    weights: Annotated[str, typer.Option(help="Released weights.")] = DEFAULT_WEIGHTS,
    out: Out = OUT,
    page: Page = None,
) -> None:
    """Scores JPEG files into Parquet by each decoder of a CPU, and notes how long a core takes to read an image."""
    files = jpeg_files(fit + DISTINCT // 10, side)
    found: dict[str, Any] = {"made": made(), "weights": weights, "images": count, "side": side}
    found["bytes an image"] = round(float(np.mean([*map(len, files)])))
    names: tuple[Decoder, ...] = ("pillow", "scaled")
    for decoder in names:
        detector = Detector(weights, decoder=decoder, device="cpu").fit(files[:fit])
        with TemporaryDirectory() as place:
            shards = write_shards(Path(place) / "shards", files[fit:], count)
            reading = min(seconds_to_read(shards[0], detector.transform_) for _ in range(PASSES))
            run = score_to(detector, shards, Path(place) / "scores")
            written = sum(path.stat().st_size for path in (Path(place) / "scores").iterdir())
        found[decoder] = {
            "ms of a core to read, decode and resize": round(1e3 * reading, 1),
            "images a second to Parquet": round(run.rate, 1),
            "bytes a row": round(written / count),
        }
    store("decoders", found, out, page)


@app.command(name="rescore")
def rescore_rows(
    rows: Annotated[int, typer.Option(help="Rows of features.")] = 1_000_000,
    fit: Annotated[int, typer.Option(help="Rows to fit on.")] = 600,
    threads: Annotated[int | None, typer.Option(help="Default: one a core.")] = None,
    out: Out = OUT,
    page: Page = None,
) -> None:
    """Writes rows of made-up features, and rescores them with another head and at another rate."""
    rng = np.random.default_rng(0)
    first, other = (Detector(DEFAULT_WEIGHTS, device="cpu", seed=seed) for seed in (0, 1))
    first.fit_features(made_up(rng, fit))
    other.fit_features(made_up(rng, fit))
    with TemporaryDirectory() as place:
        old = Path(place) / "scores"
        write_rows(old, first, made_up(rng, PER_PART), rows)
        size = sum(path.stat().st_size for path in old.iterdir())
        by_head = rescore(old, other, Path(place) / "head", threads=threads)
        by_rate = rescore(old, first.with_rate(0.2), Path(place) / "rate", threads=threads)
    found = {
        "made": made(),
        "rows": by_head.counts.images,
        "bytes a row": round(size / rows),
        "another head, seconds": round(by_head.seconds, 1),
        "another rate, seconds": round(by_rate.seconds, 1),
        "peak MiB": round(peak_mib()),
    }
    store("rescore", found, out, page)


@app.command()
def rounding(
    fit: Annotated[int, typer.Option(help="Images to fit on.")] = 300,
    count: Annotated[int, typer.Option(help="Images to compare, new ones.")] = 300,
    heads: Annotated[list[str], typer.Option("--head", help="Heads to compare.")] = ["components", "combined", "logit"],  # noqa: B006
    out: Out = OUT,
    page: Page = None,
) -> None:
    """Compares the scores of stored features with those of the features themselves, in units of the spread."""
    found: dict[str, Any] = {"made": made(), "images": count}
    for head in heads:
        detector = Detector(DEFAULT_WEIGHTS, head=head, device="cpu").fit(photos(fit, seed=0))
        places = "places" in detector.head_.needs
        scorer = detector.scorer_with(stored_kinds(detector, places=places))
        layout = Layout.of(scorer, places=places)
        features = Features.concatenate(
            [
                each.features  # type: ignore[union-attr]  # all are images
                for each in scorer.encoder.extract(photos(count, seed=1))
            ]
        )
        exact = score_one_by_one(detector.head_, features)
        plain = Layout(tuple(replace(column, centre=(), scale=()) for column in layout.columns))
        ways = {
            "float16, statistics from the mean": compared(detector, rounded(features, layout), exact),
            "float16 as they are": compared(detector, rounded(features, plain), exact),
            "float32": compared(detector, features, exact),
        }
        found[head] = {"bytes a row": layout.row_bytes, "needs": list(detector.head_.needs), **ways}
    store("rounding", found, out, page)


def rounded(features: Features, layout: Layout) -> Features:
    """What is left of features that were stored."""

    def stored(column: Column) -> NDArray[np.floating]:
        return column.decode(column.encode(getattr(features, column.kind)))

    return Features(**{column.kind: stored(column) for column in layout.columns})


def compared(detector: Detector, features: Features, exact: NDArray[np.float64]) -> dict[str, float]:
    """How far the scores of rows that pass together are from those of the images."""
    head = for_many_rows(detector.head_)
    starts = range(0, len(exact), ROWS_TOGETHER)
    scores = np.concatenate([head.score(features.select(slice(start, start + ROWS_TOGETHER))) for start in starts])
    distance = np.abs(scores - exact) / detector.calibration_scores_.std()
    changed = (scores > detector.threshold_) != (exact > detector.threshold_)
    return {"mean": float(distance.mean()), "largest": float(distance.max()), "decisions changed": int(changed.sum())}


def photos(count: int, *, seed: int) -> list[NamedImage]:
    """Crops of sample photos, in random order."""
    found = crops(sample_photos(TRAINING), -(-count // len(TRAINING)), size=256, seed=seed)
    return [found[place] for place in np.random.default_rng(seed).permutation(len(found))[:count]]


def make_shards(folder: Path, count: int) -> None:
    """So many JPEG images of 512 x 512 in tar shards; a few thousand of them are distinct."""
    distinct = crops(sample_photos(PHOTOS), -(-min(DISTINCT, count) // len(PHOTOS)), size=256, seed=2)
    encoded = []
    for image in distinct:
        content = io.BytesIO()
        Image.fromarray(image.pixels).resize((512, 512), Image.Resampling.BICUBIC).save(content, "JPEG", quality=90)
        encoded.append(content.getvalue())
    folder.mkdir()
    numbers = np.array_split(np.arange(count), min(SHARDS, count))
    for shard, own in enumerate(numbers):
        with tarfile.open(folder / f"{shard:04d}.tar", "w") as archive:
            for number in own.tolist():
                member = tarfile.TarInfo(f"{number:09d}.jpg")
                member.size = len(encoded[number % len(encoded)])
                archive.addfile(member, io.BytesIO(encoded[number % len(encoded)]))


def made_up(rng: np.random.Generator, count: int) -> Features:
    """Features of the sizes that the default network gives, correlated as those of images are."""
    factors = rng.normal(size=(count, 64)) @ np.random.default_rng(1).normal(size=(64, 1024)) / 8
    statistics = (2 + 0.3 * factors + 0.1 * rng.normal(size=(count, 1024))).astype(np.float32)
    logits = rng.normal(4, 1, (count, 256)).astype(np.float32)
    return Features(logits, statistics, np.abs(rng.normal(size=(count, 320))).astype(np.float32))


def write_rows(folder: Path, detector: Detector, features: Features, rows: int) -> None:
    """A folder of scores whose parts all have the same features."""
    parts = tuple(
        Part(number, tuple(f"{row:09d}.jpg" for row in range(start, min(start + PER_PART, rows))))
        for number, start in enumerate(range(0, rows, PER_PART))
    )
    place = open_store(folder)
    create_plan(place, parts, 0)
    manifest = replace(PartScorer(detector, features=True).manifest(PER_PART), source=first_listing(place))
    place.create(MANIFEST, manifest.to_json())
    scores = ScoresFolder(place, manifest, parts)
    none = tuple(ComponentScore(name, 0.0, False) for name in manifest.components)
    for part in parts:
        builder = TableBuilder(manifest.components, manifest.features)
        for own, predictions in in_pieces(part, none):
            builder.add(predictions, features.select(own))
        finish_part(scores, part, builder.table())


def in_pieces(part: Part, components: tuple[ComponentScore, ...]) -> Iterator[tuple[slice, list[Prediction]]]:
    for start in range(0, len(part.names), 500):
        own = slice(start, min(start + 500, len(part.names)))
        yield own, [Prediction(name, 0.0, 1.0, False, None, components) for name in part.names[own]]


def resident_mib() -> float:
    """Memory that the process holds now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def made() -> dict[str, Any]:
    return {"threads": torch.get_num_threads(), "cores": os.cpu_count(), "time": time.strftime("%Y-%m-%d")}


def store(name: str, found: dict[str, Any], out: Path, page: Path | None) -> None:
    """Puts the result beside the others in the file, prints it, and writes its table into the page."""
    results = json.loads(out.read_text()) if out.exists() else {}
    write_json(out, {**results, name: found})
    text = table(name, found)
    print(text)
    if page is not None:
        write_between(page, f"scale {name}", text)


def table(name: str, found: dict[str, Any]) -> str:
    """As Markdown: a row a figure, or a row for each decoder, or for each head and way of storing."""
    if name == "decoders":
        ways = {key: value for key, value in found.items() if isinstance(value, dict) and key != "made"}
        columns = list(next(iter(ways.values())))
        rows = [["decoder", *columns], ["---"] * (1 + len(columns))]
        rows += [[f"`{key}`", *(f"{value[column]:,}" for column in columns)] for key, value in ways.items()]
        return "\n".join(f"| {' | '.join(row)} |" for row in rows)
    if name != "rounding":
        figures = [(key, value) for key, value in found.items() if not isinstance(value, dict | list)]
        return "\n".join(["| | |", "|---|---|", *(f"| {key} | {shown(value)} |" for key, value in figures)])
    lines = [
        "| head | bytes a row | stored as | mean distance | largest | decisions changed |",
        "|---|---|---|---|---|---|",
    ]
    for head, each in found.items():
        if head in ("made", "images"):
            continue
        for way, values in each.items():
            if isinstance(values, dict):
                distances = f"{values['mean']:.2g} | {values['largest']:.2g}"
                lines.append(
                    f"| {head} | {each['bytes a row']:,} | {way} | {distances} | {values['decisions changed']} |"
                )
    return "\n".join(lines)


def shown(value: object) -> str:
    return f"{value:,}" if isinstance(value, int | float) else str(value)


if __name__ == "__main__":
    app()
