"""Object stores and file systems of clusters, by their URIs: the one place that knows `pyarrow.fs`.

The options of a URI, what follows its `?`, may hold keys: they are part of no name, no error and no log.
"""

import io
import posixpath
import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias
from urllib.parse import unquote

from discopatch.errors import ImageError, MissingExtraError, ParameterError, StoreError
from discopatch.images.connections import BY_PYARROW, OPTIONS, Given, connect, lance_options, read_option
from discopatch.images.files import check_bytes, out_of_memory
from discopatch.images.image import Limits, RefusalReason
from discopatch.images.store_errors import NO_BUCKET, cause_of, refusal_of
from discopatch.utils import escaped, require

Stamp: TypeAlias = tuple[int | str, ...]  # size and time of change, or what else tells that a file is another now

_URI = re.compile(r"([a-z][a-z0-9+.-]+)://([^/?]*)(.*)", re.IGNORECASE | re.DOTALL)
_QUERY = re.compile(r"\?(\w+=[^?]*)\Z", re.DOTALL)
_PASSWORD = re.compile(r":[^@/]*@")
_BUFFER = 2**23  # bytes of one request for a file that is read from front to back

_ALIASES = {"gcs": "gs"}
SCHEMES = ("s3", "gs", "az", "abfs", "abfss", "hdfs")  # as errors and docs name them


@dataclass(frozen=True, slots=True)
class Store:
    """A bucket, a container or a cluster, and how to reach it."""

    scheme: str
    host: str  # the bucket, the container, or a host with its port
    options: Given = field(default=(), repr=False)

    def __str__(self) -> str:
        return f"{self.scheme}://{_PASSWORD.sub('@', self.host)}"

    def connect(self) -> tuple[Any, str]:
        """The pyarrow file system, the same for all threads, and where in it the paths of this store begin."""
        require("pyarrow", extra="parquet")
        try:
            return connect(self.scheme, self.host, self.options)
        except (ParameterError, StoreError):
            raise
        except ImportError as error:
            detail = f"this pyarrow was built without {self.scheme}: install the one of PyPI or conda-forge"
            raise StoreError(f"{self}: {detail}") from error
        except Exception as error:
            raise StoreError(f"{self}: {cause_of(error)[1]}") from None  # its text may hold keys

    def check(self) -> None:
        """StoreError where the bucket is not there, or cannot be reached."""
        if StorePath(self, "").found() is None:
            raise StoreError(f"{self}: {NO_BUCKET}")

    def lance_options(self) -> dict[str, str]:
        """The options for `lance.dataset`, which connects by itself."""
        return lance_options(self.scheme, self.options)


@dataclass(frozen=True, slots=True)
class StorePath:
    """A file or a folder of a store: no more than its name, so that each worker opens it for itself."""

    store: Store
    path: str  # below the store, without a slash at either end
    is_folder: bool = field(default=False, compare=False)
    known_stamp: Stamp | None = field(default=None, compare=False, repr=False)  # as it was listed

    def __str__(self) -> str:
        return f"{self.store}/{self.path}"

    @property
    def name(self) -> str:
        return posixpath.basename(self.path)

    @property
    def parent(self) -> "StorePath":
        return StorePath(self.store, posixpath.dirname(self.path), is_folder=True)

    def __truediv__(self, name: str) -> "StorePath":
        return StorePath(self.store, posixpath.join(self.path, name))

    @property
    def stamp(self) -> Stamp:
        """Size and time of change, as listed or else as they are now; empty where that cannot be told."""
        if self.known_stamp is not None:
            return self.known_stamp
        try:
            found = self.found()
        except StoreError:
            return ()
        return found.known_stamp or () if found is not None else ()

    def found(self) -> "StorePath | None":
        """The same with what the store knows of it, or None where nothing is; StoreError where that cannot be told."""
        system, inside = self._inside()
        try:
            info = system.get_file_info(inside)
        except Exception as error:
            raise StoreError(f"{self}: {cause_of(error)[1]}") from None
        return _described(self, info)

    def children(self) -> list["StorePath"]:
        """What is in the folder and not hidden, in no order; StoreError where it cannot be listed."""
        system, inside = self._inside()
        from pyarrow.fs import FileSelector

        try:
            listed = system.get_file_info(FileSelector(inside, allow_not_found=True))
        except Exception as error:
            raise StoreError(f"{self}: {cause_of(error)[1]}") from None
        named = (_described(self / info.base_name, info) for info in listed if not info.base_name.startswith("."))
        return [each for each in named if each is not None]

    def open_input(self) -> Any:
        """The file as pyarrow has it, which reads at any place; ImageError where it cannot be opened."""
        try:
            system, inside = self._inside()
            return system.open_input_file(inside)
        except (StoreError, MissingExtraError) as error:
            raise ImageError(RefusalReason.UNREADABLE, str(error)) from None
        except Exception as error:
            raise refusal_of(error) from None

    def open(self) -> BinaryIO:
        """The file for reading from front to back, a few megabytes a request; ImageError where it cannot be opened."""
        return io.BufferedReader(_StoreFile(self.open_input()), _BUFFER)

    def read(self, limits: Limits) -> bytes:
        """All bytes, refused unread when there are too many of them."""
        with self.open_input() as file:
            try:
                size = file.size()
                check_bytes(size, limits)
                data: bytes = file.read(size)
            except ImageError:
                raise
            except MemoryError:
                raise out_of_memory(size) from None
            except Exception as error:
                raise refusal_of(error) from None
        check_bytes(len(data), limits)
        return data

    def read_start(self, count: int) -> bytes:
        with self.open_input() as file:
            try:
                data: bytes = file.read(count)
            except Exception as error:
                raise refusal_of(error) from None
        return data

    def _inside(self) -> tuple[Any, str]:
        system, start = self.store.connect()
        return system, posixpath.join(start, self.path) if self.path else start


class _StoreFile(io.RawIOBase):
    """A file of pyarrow as one of Python's, which can be buffered."""

    def __init__(self, file: Any) -> None:
        self._file = file

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        count: int = self._file.readinto(buffer)
        return count

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        place: int = self._file.seek(offset, whence)
        return place

    def tell(self) -> int:
        place: int = self._file.tell()
        return place

    def close(self) -> None:
        if not self.closed:
            self._file.close()
        super().close()


def is_uri(text: str) -> bool:
    return _URI.match(text) is not None


def without_options(text: str) -> str:
    """A path as it is; a URI as results and reports may show it, without what may be secret."""
    found = _URI.match(text)
    if found is None:
        return text
    scheme, host, rest = found.groups()
    host = host.rpartition("@")[2] if scheme.lower() in ("s3", "gs", "gcs") else _PASSWORD.sub("@", host)
    return f"{scheme}://{host}{_QUERY.sub('', rest)}"


def parse(uri: str) -> Path | StorePath:
    """What a URI names; nothing is opened. ParameterError for one that is not understood.

    A key is written as it is, without escapes but for those in the options; file:// becomes a local path.
    """
    found = _URI.match(uri)
    if found is None:
        raise ParameterError(f"{uri} is no URI: write it as s3://bucket/folder")
    scheme, host, rest = found[1].lower(), found[2], found[3]
    if scheme == "file":
        if host not in ("", "localhost"):
            raise ParameterError(f"{without_options(uri)} names another machine: mount its folder, and give the path")
        return Path(unquote(rest))
    known = _ALIASES.get(scheme, scheme)
    if known not in OPTIONS and known not in BY_PYARROW:
        remedy = "copy the images to a folder first" if scheme in ("http", "https", "hf") else "check the scheme"
        raise ParameterError(
            f"{without_options(uri)}: images are read from {', '.join(f'{each}://' for each in SCHEMES)} and files: "
            f"{remedy}"
        )
    query = _QUERY.search(rest)
    options = _parse_options(query[1]) if query is not None else {}
    path = rest if query is None else rest[: query.start()]
    if known in ("s3", "gs"):
        given, _, host = host.rpartition("@")
        options |= _parse_user(given) if known == "s3" else dict.fromkeys([given] if given else [], "true")
    if not host and known not in ("hdfs", "viewfs"):
        raise ParameterError(f"{without_options(uri)} names no bucket: write it as {scheme}://bucket/folder")
    if unknown := options.keys() - OPTIONS.get(known, options).keys():
        raise ParameterError(
            f"{without_options(uri)} has the unknown option {escaped(min(unknown))[:40]}: "
            f"the options of {known}:// are {', '.join(sorted(OPTIONS[known]))}"
        )
    for name, value in options.items():
        read_option(known, name, value)
    return StorePath(Store(known, host, tuple(sorted(options.items()))), path.strip("/"))


def resolve(uri: str) -> tuple[Any, str]:
    """The pyarrow file system of a URI or of a local path, and the path in it.

    MissingExtraError without pyarrow; ParameterError for a URI that is not understood; StoreError for a store that
    cannot be reached. That something is there is not said.
    """
    place = parse(uri) if is_uri(uri) else Path(uri)
    if isinstance(place, StorePath):
        system, start = place.store.connect()
        return system, posixpath.join(start, place.path) if place.path else start
    require("pyarrow", extra="parquet")
    from pyarrow.fs import LocalFileSystem

    return LocalFileSystem(), str(place.absolute())


def _described(place: StorePath, info: Any) -> StorePath | None:
    from pyarrow.fs import FileType

    if info.type is FileType.NotFound:
        return None
    if info.type is FileType.Directory:
        return replace(place, is_folder=True)
    return replace(place, known_stamp=(int(info.size), int(info.mtime_ns or 0)))


def _parse_options(query: str) -> dict[str, str]:
    """The options with escapes undone; a plus stays a plus, since keys hold them."""
    pairs = (pair.partition("=") for pair in query.split("&") if pair)
    return {name: unquote(value) for name, _, value in pairs}


def _parse_user(given: str) -> dict[str, str]:
    if not given:
        return {}
    key, _, secret = given.partition(":")
    return {"access_key": unquote(key), "secret_key": unquote(secret)}
