"""Images that are not decoded yet: files, ranges of files, bytes and arrays, and shards that hold many of them."""

import os
import stat
from abc import ABC, abstractmethod
from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass
from gzip import BadGzipFile
from pathlib import Path
from typing import IO, Any, TypeAlias, TypeGuard

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from discopatch.errors import DiscopatchError, ImageError
from discopatch.images.decode import rgb_from_array, rgb_from_bytes, rgb_from_image
from discopatch.images.formats import OTHER_FORMATS, SIGNATURE_LENGTH, identify, suffix_of
from discopatch.images.image import Limits, RefusalReason, check_bytes
from discopatch.images.stores import Stamp, StorePath, refusal_of
from discopatch.utils import escaped

Place: TypeAlias = Path | StorePath

_OPEN_FLAGS = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0)
_LONGEST = 200  # characters of a library's message about a damaged file


@dataclass(frozen=True, slots=True)
class FileRange:
    """Bytes inside a file, local or in a store, such as a member of a tar archive."""

    place: Place
    offset: int
    size: int


Content: TypeAlias = Path | StorePath | FileRange | bytes | Image.Image | NDArray[Any] | Exception


@dataclass(frozen=True, slots=True)
class Item:
    """One image that is not decoded yet; the content is an exception where it could not be reached."""

    name: str
    content: Content

    @property
    def size(self) -> int:
        """Number of bytes of an encoded image that are in memory already."""
        return len(self.content) if isinstance(self.content, bytes) else 0

    def encoded(self, limits: Limits) -> bytes | None:
        """The bytes of the file, or None for an image in memory as pixels; ImageError as in decode."""
        match self.content:
            case bytes():
                check_bytes(len(self.content), limits)
                return self.content
            case Path() | StorePath() as place:
                suffix = suffix_of(self.name)
                if suffix in OTHER_FORMATS:  # refused without reading all of it
                    identify(read_bytes(FileRange(place, 0, SIGNATURE_LENGTH), limits, whole=False), suffix)
                return read_bytes(place, limits)
            case FileRange():
                return read_bytes(self.content, limits)
            case Exception():
                raise self.content
            case _:
                return None

    def decode(self, limits: Limits, *, side: int | None = None) -> Image.Image:
        """The image in RGB, or ImageError; `side` as in `rgb_from_bytes`."""
        data = self.encoded(limits)
        if data is not None:
            return rgb_from_bytes(data, limits, suffix_of(self.name), side=side)
        if isinstance(self.content, Image.Image):
            return rgb_from_image(self.content, limits)
        assert isinstance(self.content, np.ndarray)
        return rgb_from_array(self.content, limits)


class Shard(ABC):
    """Many images in one file, read as a stream.

    It is small and holds nothing open, so that another process can read it; `read_images` takes it as a source.
    """

    __slots__ = ()

    place: Place

    @property
    def name(self) -> str:
        """The path or the URI, without the options of a store, which may be secret."""
        return str(self.place)

    @property
    def stamp(self) -> Stamp:
        """Size and time of change, empty where they are unknown; they differ once the shard was written again."""
        return stamp_of(self.place)

    def items(self, limits: Limits) -> Iterator[Item]:
        """The images in order; where the shard is damaged it is refused, and the images before that stay."""
        return self._refusing(self.images(limits))

    def count(self) -> int:
        """Number of entries that `items` gives; headers are read, but no image."""
        return sum(1 for _ in self._refusing(self.images(Limits(), frozenset())))

    @abstractmethod
    def images(self, limits: Limits, chosen: frozenset[int] | None = None) -> Iterator[Item]:
        """The images; those that are not among the `chosen` numbers are not read, and come as empty items.

        Any error means that the rest cannot be read.
        """

    def _refusing(self, images: Iterator[Item]) -> Iterator[Item]:
        try:
            yield from images
        except Exception as error:  # files of any making
            yield Item(self.name, self.refusal(error))

    def refusal(self, error: Exception) -> ImageError:
        """The refusal of a shard whose reading ended with this error."""
        if isinstance(error, ImageError):
            return error
        if isinstance(error, MemoryError):
            return ImageError(RefusalReason.TOO_LARGE, "no memory for its next part: write it in smaller parts")
        if isinstance(error, DiscopatchError):  # a missing package, a store that cannot be reached
            return ImageError(RefusalReason.UNREADABLE, str(error))
        if isinstance(error, OSError) and not isinstance(error, BadGzipFile):
            if isinstance(self.place, StorePath):
                return refusal_of(error, self.place)
            if error.errno is not None:
                return unreadable(error)
        said = escaped(str(error).partition("\n")[0])[:_LONGEST]
        detail = f"cut short or damaged ({said}): copy or write it again; what came before was read"
        return ImageError(RefusalReason.TRUNCATED, detail)


@dataclass(frozen=True, slots=True)
class SelectedShard(Shard):
    """Some images of a shard, by their numbers."""

    shard: Shard
    numbers: frozenset[int]

    @property
    def place(self) -> Place:  # type: ignore[override]
        return self.shard.place

    @property
    def name(self) -> str:
        return self.shard.name

    def images(self, limits: Limits, chosen: frozenset[int] | None = None) -> Iterator[Item]:
        left = len(self.numbers)
        found = self.shard.images(limits, self.numbers)
        for number, item in enumerate(found):
            if number in self.numbers:
                yield item
                left -= 1
            if not left:
                return


def open_shards(entries: Iterable[Item | Shard], limits: Limits) -> Generator[Item, None, None]:
    """The images of the entries, those of a shard in its place."""
    for entry in entries:
        if isinstance(entry, Shard):
            yield from entry.items(limits)
        else:
            yield entry


# Files.


def open_regular(path: Path) -> IO[bytes]:
    """The open file; ImageError unless it is a regular one, since reading a pipe or a device may never end."""
    try:
        file = os.fdopen(os.open(path, _OPEN_FLAGS), "rb")
    except (FileNotFoundError, NotADirectoryError):
        raise ImageError(RefusalReason.MISSING, "no such file: check the path") from None
    except OSError as error:
        raise unreadable(error) from error
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise ImageError(RefusalReason.UNREADABLE, "not a regular file")
    return file


def open_place(place: Place) -> IO[bytes]:
    """The open file, local or in a store; ImageError where it cannot be opened."""
    return place.open() if isinstance(place, StorePath) else open_regular(place)


def read_bytes(content: Place | FileRange, limits: Limits, *, whole: bool = True) -> bytes:
    """The bytes of a file or of a range, refused unread when there are too many; `whole` refuses a shorter file."""
    place, start = (content.place, content.offset) if isinstance(content, FileRange) else (content, 0)
    size = content.size if isinstance(content, FileRange) else 0
    with place.open_input() if isinstance(place, StorePath) else open_regular(place) as file:
        try:
            if not isinstance(content, FileRange):
                size = file.seek(0, os.SEEK_END)
            check_bytes(size, limits)
            file.seek(start)
            data: bytes = file.read(size)
        except MemoryError:
            raise out_of_memory(size) from None
        except OSError as error:
            raise refusal_of(error, place) if isinstance(place, StorePath) else unreadable(error) from None
    if whole and len(data) < size:
        raise ImageError(RefusalReason.TRUNCATED, "the file has become shorter since it was listed: copy it again")
    return data


def stamp_of(place: Place) -> Stamp:
    """Size and time of change; empty where they are unknown."""
    if isinstance(place, StorePath):
        return place.stamp
    try:
        status = place.stat()
    except OSError:
        return ()
    return status.st_size, status.st_mtime_ns


def absolute_name(place: Place) -> str:
    return str(place if isinstance(place, StorePath) else place.absolute())


def unreadable(error: OSError) -> ImageError:
    """The refusal of a local file or folder that exists but cannot be read."""
    detail = f"the system refuses to read it ({error.strerror}): check its permissions"
    return ImageError(RefusalReason.UNREADABLE, detail)


def out_of_memory(count: int) -> ImageError:
    detail = f"no memory for {count:,} bytes: use fewer workers (--workers), or shrink the image"
    return ImageError(RefusalReason.TOO_LARGE, detail)


def is_readable(source: object) -> TypeGuard[IO[bytes]]:
    """Whether it has a method `read`, as open files, buffers and uploads have."""
    return callable(getattr(source, "read", None)) and not isinstance(source, os.PathLike)


def read_object(source: IO[bytes], limits: Limits) -> bytes | ImageError:
    """The rest of an open file, at most one byte more than the limit, or the refusal."""
    data = bytearray()
    try:
        while len(data) <= limits.max_bytes and (part := source.read(limits.max_bytes + 1 - len(data))):
            data += part
    except Exception as error:  # objects of any making
        detail = f"reading it failed ({error}): open it in binary, open(path, 'rb'), or give its bytes"
        return ImageError(RefusalReason.UNREADABLE, detail)
    return bytes(data)
