"""Decode once, train many times: transformed images as raw bytes in a file that is mapped into memory.

root/<key>/pixels.bin, index.json       a finished cache; the key names the files and the transform
root/<key>.partial/pixels.bin, journal  one that is being built; a build that was killed goes on from here
root/<key>.lock                         held while building
"""

import errno
import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, field
from itertools import islice
from math import prod
from pathlib import Path
from typing import IO

import numpy as np

from discopatch.errors import FULL, CacheFullError, ImageError
from discopatch.images.image import DEFAULT_LIMITS, Limits, NamedImage, Pixels, Refusal, RefusalReason, RefusalReport
from discopatch.images.items import Item, Shard, absolute_name, stamp_of
from discopatch.images.source import Source, list_source
from discopatch.images.stores import StorePath
from discopatch.images.tar import Progress
from discopatch.images.transform import Transform
from discopatch.images.workers import DEFAULT_WORKERS, Workers, read_images
from discopatch.utils import file_digest, locked, remove_leftovers, sync_folder, write_json

_FORMAT = 1
_BATCH = 64  # images between two syncs: what a crash can cost
INDEX, JOURNAL = "index.json", "journal.jsonl"


@dataclass(frozen=True, eq=False, slots=True)
class PixelCache:
    """Transformed images, ready for training; `digest` is that of all pixels, wherever the files lie."""

    names: list[str]
    pixels: Pixels  # (N, size, size, 3), read-only, mapped into memory
    transform: Transform
    report: RefusalReport
    digest: str


def cache_root() -> Path:
    """The user's own cache folder."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "discopatch"


def open_cache(
    source: object,
    transform: Transform,
    root: Path,
    *,
    workers: Workers = DEFAULT_WORKERS,
    limits: Limits = DEFAULT_LIMITS,
    progress: Progress | None = None,
) -> PixelCache:
    """The images of `source` through `transform`, decoded on the first call and reused on every later one.

    Files count as unchanged while path, size and time of change are the same; images in memory go by content.
    An iterator is held in memory, because it is read twice. NoImagesError when every image was refused.
    """
    again = list_source(source).repeatable(limits)
    key, total = _identify(again, transform, limits)
    finished = Path(root) / key
    cache = _load(finished)
    if cache is not None:
        return cache
    with locked(finished.with_name(f"{key}.lock")):
        cache = _load(finished)  # another process may have built it while this one waited
        if cache is not None:
            return cache
        shutil.rmtree(finished, ignore_errors=True)
        partial = finished.with_name(f"{key}.partial")
        if _load(partial) is not None:
            return _publish(partial, finished)
        build = _Build.resume(partial, transform)
        build.check_space(total)
        rest = read_images(again, transform=transform, workers=workers, skip=build.done, limits=limits)
        with closing(rest):
            build.extend(rest, progress=progress or (lambda done, total: None), total=total)
        return build.finish(finished)


def find_cache(source: object, transform: Transform, root: Path, limits: Limits = DEFAULT_LIMITS) -> PixelCache | None:
    """The finished cache of images on disk, or None where it would have to be built."""
    return _load(Path(root) / _identify(list_source(source), transform, limits)[0])


def _load(folder: Path) -> PixelCache | None:
    """A finished cache, or None when there is none or it is damaged."""
    try:
        index = json.loads((folder / INDEX).read_text())
        if index["format"] != _FORMAT:
            return None
        transform = Transform.from_dict(index["transform"])
        report = RefusalReport.from_dict(index["report"])
        shape = (len(index["names"]), transform.size, transform.size, 3)
        path = folder / "pixels.bin"
        if path.stat().st_size != prod(shape):
            return None
        pixels = np.memmap(path, dtype=np.uint8, mode="r", shape=shape)
        return PixelCache(index["names"], pixels, transform, report, index["digest"])
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return None


def _identify(source: Source, transform: Transform, limits: Limits) -> tuple[str, int | None]:
    """The key of the cache, and the number of images unless shards hide it."""
    digest = hashlib.sha256(json.dumps([_FORMAT, transform.digest, asdict(limits)]).encode())
    for entry in source.entries(limits):
        digest.update(json.dumps(_identity(entry, limits)).encode())
    return digest.hexdigest()[:32], source.count


def _identity(entry: Item | Shard, limits: Limits) -> list[str | int]:
    if isinstance(entry, Shard):
        within = entry.name.removeprefix(str(entry.place))
        return ["shard", absolute_name(entry.place) + within, *entry.stamp]
    if isinstance(entry.content, Path | StorePath):
        return ["file", absolute_name(entry.content), *stamp_of(entry.content)]
    try:
        pixels = np.array(entry.decode(limits))
    except ImageError as error:
        return ["refused", entry.name, error.reason]
    return ["memory", entry.name, *pixels.shape, hashlib.sha256(pixels.data).hexdigest()]


@dataclass(slots=True)
class _Build:
    """A cache that is being built: pixels reach the disk before their line in the journal, so a line is true."""

    folder: Path
    transform: Transform
    names: list[str] = field(default_factory=list)
    report: RefusalReport = field(default_factory=RefusalReport)

    @classmethod
    def resume(cls, folder: Path, transform: Transform) -> "_Build":
        """Goes on after the last whole record of a build that was interrupted, or begins."""
        folder.mkdir(exist_ok=True)
        build = cls(folder, transform)
        build.pixels.touch()
        build.journal.touch()
        records = build.pixels.stat().st_size // build.record_size
        valid = 0
        for line in build.journal.read_bytes().splitlines(keepends=True):
            note = _parse(line)
            if note is None or ("reason" not in note and len(build.names) == records):
                break
            build._count(note)
            valid += len(line)
        os.truncate(build.journal, valid)
        os.truncate(build.pixels, len(build.names) * build.record_size)
        return build

    @property
    def pixels(self) -> Path:
        """The images, one after the other."""
        return self.folder / "pixels.bin"

    @property
    def journal(self) -> Path:
        """A line for every image that was read, accepted or refused."""
        return self.folder / JOURNAL

    @property
    def record_size(self) -> int:
        """Bytes of one image."""
        return self.transform.size**2 * 3

    @property
    def done(self) -> int:
        """How many images need not be read again, accepted or refused."""
        return len(self.names) + self.report.count

    def check_space(self, total: int | None) -> None:
        """Refuses to begin what cannot end, unless shards hide the number of images."""
        needed = 0 if total is None else (total - self.done) * self.record_size
        free = shutil.disk_usage(self.folder).free
        if needed > free:
            raise CacheFullError(
                errno.ENOSPC,
                f"the cache needs {needed / 1e6:,.1f} MB, {free / 1e6:,.1f} MB are free: "
                "free some or choose another root",
                str(self.folder),
            )

    def extend(self, stream: Iterator[NamedImage | Refusal], *, progress: Progress, total: int | None) -> None:
        """Writes what the stream still brings."""
        progress(self.done, total)
        with self._full_disk_explained(), self.pixels.open("ab") as pixels, self.journal.open("ab") as journal:
            while batch := list(islice(stream, _BATCH)):
                notes = [asdict(item) if isinstance(item, Refusal) else {"name": item.name} for item in batch]
                pixels.writelines(item.pixels.data for item in batch if isinstance(item, NamedImage))
                _sync(pixels)
                journal.writelines(json.dumps(note).encode() + b"\n" for note in notes)
                _sync(journal)
                for note in notes:
                    self._count(note)
                progress(self.done, total)

    @contextmanager
    def _full_disk_explained(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if error.errno not in FULL:
                raise
            raise CacheFullError(
                error.errno,
                f"disk full after {self.done} images: free some space and call again, it goes on from there",
                str(self.folder),
            ) from error

    def _count(self, note: Mapping[str, str]) -> None:
        """Takes over one line of the journal."""
        if "reason" in note:
            self.report.add(Refusal(note["name"], RefusalReason(note["reason"]), note["detail"]))
        else:
            self.names.append(note["name"])
            self.report.accepted += 1

    def finish(self, finished: Path) -> PixelCache:
        """Writes the index; the whole folder appears under its final name in one rename, or not at all."""
        if not self.names:
            shutil.rmtree(self.folder)
            raise self.report.nothing_left()
        index = {
            "format": _FORMAT,
            "transform": self.transform.to_dict(),
            "digest": file_digest(self.pixels),
            "report": self.report.to_dict(),
            "names": self.names,
        }
        with self._full_disk_explained():
            write_json(self.folder / INDEX, index)
        return _publish(self.folder, finished)


def _publish(partial: Path, finished: Path) -> PixelCache:
    """The cache under its final name, with pixels and index alone."""
    remove_leftovers(partial)
    (partial / JOURNAL).unlink(missing_ok=True)
    partial.rename(finished)
    sync_folder(finished.parent)
    cache = _load(finished)
    assert cache is not None
    return cache


def _parse(line: bytes) -> dict[str, str] | None:
    """A line of the journal; None when it was cut short by a crash."""
    try:
        note: dict[str, str] = json.loads(line)
    except ValueError:
        return None
    return note if line.endswith(b"\n") else None


def _sync(file: IO[bytes]) -> None:
    file.flush()
    os.fsync(file.fileno())
