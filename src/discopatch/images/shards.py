"""Files with many images, read as a stream: tar archives in the layout of WebDataset, and Parquet tables.

A column of a table holds encoded images as bytes, or structs of `bytes` and `path` as Hugging Face `datasets` writes.
"""

import gzip
import io
import sys
import tarfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import IO, Any, NamedTuple

from discopatch.errors import DiscopatchError, ImageError
from discopatch.images.decode import SIGNATURE, is_archive, is_image_name, is_image_start, is_note, is_parquet
from discopatch.images.image import DEFAULT_LIMITS, Limits, RefusalReason, check_bytes
from discopatch.images.items import Item, Place, Reading, open_place, out_of_memory, stamp_of, unreadable
from discopatch.images.stores import StorePath
from discopatch.utils import escaped, require

# Where several columns could be meant, the first of these is taken.
IMAGE_COLUMNS = ("image", "img", "image_bytes", "bytes", "content", "data", "jpg", "jpeg", "png", "webp")
NAME_COLUMNS = ("name", "filename", "file_name", "path", "__key__", "key", "id", "image_id", "file", "uri")

MAX_NAME = 4096  # bytes, as long as a path can be
_BUFFER = 2**23  # bytes of one request to a store
_GZIP = b"\x1f\x8b"
_MAX_HEADERS = 2**20  # bytes before one member; a name and a few attributes take some thousands
_END = bytes(tarfile.BLOCKSIZE)
_SPLIT, _STORED = 2**17, 8  # bytes for each image of a range, above which an archive is split; times that in a store
_LONGEST = 200  # characters of a library's message about a damaged file


@dataclass(frozen=True, slots=True)
class Shard:
    """Many images in one file; it is small and holds nothing open, so that another process can read it.

    column: of a table, with the images; None for the usual one. Of an archive, the ends of the names of members that
        are read, such as "jpg" or "jpg,png"; None for all images.
    found: in a folder, where a table without images is left out.
    numbers: of the images that are read, from 0; None for all.
    offset: of an archive, the byte where the first of `numbers`, then a range, begins.
    reading: notes what is not read.
    """

    place: Place
    column: str | None = None
    found: bool = False
    numbers: frozenset[int] | range | None = None
    offset: int = 0
    reading: Reading = field(default_factory=Reading, compare=False, repr=False)

    @property
    def name(self) -> str:
        """The path or the URI, without the options of a store, which may be secret."""
        return str(self.place) if self.column is None else f"{self.place}#{self.column}"

    def count(self) -> int:
        """Number of all images; headers are read, but no image."""
        return sum(1 for _ in replace(self, numbers=range(0), reading=Reading())._entries(DEFAULT_LIMITS))

    def items(self, limits: Limits) -> Iterator[Item]:
        """The images in order; where the shard is damaged it is refused, and the images before that stay."""
        numbers = self.numbers[-1:] if isinstance(self.numbers, range) else self.numbers
        last = None if numbers is None else max(numbers, default=0)
        for number, item in enumerate(self._entries(limits), self.first):
            if item is not None:
                yield item
            if number == last:
                return

    @property
    def first(self) -> int:
        """The number of the first image from where an archive is read."""
        return self.numbers.start if self.offset and isinstance(self.numbers, range) else 0

    def is_read(self, number: int) -> bool:
        return self.numbers is None or number in self.numbers

    def _entries(self, limits: Limits) -> Iterator[Item | None]:
        """One entry for each image, None for those that are not read."""
        read = read_table if is_parquet(self.place.name) else read_archive
        try:
            yield from read(self, limits)
        except Exception as error:  # files of any making
            refusal = self._refusal(error)
            self.reading.damaged[self.name] = f"{refusal.reason}: {refusal}"
            yield Item(self.name, refusal)

    def _refusal(self, error: Exception) -> ImageError:
        if isinstance(error, ImageError):
            return error
        if isinstance(error, MemoryError):
            return ImageError(RefusalReason.TOO_LARGE, "no memory for its next part: write it in smaller parts")
        failed = isinstance(error, OSError) and (isinstance(self.place, StorePath) or error.errno is not None)
        if isinstance(error, DiscopatchError) or (failed and not isinstance(error, gzip.BadGzipFile)):
            return unreadable(error, self.place)
        said = escaped(str(error).partition("\n")[0])[:_LONGEST]
        detail = f"cut short or damaged ({said}): copy or write it again; what came before was read"
        return ImageError(RefusalReason.TRUNCATED, detail)


class Rows(NamedTuple):
    """Successive images of a shard; the last ones are read on to its end.

    first, images: the number of the first image, and how many they are.
    offset: of an archive, the byte where they begin.
    """

    first: int
    images: int
    offset: int
    is_last: bool

    def of(self, shard: Shard) -> Shard:
        """The shard of which these images are read."""
        stop = sys.maxsize if self.is_last else self.first + self.images
        return replace(shard, numbers=range(self.first, stop), offset=self.offset)


def split_shard(shard: Shard, most: int) -> list[Rows | None]:
    """The shard as ranges of about `most` images, of which only footers and headers are read; [None] for one range.

    A table is split between row groups, an archive between members, if it is large and not compressed. In an object
    store the headers cost a reading of the whole archive, so that only very large ones are split.
    """
    is_table = is_parquet(shard.place.name)
    least = most * _SPLIT * (_STORED if isinstance(shard.place, StorePath) else 1)
    if not is_table and (stamp_of(shard.place) or (0,))[0] <= least:
        return [None]
    begun, number = [(0, 0)], 0  # number and offset of the first image of each range
    with suppress(Exception):  # of a damaged file the last range is read up to the damage
        for images, offset in _groups(shard) if is_table else _counted_members(shard):
            if begun[-1][0] < number > begun[-1][0] + most - max(images, 1):
                begun.append((number, offset))
            number += images
    if begun[-1][0] == number > 0:  # what follows are no images
        begun.pop()
    ends = [*(first for first, _ in begun[1:]), number]
    ranges = [Rows(each[0], end - each[0], each[1], each is begun[-1]) for each, end in zip(begun, ends, strict=True)]
    return [*ranges] if len(ranges) > 1 else [None]


def _groups(shard: Shard) -> Iterator[tuple[int, int]]:
    """The numbers of rows of the row groups of a table."""
    from pyarrow.parquet import ParquetFile

    with open_place(shard.place) as source:
        file = ParquetFile(source)
        find_columns(file.schema_arrow, shard.column)
        for group in range(file.metadata.num_row_groups):
            yield file.metadata.row_group(group).num_rows, 0


def _counted_members(shard: Shard) -> Iterator[tuple[int, int]]:
    """The number of images, 0 or 1, of each member of an archive, and the byte where it begins."""
    unnoted = replace(shard, reading=Reading())
    with open_place(shard.place) as opened:
        raw = io.BufferedReader(opened, _BUFFER) if isinstance(shard.place, StorePath) else opened
        if raw.read(len(_GZIP)) != _GZIP:
            raw.seek(0)
            data = _TarFile(raw)
            for member in _members(data):
                yield int(_is_listed(unnoted, member, data)), member.offset


# Tar archives.


class _TarFile:
    """The bytes of an archive; headers before one member are bounded, and the last block that was read is kept."""

    def __init__(self, file: IO[bytes] | gzip.GzipFile) -> None:
        self.seek, self.tell, self._read = file.seek, file.tell, file.read
        self.headers, self.last, self._begun = 0, b"", (-1, b"")

    def read(self, size: int) -> bytes:
        self.headers += size
        if self.headers > _MAX_HEADERS:
            raise tarfile.ReadError(f"more than {_MAX_HEADERS:,} bytes of headers before one member")
        self.last = self._read(size)
        return self.last

    def start_of(self, member: tarfile.TarInfo) -> bytes:
        """Its first bytes, which are kept: in a compressed archive the way back is long."""
        self.seek(member.offset_data)
        self._begun = member.offset_data, self._read(min(SIGNATURE, member.size))
        return self._begun[1]

    def read_data(self, member: tarfile.TarInfo) -> bytes:
        place, begun = self._begun if self._begun[0] == member.offset_data else (member.offset_data, b"")
        self.seek(place + len(begun))
        data = begun + self._read(member.size - len(begun))
        if len(data) < member.size:
            raise tarfile.ReadError("unexpected end of data")
        return data


def read_archive(shard: Shard, limits: Limits) -> Iterator[Item | None]:
    """The images of a tar archive, by names or first bytes of its members; hidden ones are left out.

    Nothing is extracted.
    """
    number, before = shard.first - 1, ""
    with open_place(shard.place) as opened:
        raw = io.BufferedReader(opened, _BUFFER) if isinstance(shard.place, StorePath) else opened
        is_compressed = raw.read(2) == _GZIP
        raw.seek(shard.offset)
        with gzip.GzipFile(fileobj=raw) if is_compressed else raw as file:
            data = _TarFile(file)
            listed = (each for each in _members(data) if _is_listed(shard, each, data))
            for number, member in enumerate(listed, shard.first):
                if not shard.reading.several and of_one_sample(before, member.name):
                    shard.reading.several = f"{shard.name}/{before}", f"{shard.name}/{member.name}"
                before, is_read = member.name, shard.is_read(number)
                yield Item(f"{shard.name}/{member.name}", _content(member, data, limits)) if is_read else None
    if number < 0:
        remedy = "add some" if shard.column is None else f"choose other members than {shard.column}"
        raise ImageError(RefusalReason.MISSING, f"no images in the archive: {remedy}")


def _members(data: _TarFile) -> Iterator[tarfile.TarInfo]:
    """The regular files in order; an error where the archive is damaged, which tarfile would take for its end."""
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


def _is_listed(shard: Shard, member: tarfile.TarInfo, data: _TarFile) -> bool:
    """Whether a member is an image by its name or first bytes, or an archive, which is refused."""
    name = member.name
    if name.rpartition("/")[2].startswith("."):
        return False
    if shard.column is not None:
        return sample_of(name)[1] in shard.column.lower().split(",")
    if is_image_name(name) or is_archive(name):
        return True
    if is_note(name) or member.issparse():
        return False
    if is_image_start(data.start_of(member)):
        return True
    shard.reading.pass_over(f"{shard.name}/{name}")
    return False


def sample_of(name: str) -> tuple[str, str]:
    """The sample of WebDataset that a member belongs to, and the end of its name from the first point on."""
    folder, slash, file = name.rpartition("/")
    key, _, end = file.partition(".")
    return f"{folder}{slash}{key}", end.lower()


def of_one_sample(name: str, other: str) -> bool:
    """Whether two images belong to one sample, such as 000.jpg and 000.seg.png; numbers with points are no samples."""
    (key, end), (other_key, other_end) = sample_of(name), sample_of(other)
    return key == other_key and end != other_end and "." not in min(end, other_end, key=len)


def _content(member: tarfile.TarInfo, data: _TarFile, limits: Limits) -> bytes | ImageError:
    if is_archive(member.name):
        return ImageError(RefusalReason.UNSUPPORTED, "an archive inside an archive, which is not read: unpack it")
    if member.issparse():
        return ImageError(RefusalReason.UNSUPPORTED, "a member with holes: pack the archive without tar's --sparse")
    try:
        check_bytes(member.size, limits)
        return data.read_data(member)
    except ImageError as error:
        return error
    except MemoryError:
        return out_of_memory(member.size)


# Parquet tables.


def read_table(shard: Shard, limits: Limits) -> Iterator[Item | None]:
    """The images of a Parquet table, a row at a time."""
    require("pyarrow", extra="parquet")
    from pyarrow.parquet import ParquetFile

    with open_place(shard.place) as source:
        file = ParquetFile(source, buffer_size=_BUFFER, pre_buffer=False, page_checksum_verification=True)
        try:
            columns = find_columns(file.schema_arrow, shard.column)
        except ImageError:
            if shard.found:
                shard.reading.pass_over(shard.name)
                return
            raise
        rows = range(0)
        for group in range(file.metadata.num_row_groups):
            rows = range(rows.stop, rows.stop + file.metadata.row_group(group).num_rows)
            if not any(map(shard.is_read, rows)):
                yield from (None for _ in rows)
                continue
            # A dictionary may hold one large image for all rows: several rows at once could take any memory.
            batches = file.iter_batches(1, row_groups=[group], columns=columns, use_threads=False)
            for row, batch in zip(rows, batches, strict=True):
                yield _row_item(shard, batch, columns, row) if shard.is_read(row) else None


def _row_item(shard: Shard, batch: Any, columns: list[str], row: int) -> Item:
    """The image of a batch of one row."""
    (found,) = batch.to_pylist()
    image = found[columns[0]]
    path, content = (image.get("path"), image["bytes"]) if isinstance(image, dict) else (None, image)
    name = found[columns[1]] if len(columns) > 1 else path
    text = "" if name is None else str(name)
    if content is None:
        content = ImageError(RefusalReason.EMPTY, "no image in this row")
    return Item(f"{shard.name}/{text if 0 < len(text) <= MAX_NAME else f'{row:06d}'}", content)


def find_columns(schema: Any, wanted: str | None) -> list[str]:
    """The column of images and, where there is one, that of names; ImageError, with the remedy, without images."""
    holding = [field.name for field in schema if _holds_images(field.type)]
    usual = [name for name in IMAGE_COLUMNS if name in holding] or (holding if len(holding) == 1 else [])
    image = wanted if wanted is not None else next(iter(usual), None)
    if image is None or image not in holding:
        names = ", ".join(escaped(name)[:40] for name in schema.names[:10])
        detail = f"no column of images{'' if wanted is None else ' ' + escaped(wanted)} (columns: {names})"
        raise ImageError(RefusalReason.UNSUPPORTED, f"{detail}: name the right one, as in photos.parquet#column")
    return [image, *[name for name in NAME_COLUMNS if name in schema.names and name != image][:1]]


def _holds_images(kind: Any) -> bool:
    from pyarrow import types

    kind = getattr(kind, "storage_type", kind)
    kind = kind.value_type if types.is_dictionary(kind) else kind
    if types.is_struct(kind):
        return any(field.name == "bytes" and _holds_images(field.type) for field in kind)
    return bool(types.is_binary(kind) or types.is_large_binary(kind) or types.is_binary_view(kind))
