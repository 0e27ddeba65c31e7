"""Tar shards of images: read as a stream, or image by image through an index of offsets.

root/shards/<key>.npz   the index of one shard; the key names the file, its size and time of change, and the limits
"""

import gzip
import hashlib
import json
import os
import tarfile
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import IO, Self
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from discopatch.errors import ImageError, ParameterError
from discopatch.images.formats import is_archive, is_image_name
from discopatch.images.image import Limits, Refusal, RefusalReason, RefusalReport, check_bytes
from discopatch.images.items import FileRange, Item, Place, Shard, absolute_name, open_place, out_of_memory
from discopatch.utils import write_atomically

Progress = Callable[[int, int | None], object]  # shards or images done, and in all where that is known

_FORMAT = 1
_GZIP = b"\x1f\x8b"
_MAX_HEADERS = 2**20  # bytes before one member; a name and a few attributes take some thousands
_END = bytes(tarfile.BLOCKSIZE)
NOT_STREAMED = "pack the images in plain tar files, or leave out --stream (--no-stream decodes them into the cache)"


class _TarFile:
    """The bytes of an archive; headers before one member are bounded, and the last block that was read is kept."""

    def __init__(self, file: IO[bytes]) -> None:
        self.seek, self.tell, self._read = file.seek, file.tell, file.read
        self.headers, self.last = 0, b""

    def read(self, size: int) -> bytes:
        self.headers += size
        if self.headers > _MAX_HEADERS:
            raise tarfile.ReadError(f"more than {_MAX_HEADERS:,} bytes of headers before one member")
        self.last = self._read(size)
        return self.last

    def read_data(self, member: tarfile.TarInfo) -> bytes:
        self.seek(member.offset_data)
        data = self._read(member.size)
        if len(data) < member.size:
            raise tarfile.ReadError("unexpected end of data")
        return data


@contextmanager
def open_archive(place: Place) -> Iterator[tuple[Iterator[tarfile.TarInfo], _TarFile, bool]]:
    """The regular files of an archive in order, its bytes, and whether it is compressed; nothing is extracted.

    The iteration raises an error where the archive is damaged; tarfile alone would take that for its end.
    """
    with open_place(place) as raw:
        is_compressed = raw.read(2) == _GZIP
        raw.seek(0)
        with gzip.GzipFile(fileobj=raw) if is_compressed else raw as file:
            data = _TarFile(file)
            yield _members(data), data, is_compressed


def _members(data: _TarFile) -> Iterator[tarfile.TarInfo]:
    with tarfile.open(fileobj=data, mode="r:", encoding="utf-8") as archive:  # type: ignore[call-overload]
        before = -1
        while (member := archive.next()) is not None:
            if member.offset <= before or member.size < 0:
                raise tarfile.ReadError("a header that leads backwards")
            before, data.headers = member.offset, 0
            archive.members.clear()  # or memory would grow with the archive
            if member.isreg():
                yield member
    if data.last != _END:
        raise tarfile.ReadError("no end mark")


def is_listed(member: tarfile.TarInfo) -> bool:
    """Whether a member is an image by its name, or an archive, which is refused; hidden files are left out."""
    hidden = member.name.rpartition("/")[2].startswith(".")
    return not hidden and (is_image_name(member.name) or is_archive(member.name))


def check_member(member: tarfile.TarInfo, limits: Limits) -> None:
    """Raises ImageError where a member is refused before it is read."""
    if is_archive(member.name):
        raise ImageError(RefusalReason.UNSUPPORTED, "an archive inside an archive, which is not read: unpack it")
    if member.issparse():
        raise ImageError(RefusalReason.UNSUPPORTED, "a member with holes: pack the archive without tar's --sparse")
    check_bytes(member.size, limits)


@dataclass(frozen=True, slots=True)
class TarShard(Shard):
    """A tar archive of images, the layout of WebDataset, read as a stream."""

    place: Place

    def images(self, limits: Limits, chosen: frozenset[int] | None = None) -> Iterator[Item]:
        number = -1
        with open_archive(self.place) as (members, data, _):
            for number, member in enumerate(filter(is_listed, members)):
                name, content = f"{self.name}/{member.name}", b""
                if chosen is None or number in chosen:
                    content = _content(member, data, limits)
                yield Item(name, content)
        if number < 0:
            yield Item(self.name, _empty())


def _content(member: tarfile.TarInfo, data: _TarFile, limits: Limits) -> bytes | ImageError:
    try:
        check_member(member, limits)
        return data.read_data(member)
    except ImageError as error:
        return error
    except MemoryError:
        return out_of_memory(member.size)


def _empty() -> ImageError:
    return ImageError(RefusalReason.MISSING, "no images in the archive: add some")


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
        """Reads the headers of the shard; where it is damaged, the images before that stay."""
        places: list[tuple[int, int]] = []
        names: list[bytes] = []
        refusals: list[Refusal] = []
        try:
            with open_archive(shard.place) as (members, _, is_compressed):
                if is_compressed:
                    raise ParameterError(
                        f"{shard.name} is compressed, and cannot be read from its middle: {NOT_STREAMED}"
                    )
                for member in filter(is_listed, members):
                    try:
                        check_member(member, limits)
                    except ImageError as error:
                        refusals.append(Refusal(f"{shard.name}/{member.name}", error.reason, error.detail))
                    else:
                        places.append((member.offset_data, member.size))
                        names.append(os.fsencode(member.name))
            if not places and not refusals:
                raise _empty()
        except ParameterError:
            raise
        except Exception as error:  # files of any making
            refused = shard.refusal(error)
            refusals.append(Refusal(shard.name, refused.reason, refused.detail))
        offsets, sizes = np.array(places, np.int64).reshape(-1, 2).T.copy()
        return cls(offsets, sizes, np.array([len(name) for name in names], np.int64), b"".join(names), refusals)

    @classmethod
    def load(cls, path: Path) -> Self | None:
        """A stored listing, or None where there is none or it is damaged."""
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
        """The digest of names, sizes and places."""
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
        """Number of images of each shard."""
        return np.diff(self.starts)

    def item(self, number: int) -> Item:
        """One image, which is read where it is decoded."""
        shard = self.shards[int(np.searchsorted(self.starts, number, side="right")) - 1]
        begin = int(self.name_ends[number - 1]) if number else 0
        name = os.fsdecode(self.names[begin : int(self.name_ends[number])])
        return Item(f"{shard.name}/{name}", FileRange(shard.place, int(self.offsets[number]), int(self.sizes[number])))


def index_shards(
    shards: list[TarShard],
    root: Path,
    *,
    limits: Limits,
    workers: int,
    progress: Progress | None = None,
) -> ShardIndex:
    """The index of tar shards, each made on the first call and found in `root` on every later one."""
    listings: list[Listing] = []
    with ThreadPoolExecutor(workers, thread_name_prefix="discopatch-index") as pool:
        for listing in pool.map(partial(_listing, root=root, limits=limits), shards):
            listings.append(listing)
            if progress is not None:
                progress(len(listings), len(shards))
    return ShardIndex.join(shards, listings, limits)


def _listing(shard: TarShard, root: Path, limits: Limits) -> Listing:
    named = json.dumps([_FORMAT, limits.max_bytes, absolute_name(shard.place), *shard.stamp])
    stored = root / "shards" / f"{hashlib.sha256(named.encode()).hexdigest()[:32]}.npz"
    listing = Listing.load(stored)
    if listing is None:
        listing = Listing.read(shard, limits)
        listing.save(stored)
    return listing
