"""Tar archives, read from front to back in bounded memory and time, whatever their headers claim.

tarfile reads a name or a pax header of any size that a header asks for; a megabyte of gzip holds a gigabyte of them.
"""

import gzip
import io
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import NamedTuple, Self

from discopatch.errors import ImageError
from discopatch.images.files import check_bytes, out_of_memory
from discopatch.images.formats import is_archive, is_image_name
from discopatch.images.image import Limits, RefusalReason
from discopatch.images.items import Item, Place, Shard, open_place

EMPTY_ARCHIVE = "no images in the archive: add some"

_BLOCK = 512
_END = b"\0" * _BLOCK
_GZIP = b"\x1f\x8b"
_EXTENDED = b"xgXLK"  # pax headers, global ones, Solaris's, GNU's long names and long links
_WITHOUT_DATA = b"123456"  # links, devices, folders, pipes: their size means nothing
_MAX_EXTENDED = 2**20  # bytes of headers before one member: a name and a few attributes take some thousands
_MAX_NAME = 4096  # bytes, as long as a path can be
_MAX_SIZE = 2**60
_CHUNK = 2**20
_BARREN, _RATIO = 2**28, 100  # how much of an archive may hold no image, if it is compressed better than that
_HEADER_PRICE = 2**12  # reading a header takes as long as passing so many bytes


class TarError(ValueError):
    """An archive is damaged, or would take too much to read."""


class Member(NamedTuple):
    """A member of an archive; `offset` is where its data begins in the archive when it is not compressed."""

    name: str
    size: int
    offset: int
    is_file: bool
    is_sparse: bool


class TarReader:
    """The members of a tar file, here or in a store, compressed by gzip or not; nothing is extracted.

    TarError where it is damaged or exceeds a bound; what was read before is not lost.
    """

    def __init__(self, place: Place) -> None:
        self._raw = open_place(place)
        try:
            self._length = self._raw.seek(0, io.SEEK_END)
            self._raw.seek(0)
            self.is_compressed = self._raw.read(len(_GZIP)) == _GZIP
            self._raw.seek(0)
        except BaseException:
            self._raw.close()
            raise
        self._file = gzip.GzipFile(fileobj=self._raw) if self.is_compressed else self._raw
        self._position = 0
        self._barren = self._last_raw = 0  # bytes since a member was last read, and where that was in the file

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._raw.close()

    def __iter__(self) -> Iterator[Member]:
        while (member := self._next()) is not None:
            yield member
            self._go_to(member.offset + _padded(member.size))

    def read(self, member: Member) -> bytes:
        """The data of the member at which the iteration is."""
        self._go_to(member.offset)
        data = self._take(member.size)
        self._barren, self._last_raw = 0, self._raw.tell()
        return data

    def _next(self) -> Member | None:
        """The next member, or None at the end mark."""
        long_name = pax_name = pax_size = None
        sparse = False
        extended = 0
        while (block := self._take(_BLOCK)) != _END:
            kind, size = _kind_and_size(block)
            self._barren += _HEADER_PRICE
            if kind not in _EXTENDED:
                break
            extended += _BLOCK + size
            if extended > _MAX_EXTENDED:
                raise TarError(f"more than {_MAX_EXTENDED:,} bytes of headers before one member")
            data = self._take(_padded(size))[:size]
            if kind == b"L":
                long_name = data.split(b"\0", 1)[0]
            elif kind in b"xX":
                for key, value in _pax_records(data):
                    sparse |= key.startswith(b"GNU.sparse.")
                    if key in (b"path", b"GNU.sparse.name"):
                        pax_name = value
                    elif key == b"size":
                        pax_size = _decimal(value)
        else:
            if extended:
                raise TarError("headers without a member")
            return None
        name = pax_name or long_name or _short_name(block)
        if len(name) > _MAX_NAME:
            raise TarError(f"a name of {len(name):,} bytes")
        if kind == b"S":
            sparse = True
            self._skip_sparse_map(block)
        is_file = kind in b"0\x007S" and not name.endswith(b"/")
        size = size if pax_size is None else pax_size
        if size > _MAX_SIZE:
            raise TarError(f"a member of {size} bytes")
        stored = 0 if kind in _WITHOUT_DATA else size
        return Member(name.decode(errors="surrogateescape"), stored, self._position, is_file, sparse)

    def _skip_sparse_map(self, block: bytes) -> None:
        """Passes the blocks that say where the holes of an old GNU sparse member are."""
        more = block[482]
        for _ in range(_MAX_EXTENDED // _BLOCK):
            if not more:
                return
            more = self._take(_BLOCK)[504]
        raise TarError(f"more than {_MAX_EXTENDED:,} bytes of headers before one member")

    def _take(self, count: int) -> bytes:
        """The next `count` bytes, all of them."""
        if not self.is_compressed and self._position + count > self._length:
            raise TarError("no end mark")
        try:
            data = self._file.read(count)
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise TarError(str(error)) from error
        if len(data) < count:
            raise TarError("no end mark")
        self._position += count
        self._barren += count
        is_barren = self.is_compressed and self._barren > _BARREN
        if is_barren and self._barren > _RATIO * (self._raw.tell() - self._last_raw):
            raise TarError(f"much without an image, compressed more than {_RATIO}-fold")
        return data

    def _go_to(self, position: int) -> None:
        if not self.is_compressed:
            self._position = position
            self._raw.seek(position)
        while self._position < position:
            self._take(min(_CHUNK, position - self._position))


@dataclass(frozen=True, slots=True)
class TarShard(Shard):
    """A tar archive of images, the layout of WebDataset, read as a stream."""

    place: Place

    def _images(self, limits: Limits) -> Iterator[Item]:
        """Nothing is extracted, so a member's path is only a name."""
        found = False
        with TarReader(self.place) as archive:
            for member in archive:
                if is_listed(member):
                    found = True
                    yield Item(f"{self.name}/{member.name}", _member_content(archive, member, limits))
        if not found:
            yield Item(self.name, ImageError(RefusalReason.MISSING, EMPTY_ARCHIVE))


def is_listed(member: Member) -> bool:
    """Whether a member of an archive is an image by its name, or refused in the place of some; hidden ones are not."""
    if not member.is_file or member.name.rpartition("/")[2].startswith("."):
        return False
    return is_image_name(member.name) or is_archive(member.name)


def check_member(member: Member, limits: Limits) -> None:
    """Raises ImageError where a member of an archive is refused before it is read."""
    if is_archive(member.name):
        raise ImageError(RefusalReason.UNSUPPORTED, "an archive inside an archive, which is not read: unpack it")
    if member.is_sparse:
        raise ImageError(RefusalReason.UNSUPPORTED, "a member with holes: pack the archive without tar's --sparse")
    check_bytes(member.size, limits)


def _member_content(archive: TarReader, member: Member, limits: Limits) -> bytes | ImageError:
    try:
        check_member(member, limits)
    except ImageError as error:
        return error
    try:
        return archive.read(member)
    except MemoryError:
        return out_of_memory(member.size)


def _kind_and_size(block: bytes) -> tuple[bytes, int]:
    """What a header is for, and how many bytes follow it; TarError unless its checksum is right."""
    blank = block[:148] + b" " * 8 + block[156:]
    missing = _sum(blank[:256]) + _sum(blank[256:]) - _number(block[148:156])
    if missing and missing != 256 * sum(byte > 127 for byte in blank):  # some writers add signed bytes
        raise TarError("bad checksum of a header")
    return block[156:157], _number(block[124:136])


def _sum(few: bytes) -> int:
    """The sum of up to 256 bytes, ten times as fast as `sum`: adler32 has it in its lower half, plus one."""
    return (zlib.adler32(few) & 0xFFFF) - 1


def _number(field: bytes) -> int:
    """An octal number, or a binary one where the first bit is set."""
    if field[0] & 0x80:
        if field[0] & 0x40:
            raise TarError("a negative number in a header")
        return int.from_bytes(field) - (0x80 << 8 * (len(field) - 1))
    text = field.split(b"\0", 1)[0].strip()
    if text.strip(b"01234567"):
        raise TarError("no number where a header has one")
    return int(text or b"0", 8)


def _short_name(block: bytes) -> bytes:
    name = block[:100].split(b"\0", 1)[0]
    prefix = block[345:500].split(b"\0", 1)[0] if block[257:263] == b"ustar\0" else b""
    return prefix + b"/" + name if prefix else name


def _pax_records(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    place = 0
    while place < len(data):
        space = data.find(b" ", place, place + 20)
        end = place + _decimal(data[place:space]) if space > place else 0
        if not space < end <= len(data) or data[end - 1] != ord("\n"):
            raise TarError("a damaged pax header")
        key, _, value = data[space + 1 : end - 1].partition(b"=")
        yield key, value
        place = end


def _decimal(text: bytes) -> int:
    if not text.isdigit() or len(text) > 20:
        raise TarError("no number where a pax header has one")
    return int(text)


def _padded(size: int) -> int:
    return -(-size // _BLOCK) * _BLOCK
