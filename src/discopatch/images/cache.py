"""Decode once, train many times: transformed images as raw bytes in a file that is mapped into memory.

root/<key>/pixels.bin, index.json   a finished cache; the key names the files and the transform
root/<key>.lock                     held while building
"""

import errno
import hashlib
import json
import os
import shutil
from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from discopatch.errors import ImageError, OutputError, ParameterError
from discopatch.images.image import DEFAULT_LIMITS, Limits, Pixels, RefusalReport, accepted
from discopatch.images.items import Item, stamp_of
from discopatch.images.shards import Shard
from discopatch.images.source import Entry, Source, list_source
from discopatch.images.stores import StorePath
from discopatch.images.transform import Transform
from discopatch.images.workers import DEFAULT_WORKERS, Workers, read_images
from discopatch.schema import read_fields
from discopatch.utils import file_digest, locked, output_errors, staged_folder, write_json

Progress = Callable[[int, int | None], object]  # images done, and in all where that is known

_FORMAT = 2
_PIXELS, _INDEX = "pixels.bin", "index.json"
_STEP = 64  # images between two calls of progress


@dataclass(frozen=True, eq=False, slots=True)
class PixelCache:
    """Transformed images, ready for training; `digest` is that of all pixels, wherever the files lie."""

    names: list[str]
    pixels: Pixels  # (N, size, size, 3), read-only, mapped into memory
    transform: Transform
    report: RefusalReport
    digest: str


def cache_root() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "discopatch"


def open_cache(
    source: object,
    transform: Transform,
    root: Path,
    *,
    workers: Workers = DEFAULT_WORKERS,
    limits: Limits = DEFAULT_LIMITS,
    progress: Progress | None = None,
    least: int = 0,
) -> PixelCache:
    """The images of `source` through `transform`, decoded on the first call and reused on every later one.

    Images whose short side is below `least` pixels are left out; ParameterError where that is all of them.
    Files count as unchanged while path, size and time of change are the same; images in memory go by content.
    An iterator is held in memory, because it is read twice. NoImagesError when every image was refused; OutputError
    where the disk cannot hold the cache.
    """
    listed = list_source(source).repeatable(limits)
    finished = Path(root) / _key(listed, transform, limits, least)
    if (cache := _load(finished)) is not None:
        return cache
    with locked(finished.with_suffix(".lock")):
        cache = _load(finished)  # another process may have built it in the meantime
        if cache is None:
            needed, free = (listed.count or 0) * transform.size**2 * 3, shutil.disk_usage(finished.parent).free
            if needed > free:
                detail = f"it needs {needed / 1e6:,.1f} MB, {free / 1e6:,.1f} MB are free"
                raise OutputError(errno.ENOSPC, detail, str(finished))
            _build(listed, transform, finished, workers, limits, progress or (lambda done, total: None), least)
            cache = _load(finished)
    assert cache is not None
    return cache


def _build(
    source: Source,
    transform: Transform,
    finished: Path,
    workers: Workers,
    limits: Limits,
    progress: Progress,
    least: int,
) -> None:
    """Writes the cache; the whole folder appears under its final name in one rename, or not at all."""
    names: list[str] = []
    report, done = RefusalReport(), 0
    with output_errors(finished), staged_folder(finished) as folder:
        progress(0, source.count)
        stream = read_images(source, transform=transform, workers=workers, limits=limits)
        with closing(stream), (folder / _PIXELS).open("wb") as file:
            for image in accepted(stream, report):
                done += 1
                if min(image.size) >= least:
                    file.write(image.pixels.data)
                    names.append(image.name)
                if done % _STEP == 0:
                    progress(done + report.count, source.count)
        progress(done + report.count, source.count)
        if not names:
            raise ParameterError(f"no image has a short side of at least {least} pixels: add larger ones")
        index = {
            "transform": transform.to_dict(),
            "digest": file_digest(folder / _PIXELS),
            "report": asdict(report),
            "names": names,
        }
        write_json(folder / _INDEX, index)


def _load(folder: Path) -> PixelCache | None:
    """A finished cache, or None when there is none or it is damaged."""
    try:
        index = json.loads((folder / _INDEX).read_text())
        transform = Transform.from_dict(index["transform"])
        report = read_fields(RefusalReport, index["report"], where="report")
        shape = (len(index["names"]), transform.size, transform.size, 3)
        pixels = np.memmap(folder / _PIXELS, dtype=np.uint8, mode="r", shape=shape)
        return PixelCache(index["names"], pixels, transform, report, index["digest"])
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return None


def _key(source: Source, transform: Transform, limits: Limits, least: int) -> str:
    digest = hashlib.sha256(json.dumps([_FORMAT, transform.digest, asdict(limits), least]).encode())
    for entry in source.entries(limits):
        digest.update(json.dumps(_identity(entry, limits)).encode())
    return digest.hexdigest()[:32]


def _identity(entry: Entry, limits: Limits) -> list[str | int]:
    place = entry.place if isinstance(entry, Shard) else entry.content
    if isinstance(place, Path | StorePath):
        read: list[str | int] = [str(entry.column), *sorted(entry.numbers or ())] if isinstance(entry, Shard) else []
        return [str(place.absolute() if isinstance(place, Path) else place), *stamp_of(place), *read]
    assert isinstance(entry, Item)
    try:
        pixels = np.array(entry.decode(limits))
    except ImageError as error:
        return ["refused", entry.name, error.reason]
    return ["memory", entry.name, *pixels.shape, hashlib.sha256(pixels.data).hexdigest()]
