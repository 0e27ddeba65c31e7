"""Whether a faster decoder costs anything: AUROC with each, on the same files, fitted and scored with it.

python studies/decoders.py --photos train.tar --new test.tar [--solar FOLDER] --out decoders.json

Photos are taken as they are, and as JPEG files of 1024 x 1024. For each decoder a detector is fitted on normal files
that it reads, and scores new files and corrupted versions of what it reads of them. A default may be replaced only
where AUROC stays within 0.2 points; docs/performance.md has the table. The two are also compared as at a fit.
"""

import io
import json
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from PIL import Image

from discopatch import Detector
from discopatch.bench.tables.writers import markdown_table
from discopatch.corruptions import CORRUPTIONS, corrupt
from discopatch.images import Decoder, Limits, NamedImage, Pixels, read_images
from discopatch.images.source import list_source
from discopatch.metrics import auroc
from discopatch.pretrained import DEFAULT_WEIGHTS

Row = dict[str, Any]
COMPARED: tuple[Decoder, ...] = ("pillow", "scaled")
SIDE, QUALITY = 1024, 92
LIMIT = 0.002


def main(
    photos: Annotated[list[str], typer.Option(help="Normal photos: tar shards, folders.")],
    new: Annotated[list[str], typer.Option(help="Other photos of the same kind, to score.")],
    solar: Annotated[str | None, typer.Option(help="Normal images that are no JPEG files, split in two.")] = None,
    normal: Annotated[int, typer.Option(help="Images to fit on.")] = 400,
    test: Annotated[int, typer.Option(help="New images.")] = 100,
    severities: Annotated[str, typer.Option(help="Of the corruptions.")] = "1,3,5",
    weights: Annotated[str, typer.Option(help="Pretrained weights by name.")] = DEFAULT_WEIGHTS,
    out: Annotated[Path, typer.Option(help="JSON file.")] = Path("decoders.json"),
) -> None:
    """Prints a table, and writes all figures."""
    levels = [int(level) for level in severities.split(",")]
    sets: dict[str, tuple[list[bytes], list[bytes]]] = {}
    seen = encoded_files(photos, normal), encoded_files(new, test)
    sets["photos as they are"] = seen
    sets[f"photos, JPEG of {SIDE} x {SIDE}"] = enlarged(seen[0]), enlarged(seen[1])
    if solar is not None:
        both = encoded_files([solar], normal + test)
        sets["solar cells"] = both[:-test], both[-test:]
    found: dict[str, Any] = {"weights": weights, "normal": normal, "test": test, "severities": levels, "sets": {}}
    for name, (fitted, scored) in sets.items():
        found["sets"][name] = compare(fitted, scored, levels, weights)
        out.write_text(json.dumps(found, indent=2) + "\n")
    rows = [row for name, each in found["sets"].items() for row in table_rows(name, each, levels)]
    headings = ["images", "severity", *COMPARED, "difference", "within the limit"]
    print(markdown_table(headings, rows))
    for name, each in found["sets"].items():
        print(f"{name}: {each['parity_text']}")


def encoded_files(sources: Sequence[str], count: int) -> list[bytes]:
    """The bytes of the first files, whatever their format."""
    limits = Limits()
    items = islice(list_source(sources).items(limits), count)
    contents = (item.content.read_bytes() if isinstance(item.content, Path) else item.content for item in items)
    return [content for content in contents if isinstance(content, bytes)]


def enlarged(files: Sequence[bytes]) -> list[bytes]:
    """The middle of each as a JPEG of 1024 x 1024, with a little grain: enlarged alone, it would have none."""
    with ThreadPoolExecutor() as pool:
        return list(pool.map(enlarge, files, range(len(files))))


def enlarge(data: bytes, number: int) -> bytes:
    image = Image.open(io.BytesIO(data)).convert("RGB")
    side = min(image.size)
    left, top = (image.width - side) // 2, (image.height - side) // 2
    large = image.crop((left, top, left + side, top + side)).resize((SIDE, SIDE), Image.Resampling.LANCZOS)
    grain = np.random.default_rng(number).normal(0, 2, (SIDE, SIDE, 3))
    file = io.BytesIO()
    pixels = np.clip(np.asarray(large) + grain, 0, 255).astype(np.uint8)
    Image.fromarray(pixels).save(file, "JPEG", quality=QUALITY)
    return file.getvalue()


def compare(fitted: Sequence[bytes], scored: Sequence[bytes], levels: Sequence[int], weights: str) -> dict[str, Any]:
    """AUROC by decoder, severity and corruption; and what the comparison at fit says."""
    found: dict[str, Any] = {"auroc": {}}
    for decoder in COMPARED:
        detector = Detector(weights, decoder=decoder, false_alarm_rate=0.05, device="auto")
        detector.fit(list(fitted))
        squares = list(squares_of(detector, scored))
        clean = detector.score(squares)
        found["auroc"][decoder] = {
            str(level): {
                name: auroc(clean, detector.score(corrupted(squares, name, level))) for name in CORRUPTIONS
            }
            for level in levels
        }
        if detector.decoders_:
            found["parity"] = asdict(detector.decoders_[0])
            found["parity_text"] = detector.decoders_[0].text
    return found


def squares_of(detector: Detector, files: Sequence[bytes]) -> Iterator[Pixels]:
    for image in read_images(files, transform=detector.transform_):
        if isinstance(image, NamedImage):
            yield image.pixels


def corrupted(images: Sequence[Pixels], name: str, severity: int) -> list[Pixels]:
    return [corrupt(image, name, severity, seed=number) for number, image in enumerate(images)]


def table_rows(name: str, found: dict[str, Any], levels: Sequence[int]) -> Iterator[list[str]]:
    for level in levels:
        one, other = (float(np.mean(list(found["auroc"][each][str(level)].values()))) for each in COMPARED)
        yield [
            name,
            str(level),
            f"{one:.4f}",
            f"{other:.4f}",
            f"{other - one:+.4f}",
            "yes" if abs(other - one) <= LIMIT else "no",
        ]


if __name__ == "__main__":
    typer.run(main)
