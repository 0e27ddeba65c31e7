"""Helpers of several studies: sample files, timing, tables."""

import io
import statistics
import tarfile
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from PIL import Image

from discopatch.bench.tables import markdown_table
from discopatch.demo import PHOTOS, sample_photos
from discopatch.images import NamedImage, Pixels, Transform, read_images

if TYPE_CHECKING:
    from discopatch.heads import CombinedHead, Head

T = TypeVar("T")


def read_pixels(source: object, *, most: int | None = None, size: int = 256) -> Pixels:
    """(images, size, size, 3): the first images of the source, through the transform."""
    stream = read_images(source, transform=Transform(size=size))
    return np.stack([each.pixels for each in islice(stream, most) if isinstance(each, NamedImage)])


def jpeg_files(count: int, side: int, *, quality: int = 90) -> list[bytes]:
    """Square parts of sample photos as JPEG files, with noise of 3 levels, as enlarged parts are smooth."""
    rng, photos = np.random.default_rng(side), list(sample_photos(PHOTOS).values())
    found = []
    for number in range(count):
        photo = photos[number % len(photos)]
        length = int(rng.integers(200, min(photo.shape[:2]) + 1))
        top, left = (int(rng.integers(whole - length + 1)) for whole in photo.shape[:2])
        part = Image.fromarray(photo[top : top + length, left : left + length])
        large = np.asarray(part.resize((side, side), Image.Resampling.BICUBIC), np.float32)
        pixels = np.clip(large + rng.normal(0, 3, large.shape), 0, 255).astype(np.uint8)
        file = io.BytesIO()
        Image.fromarray(pixels).save(file, "JPEG", quality=quality)
        found.append(file.getvalue())
    return found


def write_shards(folder: Path, files: Sequence[bytes], count: int, *, per_shard: int = 1024) -> list[Path]:
    """`count` images in tar shards, each file again and again under other names."""
    folder.mkdir(parents=True)
    paths = []
    for first in range(0, count, per_shard):
        paths.append(folder / f"{first // per_shard:05}.tar")
        with tarfile.open(paths[-1], "w") as archive:
            for number in range(first, min(first + per_shard, count)):
                info = tarfile.TarInfo(f"{number:08}.jpg")
                info.size = len(files[number % len(files)])
                archive.addfile(info, io.BytesIO(files[number % len(files)]))
    return paths


def in_both_orders(names: Iterable[T], measure: Callable[[T], list[float]]) -> dict[T, list[float]]:
    """Measurements under each name, forwards and then backwards, so that drift is the same for all."""
    times: dict[T, list[float]] = {name: [] for name in names}
    for name in [*times, *reversed(times)]:
        times[name] += measure(name)
    return times


def milliseconds(seconds: Sequence[float]) -> tuple[float, str]:
    """The median in milliseconds, and the range from the shortest to the longest as text."""
    return statistics.median(seconds) * 1e3, f"{min(seconds) * 1e3:.3g}-{max(seconds) * 1e3:.3g}"


def compared_heads(head: "CombinedHead") -> "dict[str, Head]":
    """The heads of a comparison: the combined one and its parts."""
    from discopatch.heads import LogitHead

    return {"logit": LogitHead(), "statistics": head.statistics, "combined": head}


def print_rows(rows: Sequence[dict[str, Any]]) -> None:
    """Prints rows with the same keys as a Markdown table."""
    cells = [[f"{value:,.4g}" if isinstance(value, float) else str(value) for value in row.values()] for row in rows]
    print(markdown_table(list(rows[0]), cells))
