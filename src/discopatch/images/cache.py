"""Decode once, train many times: transformed pictures as raw bytes in a file that is mapped into memory.

root/<key>/pixels.bin, index.json       a finished cache; the key names the files and the transform
root/<key>.partial/pixels.bin, journal  one in the making; a build that was killed goes on from here
root/<key>.lock                         held while building
"""

import errno
import hashlib
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, field
from itertools import islice
from math import prod
from pathlib import Path
from typing import IO

import numpy as np

from discopatch.files import sync_folder
from discopatch.images.item import Item
from discopatch.images.open import DEFAULT_WORKERS
from discopatch.images.open import open as open_images
from discopatch.images.picture import ImageRefused, Limits, NoImagesError, Picture, Pixels, Reason, Refusal
from discopatch.images.refusals import RefusalReport
from discopatch.images.shard import Shard
from discopatch.images.sources import entries
from discopatch.images.transform import Transform

Progress = Callable[[int, int | None], None]  # images done, images in all where that is known

_FORMAT = 1
_BATCH = 64  # images between two syncs: what a crash can cost
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class CacheFullError(OSError):
    """The disk cannot hold the cache."""


@dataclass(frozen=True, eq=False, slots=True)
class PixelCache:
    """Transformed pictures, ready for training; `digest` stands for all pixels, wherever the files lie."""

    names: list[str]
    pixels: Pixels  # (N, size, size, 3), read-only, mapped into memory
    transform: Transform
    report: RefusalReport
    digest: str


def default_root() -> Path:
    """The user's own cache folder."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "discopatch"


def open_cache(
    source: object,
    transform: Transform,
    root: Path,
    *,
    workers: int = DEFAULT_WORKERS,
    limits: Limits = Limits(),  # noqa: B008 - frozen
    progress: Progress | None = None,
) -> PixelCache:
    """The pictures of `source` through `transform`, decoded on the first call and reused on every later one.

    Files count as unchanged while path, size and time of change are the same; images in memory go by content.
    An iterator is held in memory, because it is read twice. NoImagesError when every image was refused.
    """
    again = list(source) if isinstance(source, Iterator) else source
    key, total = _identify(again, transform, limits)
    finished = Path(root) / key
    cache = _load(finished)
    if cache is not None:
        return cache
    with _locked(finished.with_name(f"{key}.lock")):
        cache = _load(finished)  # another process may have built it while this one waited
        if cache is not None:
            return cache
        shutil.rmtree(finished, ignore_errors=True)
        build = _Build.resume(finished.with_name(f"{key}.partial"), transform)
        build.check_space(total)
        rest = open_images(again, transform=transform, workers=workers, skip=build.done, limits=limits)
        with closing(rest):
            build.extend(rest, progress=progress or _silent, total=total)
        return build.finish(finished)


def _silent(done: int, total: int | None) -> None:
    pass


def _identify(source: object, transform: Transform, limits: Limits) -> tuple[str, int | None]:
    """The key of the cache, and the number of images unless shards hide it."""
    digest = hashlib.sha256(json.dumps([_FORMAT, transform.digest, asdict(limits)]).encode())
    number, shards = 0, 0
    for entry in entries(source):
        digest.update(json.dumps(_identity(entry, limits)).encode())
        number += 1
        shards += isinstance(entry, Shard)
    return digest.hexdigest()[:32], None if shards else number


def _identity(entry: Item | Shard, limits: Limits) -> list[str | int]:
    if isinstance(entry, Shard):
        return ["shard", str(entry.path), *_stamp(entry.path)]
    if isinstance(entry.content, Path):
        return ["file", entry.name, *_stamp(entry.content)]
    try:
        pixels = entry.decode(limits)
    except ImageRefused as refused:
        return ["refused", entry.name, refused.reason]
    return ["memory", entry.name, *pixels.shape, hashlib.sha256(pixels.data).hexdigest()]


def _stamp(path: Path) -> tuple[int, ...]:
    try:
        status = path.stat()
    except OSError:
        return ()
    return status.st_size, status.st_mtime_ns


def _load(folder: Path) -> PixelCache | None:
    """A finished cache, or None when there is none or it is damaged."""
    try:
        index = json.loads((folder / "index.json").read_text())
        transform = Transform.from_dict(index["transform"])
        report = RefusalReport.from_dict(index["report"])
        names, digest = index["names"], index["digest"]
        if index["format"] != _FORMAT:
            return None
        return PixelCache(names, _map(folder, len(names), transform.size), transform, report, digest)
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return None


def _map(folder: Path, number: int, size: int) -> Pixels:
    shape = (number, size, size, 3)
    path = folder / "pixels.bin"
    if path.stat().st_size != prod(shape):
        raise ValueError(f"{path} does not hold {number} pictures of {size} x {size}")
    return np.memmap(path, dtype=np.uint8, mode="r", shape=shape)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        if sys.platform != "win32":
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX)
        yield


@dataclass(slots=True)
class _Build:
    """A cache in the making. Pixels reach the disk before their line in the journal, so a line is true."""

    folder: Path
    transform: Transform
    names: list[str] = field(default_factory=list)
    report: RefusalReport = field(default_factory=RefusalReport)

    @classmethod
    def resume(cls, folder: Path, transform: Transform) -> "_Build":
        """Go on after the last whole record of a build that was interrupted, or begin."""
        folder.mkdir(exist_ok=True)
        build = cls(folder, transform)
        build.pixels.touch()
        build.journal.touch()
        whole = build.pixels.stat().st_size // build.record
        trusted = 0
        for line in build.journal.read_bytes().splitlines(keepends=True):
            note = _parse(line)
            if note is None or ("reason" not in note and len(build.names) == whole):
                break
            build.count(note)
            trusted += len(line)
        os.truncate(build.journal, trusted)
        os.truncate(build.pixels, len(build.names) * build.record)
        return build

    @property
    def pixels(self) -> Path:
        return self.folder / "pixels.bin"

    @property
    def journal(self) -> Path:
        return self.folder / "journal.jsonl"

    @property
    def record(self) -> int:
        """Bytes of one picture."""
        return self.transform.size**2 * 3

    @property
    def done(self) -> int:
        """Images that need not be read again, accepted or refused."""
        return len(self.names) + self.report.count

    def check_space(self, total: int | None) -> None:
        """Refuse to begin what cannot end; shards do not tell how many images they hold."""
        needed = 0 if total is None else (total - self.done) * self.record
        free = shutil.disk_usage(self.folder).free
        if needed > free:
            raise CacheFullError(
                errno.ENOSPC,
                f"the cache needs {_size(needed)}, {_size(free)} are free: free some or choose another root",
                str(self.folder),
            )

    def extend(self, stream: Iterator[Picture | Refusal], *, progress: Progress, total: int | None) -> None:
        """Write what the stream still brings."""
        progress(self.done, total)
        with (
            self._full_disk_explained(),
            self.pixels.open("ab") as pixels,
            self.journal.open("ab") as journal,
        ):
            while batch := list(islice(stream, _BATCH)):
                self._write(batch, pixels, journal)
                progress(self.done, total)

    @contextmanager
    def _full_disk_explained(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if error.errno not in _NO_SPACE:
                raise
            raise CacheFullError(
                error.errno,
                f"disk full after {self.done} images: free some space and call again, it goes on from there",
                str(self.folder),
            ) from error

    def _write(self, batch: list[Picture | Refusal], pixels: IO[bytes], journal: IO[bytes]) -> None:
        notes = [asdict(item) if isinstance(item, Refusal) else {"name": item.name} for item in batch]
        pixels.writelines(item.pixels.data for item in batch if isinstance(item, Picture))
        _sync(pixels)
        journal.writelines(json.dumps(note).encode() + b"\n" for note in notes)
        _sync(journal)
        for note in notes:
            self.count(note)

    def count(self, note: Mapping[str, str]) -> None:
        """Remember a line of the journal."""
        if "reason" in note:
            self.report.add(Refusal(note["name"], Reason(note["reason"]), note["detail"]))
        else:
            self.names.append(note["name"])
            self.report.accepted += 1

    def finish(self, finished: Path) -> PixelCache:
        """Write the index; the whole folder appears under its final name at one stroke, or not at all."""
        if not self.names:
            shutil.rmtree(self.folder)
            raise NoImagesError(f"nothing left to work with: {self.report.summary()}")
        digest = self._digest()
        index = {
            "format": _FORMAT,
            "transform": self.transform.to_dict(),
            "digest": digest,
            "report": self.report.to_dict(),
            "names": self.names,
        }
        with self._full_disk_explained(), (self.folder / "index.json").open("wb") as file:
            file.write(json.dumps(index).encode())
            _sync(file)
        self.folder.rename(finished)
        sync_folder(finished.parent)
        (finished / self.journal.name).unlink()
        return PixelCache(
            self.names,
            _map(finished, len(self.names), self.transform.size),
            self.transform,
            self.report,
            digest,
        )

    def _digest(self) -> str:
        with self.pixels.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()


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


def _size(count: int) -> str:
    return f"{count / 1e6:,.1f} MB"
