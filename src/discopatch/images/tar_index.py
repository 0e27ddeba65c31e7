"""Where every image of tar shards lies, so that each can be read by itself: nothing is decoded, only headers are read.

root/shards/<key>.npz   the index of one shard; the key names the file, its size and time of change, and the limits
"""

import hashlib
import json
import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Self
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from discopatch.errors import ImageError, ParameterError
from discopatch.images.cache import Progress
from discopatch.images.files import FileRange
from discopatch.images.image import DEFAULT_LIMITS, Limits, Refusal, RefusalReason, RefusalReport
from discopatch.images.source import EMPTY_ARCHIVE, Item, Shard, archive_error, check_member, is_listed, list_entries
from discopatch.images.tar import TarError, TarReader
from discopatch.images.workers import DEFAULT_WORKERS
from discopatch.utils import write_atomically

_FORMAT = 1
_REMEDY = "pack the images in plain tar files, or leave out --stream (--no-stream decodes them into the cache)"


@dataclass(frozen=True, eq=False, slots=True)
class Listing:
    """The images of one shard, and what of it was refused unread."""

    offsets: NDArray[np.int64]  # of the images' bytes in the shard
    sizes: NDArray[np.int64]
    lengths: NDArray[np.int64]  # of the names
    names: bytes  # one after the other
    refusals: list[Refusal]

    @classmethod
    def read(cls, path: Path, limits: Limits) -> Self:
        """Passes the headers of the shard; where it is damaged, what comes before stays."""
        places: list[tuple[int, int]] = []
        names: list[bytes] = []
        refusals: list[Refusal] = []

        def refuse(name: str, error: ImageError) -> None:
            refusals.append(Refusal(name, error.reason, error.detail))

        try:
            with TarReader(path) as archive:
                if archive.is_compressed:
                    raise ParameterError(f"{path} is compressed, and cannot be read from its middle: {_REMEDY}")
                for member in filter(is_listed, archive):
                    try:
                        check_member(member, limits)
                    except ImageError as error:
                        refuse(f"{path}/{member.name}", error)
                    else:
                        places.append((member.offset, member.size))
                        names.append(os.fsencode(member.name))
        except ParameterError:
            raise
        except (ImageError, OSError, TarError) as error:
            refuse(str(path), archive_error(error))
        if not places and not refusals:
            refuse(str(path), ImageError(RefusalReason.MISSING, EMPTY_ARCHIVE))
        offsets, sizes = np.array(places, np.int64).reshape(-1, 2).T.copy()
        return cls(offsets, sizes, np.array([len(name) for name in names], np.int64), b"".join(names), refusals)

    @classmethod
    def load(cls, path: Path) -> Self | None:
        """One that was stored, or None where there is none or it is damaged."""
        try:
            with path.open("rb") as file, np.load(file, allow_pickle=False) as stored:
                offsets, sizes, lengths = (stored[name].astype(np.int64) for name in ("offsets", "sizes", "lengths"))
                names, refused = stored["names"].tobytes(), json.loads(stored["refused"].tobytes())
            found = [Refusal(name, RefusalReason(reason), detail) for name, reason, detail in refused]
            sound = len(offsets) == len(sizes) == len(lengths) and lengths.sum() == len(names)
            return cls(offsets, sizes, lengths, names, found) if sound else None
        except (OSError, EOFError, ValueError, LookupError, TypeError, BadZipFile):
            return None

    def save(self, path: Path) -> None:
        refused = json.dumps([[each.name, each.reason, each.detail] for each in self.refusals]).encode()
        arrays = {
            "offsets": self.offsets,
            "sizes": self.sizes,
            "lengths": self.lengths,
            "names": np.frombuffer(self.names, np.uint8),
            "refused": np.frombuffer(refused, np.uint8),
        }

        def write(partial: Path) -> None:
            with partial.open("wb") as file:
                np.savez(file, **arrays)  # type: ignore[arg-type]  # its stubs take any keyword for a flag

        write_atomically(path, write, durable=False)  # a lost one is made again

    @property
    def digest(self) -> str:
        """That of names, sizes and places."""
        digest = hashlib.sha256(self.names)
        for array in (self.offsets, self.sizes, self.lengths):
            digest.update(array.tobytes())
        return digest.hexdigest()


@dataclass(frozen=True, eq=False, slots=True)
class ShardIndex:
    """The images of all shards, numbered in the order of the source; none is read. About 50 bytes an image.

    `digest` is that of the names, sizes and places of all images, wherever the shards lie.
    """

    paths: list[Path]  # of the shards
    starts: NDArray[np.int64]  # (shards + 1,): the number of each shard's first image
    offsets: NDArray[np.int64]
    sizes: NDArray[np.int64]
    name_ends: NDArray[np.int64]
    names: bytes
    report: RefusalReport
    digest: str

    @classmethod
    def join(cls, paths: list[Path], listings: Iterable[Listing], limits: Limits) -> Self:
        """The index of all shards from those of each; NoImagesError where no image is left."""
        found = list(listings)
        report = RefusalReport()
        digest = hashlib.sha256(json.dumps([_FORMAT, limits.max_bytes]).encode())
        for path, listing in zip(paths, found, strict=True):
            digest.update(json.dumps([path.name, listing.digest]).encode())
            report.accepted += len(listing.offsets)
            for refusal in listing.refusals:
                report.add(refusal)
        if not report.accepted:
            raise report.nothing_left()
        return cls(
            paths,
            np.array([0, *accumulate(len(each.offsets) for each in found)], np.int64),
            np.concatenate([each.offsets for each in found]),
            np.concatenate([each.sizes for each in found]),
            np.cumsum(np.concatenate([each.lengths for each in found])),
            b"".join(each.names for each in found),
            report,
            digest.hexdigest(),
        )

    def __len__(self) -> int:
        return len(self.offsets)

    @property
    def counts(self) -> NDArray[np.int64]:
        """How many images each shard has."""
        return np.diff(self.starts)

    def item(self, number: int) -> Item:
        """One image, which is read where it is decoded."""
        shard = int(np.searchsorted(self.starts, number, side="right")) - 1
        begin = int(self.name_ends[number - 1]) if number else 0
        name = os.fsdecode(self.names[begin : int(self.name_ends[number])])
        path = self.paths[shard]
        return Item(f"{path}/{name}", FileRange(path, int(self.offsets[number]), int(self.sizes[number])))


def open_index(
    source: object,
    root: Path,
    *,
    limits: Limits = DEFAULT_LIMITS,
    workers: int = DEFAULT_WORKERS,
    progress: Progress | None = None,
) -> ShardIndex:
    """The index of the tar shards of `source`, each made on the first call and found in `root` on every later one.

    ParameterError where the source holds anything else than tar shards, or compressed ones.
    """
    paths = shard_paths(source, limits)
    listings: list[Listing] = []
    with ThreadPoolExecutor(workers, thread_name_prefix="discopatch-index") as pool:
        for listing in pool.map(partial(_listing, root=root, limits=limits), paths):
            listings.append(listing)
            if progress is not None:
                progress(len(listings), len(paths))
    return ShardIndex.join(paths, listings, limits)


def shard_paths(source: object, limits: Limits = DEFAULT_LIMITS) -> list[Path]:
    """The paths of the shards; ParameterError where the source holds anything else."""
    paths = []
    for entry in list_entries(source, limits):
        if not isinstance(entry, Shard):
            if isinstance(entry.content, ImageError):
                raise ParameterError(f"{entry.name}: {entry.content}")
            raise ParameterError(f"{entry.name} is no tar shard, and only those are streamed: {_REMEDY}")
        paths.append(entry.path)
    return paths


def _listing(path: Path, root: Path, limits: Limits) -> Listing:
    stored = root / "shards" / f"{_key(path, limits)}.npz"
    listing = Listing.load(stored)
    if listing is None:
        listing = Listing.read(path, limits)
        listing.save(stored)
    return listing


def _key(path: Path, limits: Limits) -> str:
    try:
        status = path.stat()
        stamp = [status.st_size, status.st_mtime_ns]
    except OSError:
        stamp = []
    named = json.dumps([_FORMAT, limits.max_bytes, str(path.absolute()), *stamp])
    return hashlib.sha256(named.encode()).hexdigest()[:32]
