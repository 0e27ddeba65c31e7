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
from discopatch.images.cache import Progress, absolute_name
from discopatch.images.image import DEFAULT_LIMITS, Limits, Refusal, RefusalReason, RefusalReport
from discopatch.images.items import FileRange, Item
from discopatch.images.source import list_entries
from discopatch.images.tar import EMPTY_ARCHIVE, TarReader, TarShard, check_member, is_listed
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
    def read(cls, shard: TarShard, limits: Limits) -> Self:
        """Passes the headers of the shard; where it is damaged, what comes before stays."""
        places: list[tuple[int, int]] = []
        names: list[bytes] = []
        refusals: list[Refusal] = []

        def refuse(name: str, error: ImageError) -> None:
            refusals.append(Refusal(name, error.reason, error.detail))

        try:
            with TarReader(shard.place) as archive:
                if archive.is_compressed:
                    raise ParameterError(f"{shard.name} is compressed, and cannot be read from its middle: {_REMEDY}")
                for member in filter(is_listed, archive):
                    try:
                        check_member(member, limits)
                    except ImageError as error:
                        refuse(f"{shard.name}/{member.name}", error)
                    else:
                        places.append((member.offset, member.size))
                        names.append(os.fsencode(member.name))
        except ParameterError:
            raise
        except Exception as error:
            refuse(shard.name, shard.refused(error))
        if not places and not refusals:
            refuse(shard.name, ImageError(RefusalReason.MISSING, EMPTY_ARCHIVE))
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

    shards: list[TarShard]
    starts: NDArray[np.int64]  # (shards + 1,): the number of each shard's first image
    offsets: NDArray[np.int64]
    sizes: NDArray[np.int64]
    name_ends: NDArray[np.int64]
    names: bytes
    report: RefusalReport
    digest: str

    @classmethod
    def join(cls, shards: list[TarShard], listings: Iterable[Listing], limits: Limits) -> Self:
        """The index of all shards from those of each; NoImagesError where no image is left."""
        found = list(listings)
        report = RefusalReport()
        digest = hashlib.sha256(json.dumps([_FORMAT, limits.max_bytes]).encode())
        for shard, listing in zip(shards, found, strict=True):
            digest.update(json.dumps([shard.place.name, listing.digest]).encode())
            report.accepted += len(listing.offsets)
            for refusal in listing.refusals:
                report.add(refusal)
        if not report.accepted:
            raise report.nothing_left()
        return cls(
            shards,
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
        shard = self.shards[int(np.searchsorted(self.starts, number, side="right")) - 1]
        begin = int(self.name_ends[number - 1]) if number else 0
        name = os.fsdecode(self.names[begin : int(self.name_ends[number])])
        return Item(f"{shard.name}/{name}", FileRange(shard.place, int(self.offsets[number]), int(self.sizes[number])))


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
    shards = tar_shards(source, limits)
    listings: list[Listing] = []
    with ThreadPoolExecutor(workers, thread_name_prefix="discopatch-index") as pool:
        for listing in pool.map(partial(_listing, root=root, limits=limits), shards):
            listings.append(listing)
            if progress is not None:
                progress(len(listings), len(shards))
    return ShardIndex.join(shards, listings, limits)


def tar_shards(source: object, limits: Limits = DEFAULT_LIMITS) -> list[TarShard]:
    """The shards of the source; ParameterError where it holds anything else."""
    shards = []
    for entry in list_entries(source, limits):
        if not isinstance(entry, TarShard):
            if isinstance(entry, Item) and isinstance(entry.content, ImageError):
                raise ParameterError(f"{entry.name}: {entry.content}")
            raise ParameterError(f"{entry.name} is no tar shard, and only those are streamed: {_REMEDY}")
        shards.append(entry)
    return shards


def _listing(shard: TarShard, root: Path, limits: Limits) -> Listing:
    stored = root / "shards" / f"{_key(shard, limits)}.npz"
    listing = Listing.load(stored)
    if listing is None:
        listing = Listing.read(shard, limits)
        listing.save(stored)
    return listing


def _key(shard: TarShard, limits: Limits) -> str:
    named = json.dumps([_FORMAT, limits.max_bytes, absolute_name(shard.place), *shard.stamp])
    return hashlib.sha256(named.encode()).hexdigest()[:32]
