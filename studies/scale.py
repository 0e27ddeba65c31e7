"""Many images on one machine: linearity of time, constancy of memory, and the cost of decoders.

python studies/scale.py images --count 100000 --weights natural-small-v1 --patches 4 --page docs/scale.md
python studies/scale.py decoders --page docs/scale.md

Images are crops of sample photos as JPEG in tar shards, each of some thousands over and over. `images` asks about time
and memory, which a network that takes long would only hide; `decoders` takes the default one. Results go to
docs/results/scale.json, each under its name.
"""

import io
import json
import os
import tarfile
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import numpy as np
import torch
import typer
from PIL import Image

from common import write_between
from discopatch import Detector
from discopatch.batch import Run, score_to
from discopatch.bench.cost import peak_mib
from discopatch.images import Decoder, NamedImage, Transform, read_images
from discopatch.images.samples import PHOTOS, TRAINING, crops, sample_photos
from discopatch.pretrained import DEFAULT_WEIGHTS
from discopatch.utils import write_json
from gpu_decode import jpeg_files, write_shards

OUT = Path("docs/results/scale.json")
DISTINCT = 2_500  # images that stand in all shards
PASSES = 5  # over a shard, of which the fastest counts: other work on the machine only adds
SHARDS = 40  # of the run, so that there are as many moments to compare
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
    """Scores so many images into Parquet, and notes time and memory after every shard."""
    detector = Detector(weights, patches=patches or "dense", device="cpu").fit(photos(fit, seed=0))
    moments: list[dict[str, float]] = []

    def note(run: Run) -> None:
        if run.parts > len(moments):
            moments.append({"images": run.images, "seconds": run.seconds, "MiB": resident_mib()})

    with TemporaryDirectory() as place:
        make_shards(Path(place) / "shards", count)
        run = score_to(detector, Path(place) / "shards", Path(place) / "scores", progress=note)
        written = sum(path.stat().st_size for path in (Path(place) / "scores").iterdir())
    done, seconds = (np.array([each[name] for each in moments]) for name in ("images", "seconds"))
    slope, start = np.polyfit(done, seconds, 1)
    found = {
        "made": made(),
        "weights": weights,
        "patches": patches or "dense",
        "images": run.images,
        "seconds": round(run.seconds, 1),
        "images a second": round(run.rate, 1),
        "largest distance from a line, % of the time": round(
            100 * float(np.abs(seconds - slope * done - start).max() / seconds[-1]), 2
        ),
        "MiB after a tenth": round(moments[len(moments) // 10]["MiB"]),
        "MiB at the end": round(moments[-1]["MiB"]),
        "peak MiB": round(peak_mib()),
        "bytes an image": round(written / run.images),
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
    """As Markdown: a row a figure, or a row for each decoder."""
    if name == "decoders":
        ways = {key: value for key, value in found.items() if isinstance(value, dict) and key != "made"}
        columns = list(next(iter(ways.values())))
        rows = [["decoder", *columns], ["---"] * (1 + len(columns))]
        rows += [[f"`{key}`", *(f"{value[column]:,}" for column in columns)] for key, value in ways.items()]
        return "\n".join(f"| {' | '.join(row)} |" for row in rows)
    figures = [(key, value) for key, value in found.items() if not isinstance(value, dict | list)]
    return "\n".join(["| | |", "|---|---|", *(f"| {key} | {shown(value)} |" for key, value in figures)])


def shown(value: object) -> str:
    return f"{value:,}" if isinstance(value, int | float) else str(value)


if __name__ == "__main__":
    app()
