"""Tar shards of images: read as a stream, or image by image through an index of offsets."""

import gzip
import hashlib
import json
import tarfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import IO

import numpy as np
from numpy.typing import NDArray

from discopatch.errors import ImageError, ParameterError
from discopatch.images.formats import is_archive, is_image_name
from discopatch.images.image import Limits, Refusal, RefusalReason, RefusalReport, check_bytes
from discopatch.images.items import FileRange, Item, Place, Shard, open_place, out_of_memory

Progress = Callable[[int, int | None], object]  # shards or images done, and in all where that is known

_FORMAT = 1
_GZIP = b"\x1f\x8b"
_MAX_HEADERS = 2**20  # bytes before one member; a name and a few attributes take some thousands
_END = bytes(tarfile.BLOCKSIZE)
NOT_STREAMED = "pack the images in plain tar files, or leave out --stream (--no-stream decodes them into the cache)"


class _TarFile:
    """The bytes of an archive; headers before one member are bounded, and the last block that was read is kept."""

    def __init__(self, file: IO[bytes] | gzip.GzipFile) -> None:
        self.seek, self.tell, self._read = file.seek, file.tell, file.read
        self.headers, self.last = 0, b""
        self.is_compressed = isinstance(file, gzip.GzipFile)

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
def open_archive(place: Place) -> Iterator[tuple[Iterator[tarfile.TarInfo], _TarFile]]:
    """The regular files of an archive in order, and its bytes; nothing is extracted.

    The iteration raises an error where the archive is damaged; tarfile alone would take that for its end.
    """
    with open_place(place) as raw:
        is_compressed = raw.read(2) == _GZIP
        raw.seek(0)
        with gzip.GzipFile(fileobj=raw) if is_compressed else raw as file:
            data = _TarFile(file)
            yield _members(data), data


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
        with open_archive(self.place) as (members, data):
            for number, member in enumerate(filter(is_listed, members)):
                is_read = chosen is None or number in chosen
                yield Item(f"{self.name}/{member.name}", _content(member, data, limits) if is_read else b"")
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
class ShardIndex:
    """The images of all shards, numbered in the order of the source; none is read. 16 bytes an image.

    `digest` is that of the sizes and places of all images, wherever the shards lie.
    """

    shards: list[TarShard]
    starts: NDArray[np.int64]  # (shards + 1,): the number of each shard's first image
    ranges: NDArray[np.int64]  # (images, 2): offset and size of each image in its shard
    report: RefusalReport
    digest: str

    def __len__(self) -> int:
        return len(self.ranges)

    @property
    def counts(self) -> NDArray[np.int64]:
        """Number of images of each shard."""
        return np.diff(self.starts)

    def item(self, number: int) -> Item:
        """One image, named after its place in the shard; it is read where it is decoded."""
        shard = self.shards[int(np.searchsorted(self.starts, number, side="right")) - 1]
        offset, size = map(int, self.ranges[number])
        return Item(f"{shard.name}@{offset}", FileRange(shard.place, offset, size))


def index_shards(
    shards: list[TarShard], *, limits: Limits, workers: int, progress: Progress | None = None
) -> ShardIndex:
    """The index of tar shards, of which the headers are read.

    NoImagesError where no image is left; ParameterError for a compressed shard.
    """
    report = RefusalReport()
    digest = hashlib.sha256(json.dumps([_FORMAT, limits.max_bytes]).encode())
    found: list[NDArray[np.int64]] = []
    with ThreadPoolExecutor(workers, thread_name_prefix="discopatch-index") as pool:
        for ranges, refusals in pool.map(partial(_read_ranges, limits=limits), shards):
            digest.update(json.dumps([shards[len(found)].place.name, len(ranges)]).encode() + ranges.tobytes())
            report.accepted += len(ranges)
            for refusal in refusals:
                report.add(refusal)
            found.append(ranges)
            if progress is not None:
                progress(len(found), len(shards))
    if not report.accepted:
        raise report.nothing_left()
    starts = np.cumsum([0, *map(len, found)])
    return ShardIndex(shards, starts, np.concatenate(found), report, digest.hexdigest())


def _read_ranges(shard: TarShard, limits: Limits) -> tuple[NDArray[np.int64], list[Refusal]]:
    """Reads the headers of the shard; where it is damaged, the images before that stay."""
    places: list[tuple[int, int]] = []
    refusals: list[Refusal] = []
    try:
        with open_archive(shard.place) as (members, data):
            if data.is_compressed:
                raise ParameterError(f"{shard.name} is compressed, and cannot be read from its middle: {NOT_STREAMED}")
            for member in filter(is_listed, members):
                try:
                    check_member(member, limits)
                    places.append((member.offset_data, member.size))
                except ImageError as error:
                    refusals.append(Refusal(f"{shard.name}/{member.name}", error.reason, error.detail))
        if not places and not refusals:
            raise _empty()
    except ParameterError:
        raise
    except Exception as error:  # files of any making
        refused = shard.refusal(error)
        refusals.append(Refusal(shard.name, refused.reason, refused.detail))
    return np.array(places, np.int64).reshape(-1, 2), refusals
