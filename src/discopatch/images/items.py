"""Images that are not decoded yet: files here or in a store, bytes, PIL images and arrays."""

import os
import stat
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import IO, Any, TypeAlias, TypeGuard

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from discopatch.errors import DiscopatchError, ImageError, StoreError
from discopatch.images.decode import (
    SIGNATURE,
    Header,
    header_of,
    is_image_start,
    rgb_from_array,
    rgb_from_bytes,
    rgb_from_image,
    stored_values,
)
from discopatch.images.image import EXAMPLES, Limits, RefusalReason, check_bytes
from discopatch.images.levels import Levels, Values
from discopatch.images.stores import Stamp, StorePath, cause_of

Place: TypeAlias = Path | StorePath
Content: TypeAlias = Path | StorePath | bytes | IO[bytes] | Image.Image | NDArray[Any] | Exception | partial[Any]

_OPEN_FLAGS = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0)


@dataclass(slots=True)
class Reading:
    """What was not read of a source, so far as it is listed and read.

    passed_over: number of files and members that are no images by their names and first bytes; names: the first few.
    damaged: the shards that could not be read to their end, and why.
    several: two images of one sample of WebDataset, which are scored each.
    """

    passed_over: int = 0
    names: list[str] = field(default_factory=list)
    damaged: dict[str, str] = field(default_factory=dict)
    several: tuple[str, ...] = ()

    def pass_over(self, *names: str, count: int = 1) -> None:
        self.passed_over += count
        self.names += names[: EXAMPLES - len(self.names)]


@dataclass(frozen=True, slots=True)
class Item:
    """One image that is not decoded yet; the content is an exception where it could not be reached.

    In a listing, a `partial` reads an image of a dataset.
    """

    name: str
    content: Content
    original: tuple[int, int] | None = None  # of an image in 8 bits for the network: height and width as it was
    out_of_range: bool = False  # as in NamedImage

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
            case Path() | StorePath():
                return read_bytes(self.content, limits)
            case Exception():
                raise self.content
            case _:
                return None

    def header(self, limits: Limits) -> Header:
        """The header of the image, without decoding it, or ImageError."""
        if (data := self.encoded(limits)) is not None:
            return header_of(data, self.name)
        if isinstance(self.content, Image.Image):
            return Header(self.content.format or "", self.content.mode, self.content.size[::-1])
        assert isinstance(self.content, np.ndarray)
        return Header("", "", self.content.shape[:2])

    def shape(self, limits: Limits) -> tuple[int, int]:
        return self.header(limits).size

    def decode(self, limits: Limits, *, side: int | None = None, levels: Levels | None = None) -> Image.Image:
        """The image in RGB, through the levels where there are some, or ImageError; `side` as in `rgb_from_bytes`."""
        if levels is not None and self.original is None:
            return levels.apply(self.values(limits))
        data = self.encoded(limits)
        if data is not None:
            return rgb_from_bytes(data, limits, self.name, side=side)
        if isinstance(self.content, Image.Image):
            return rgb_from_image(self.content, limits)
        assert isinstance(self.content, np.ndarray)
        return rgb_from_array(self.content, limits)

    def values(self, limits: Limits) -> Values | None:
        """The pixels as they are stored, or ImageError; None where they have 8 bits."""
        data = self.encoded(limits)
        return stored_values(self.content if data is None else data, limits, self.name)  # type: ignore[arg-type]


def open_place(place: Place) -> Any:
    """The open file; ImageError unless it is a regular one, since reading a pipe or a device may never end."""
    try:
        if isinstance(place, StorePath):
            return place.open()
        file = os.fdopen(os.open(place, _OPEN_FLAGS), "rb")
    except (OSError, DiscopatchError) as error:
        raise unreadable(error, place) from None
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise ImageError(RefusalReason.UNREADABLE, "not a regular file")
    return file


def read_bytes(place: Place, limits: Limits) -> bytes:
    """The bytes of a file, refused unread when there are too many."""
    with open_place(place) as file:
        size = 0
        try:
            size = file.seek(0, os.SEEK_END)
            check_bytes(size, limits)
            file.seek(0)
            data: bytes = file.read(size)
        except MemoryError:
            raise out_of_memory(size) from None
        except OSError as error:
            raise unreadable(error, place) from None
    if len(data) < size:
        raise ImageError(RefusalReason.TRUNCATED, "the file became shorter while it was read: copy it again")
    return data


def starts_as_image(place: Place) -> bool:
    try:
        with open_place(place) as file:
            return is_image_start(file.read(SIGNATURE))
    except (OSError, DiscopatchError):
        return False


def unreadable(error: Exception, place: Place) -> ImageError:
    """The refusal of a file or folder that is missing or cannot be read."""
    if isinstance(error, FileNotFoundError | NotADirectoryError):
        return ImageError(RefusalReason.MISSING, "no such file: check the path")
    if isinstance(error, DiscopatchError):  # a missing package, a store that cannot be reached
        detail = str(error)
    elif isinstance(place, StorePath):
        detail = cause_of(error, place.root)
    else:
        detail = f"the system refuses to read it ({getattr(error, 'strerror', error)}): check its permissions"
    return ImageError(RefusalReason.UNREADABLE, detail)


def out_of_memory(count: int) -> ImageError:
    detail = f"no memory for {count:,} bytes: use fewer workers (--workers), or shrink the image"
    return ImageError(RefusalReason.TOO_LARGE, detail)


def stamp_of(place: Place) -> Stamp:
    """Size and time of change, in a store as it was listed; empty where they are unknown."""
    try:
        if isinstance(place, StorePath):
            return place.stamp or (place.found() or place).stamp
        status = place.stat()
    except (OSError, StoreError):
        return ()
    return status.st_size, status.st_mtime_ns


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
