"""One image that is not decoded yet, and many of them in one shard."""

from abc import ABC, abstractmethod
from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from discopatch.errors import DiscopatchError, ImageError
from discopatch.images.decode import rgb_from_array, rgb_from_bytes, rgb_from_image
from discopatch.images.files import check_bytes, open_regular, out_of_memory, read_file, read_start, unreadable
from discopatch.images.formats import OTHER_FORMATS, SIGNATURE_LENGTH, identify, suffix_of
from discopatch.images.image import Limits, RefusalReason
from discopatch.images.store_errors import known_cause, refusal_of
from discopatch.images.stores import Stamp, StorePath
from discopatch.utils import escaped

Place: TypeAlias = Path | StorePath

_LONGEST = 200  # characters of what a library says of a damaged file


@dataclass(frozen=True, slots=True)
class FileRange:
    """Bytes inside a file, here or in a store, such as a member of a tar archive."""

    place: Place
    offset: int
    size: int

    def read(self, limits: Limits) -> bytes:
        """The bytes, refused unread when there are too many of them."""
        check_bytes(self.size, limits)
        with self.place.open_input() if isinstance(self.place, StorePath) else open_regular(self.place) as file:
            try:
                file.seek(self.offset)
                data: bytes = file.read(self.size)
            except MemoryError:
                raise out_of_memory(self.size) from None
            except OSError as error:
                raise refusal_of(error) if isinstance(self.place, StorePath) else unreadable(error) from None
        if len(data) < self.size:
            detail = "the file has become shorter since it was listed: put it back whole"
            raise ImageError(RefusalReason.TRUNCATED, detail)
        return data


Content: TypeAlias = Path | StorePath | FileRange | bytes | Image.Image | NDArray[Any] | Exception


@dataclass(frozen=True, slots=True)
class Item:
    """One image that is not decoded yet; an exception takes the place of one that could not be reached."""

    name: str
    content: Content

    @property
    def size(self) -> int:
        """Bytes of an encoded image that are in memory already."""
        return len(self.content) if isinstance(self.content, bytes) else 0

    def encoded(self, limits: Limits) -> bytes | None:
        """The bytes of the file, or None for an image that has none, in memory as pixels; ImageError as in decode."""
        match self.content:
            case bytes():
                check_bytes(len(self.content), limits)
                return self.content
            case Path() | StorePath() as place:
                suffix = suffix_of(self.name)
                if suffix in OTHER_FORMATS:  # known without reading all of it
                    start = place.read_start if isinstance(place, StorePath) else lambda count: read_start(place, count)
                    identify(start(SIGNATURE_LENGTH), suffix)
                return place.read(limits) if isinstance(place, StorePath) else read_file(place, limits)
            case FileRange():
                return self.content.read(limits)
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
    """Many images in one file, or in one fragment of a table, read as a stream.

    It is small and holds nothing open, so that another process can read it; `read_images` takes it as a source.
    """

    __slots__ = ()

    place: Place  # the file, or the folder of the table

    @property
    def name(self) -> str:
        """What results call it: the path or the URI, without the options of a store, which may be secret."""
        return str(self.place)

    @property
    def stamp(self) -> Stamp:
        """Another one tells that the shard has changed: size and time of change; empty where they are not known."""
        return stamp_of(self.place)

    def items(self, limits: Limits) -> Iterator[Item]:
        """The images, in order; where the shard cannot be read further it is refused, and what came before stays."""
        try:
            yield from self._images(limits)
        except Exception as error:
            yield Item(self.name, self.refused(error))

    @abstractmethod
    def _images(self, limits: Limits) -> Iterator[Item]:
        """The images; any error means that the rest cannot be read."""

    def refused(self, error: Exception) -> ImageError:
        """What is said of the shard where that error ends its reading."""
        if isinstance(error, ImageError):
            return error
        if isinstance(error, MemoryError):
            return ImageError(RefusalReason.TOO_LARGE, "no memory for its next part: write it in smaller parts")
        if isinstance(error, DiscopatchError):  # a package that is missing, a store that is not there
            return ImageError(RefusalReason.UNREADABLE, str(error))
        if isinstance(self.place, StorePath) and (cause := known_cause(error)) is not None:
            return ImageError(*cause)
        if isinstance(error, OSError) and error.errno is not None:
            return ImageError(
                RefusalReason.UNREADABLE, f"the system refuses to read it ({error.strerror}): check its permissions"
            )
        said = escaped(str(error).partition("\n")[0])[:_LONGEST]
        detail = f"cut short or damaged ({said}): copy or write it again; what came before was read"
        return ImageError(RefusalReason.TRUNCATED, detail)


def open_shards(entries: Iterable[Item | Shard], limits: Limits) -> Generator[Item, None, None]:
    """The images of the entries, those of a shard in its place."""
    for entry in entries:
        if isinstance(entry, Shard):
            yield from entry.items(limits)
        else:
            yield entry


def open_place(place: Place) -> IO[bytes]:
    """The open file, here or in a store; ImageError where it cannot be opened."""
    return place.open() if isinstance(place, StorePath) else open_regular(place)


def stamp_of(place: Place) -> Stamp:
    """Size and time of change; empty where they cannot be told."""
    if isinstance(place, StorePath):
        return place.stamp
    try:
        status = place.stat()
    except OSError:
        return ()
    return status.st_size, status.st_mtime_ns
