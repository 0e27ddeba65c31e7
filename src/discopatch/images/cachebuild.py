"""A cache in the making: every picture reaches the disk once, whatever interrupts."""

import errno
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path
from typing import IO

from discopatch.files import sync_folder, write_json
from discopatch.images.picture import Picture, Reason, Refusal
from discopatch.images.pixelcache import FORMAT, PixelCache, map_pixels
from discopatch.images.refusals import RefusalReport
from discopatch.images.transform import Transform

Progress = Callable[[int, int | None], None]  # images done, images in all where that is known

_BATCH = 64  # images between two syncs: what a crash can cost
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class CacheFullError(OSError):
    """The disk cannot hold the cache."""


@dataclass(slots=True)
class Build:
    """A cache in the making. Pixels reach the disk before their line in the journal, so a line is true."""

    folder: Path
    transform: Transform
    names: list[str] = field(default_factory=list)
    report: RefusalReport = field(default_factory=RefusalReport)

    @classmethod
    def resume(cls, folder: Path, transform: Transform) -> "Build":
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
        """The pictures, one after the other."""
        return self.folder / "pixels.bin"

    @property
    def journal(self) -> Path:
        """A line for every image that was read, accepted or refused."""
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
            raise self.report.nothing_left()
        digest = self._digest()
        index = {
            "format": FORMAT,
            "transform": self.transform.to_dict(),
            "digest": digest,
            "report": self.report.to_dict(),
            "names": self.names,
        }
        with self._full_disk_explained():
            write_json(self.folder / "index.json", index)
        self.folder.rename(finished)
        sync_folder(finished.parent)
        (finished / self.journal.name).unlink()
        return PixelCache(
            self.names,
            map_pixels(finished, len(self.names), self.transform.size),
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
