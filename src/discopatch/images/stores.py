"""Object stores and file systems of clusters by their URIs, as `pyarrow.fs.FileSystem.from_uri` takes them.

Options and passwords of a URI may be secret: they are part of no name, no error and no log.
"""

import io
import posixpath
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias
from urllib.parse import unquote

from discopatch.errors import ImageError, MissingExtraError, ParameterError, StoreError
from discopatch.images.image import RefusalReason
from discopatch.utils import escaped, require

Stamp: TypeAlias = tuple[int | str, ...]  # size and time of change

SCHEMES = ("s3", "gs", "gcs", "abfs", "abfss", "hdfs", "viewfs")
_URI = re.compile(r"([a-z][a-z0-9+.-]+)://([^/?]*)(.*)", re.IGNORECASE | re.DOTALL)
_QUERY = re.compile(r"\?(\w+=[^&]*(?:&\w+=[^&]*)*)\Z", re.DOTALL)
_MISSING = re.compile(r"NO_SUCH|NOT_FOUND|status (code )?404|does not exist|not found", re.IGNORECASE)
_BUFFER = 2**23  # bytes of one request for a file that is read from front to back
_LONGEST = 300  # characters of a store's message


@dataclass(frozen=True, slots=True)
class Store:
    """A bucket, a container or a cluster: the URI without the path."""

    scheme: str
    host: str  # with user and password, where the URI has them
    query: str = field(default="", repr=False)

    def __str__(self) -> str:
        return f"{self.scheme}://{_visible_host(self.scheme, self.host)}"

    def connect(self) -> tuple[Any, str]:
        """The pyarrow file system, the same for all threads, and the path in it at which this store begins."""
        require("pyarrow", extra="parquet")
        try:
            return _connected(f"{self.scheme}://{self.host}{'?' * bool(self.query)}{self.query}")
        except Exception as error:
            raise StoreError(f"{self}: {cause_of(error, self)}") from None

    @property
    def secrets(self) -> list[str]:
        """The parts of the URI that no message may show, the longest first."""
        user = self.host.rpartition("@")[0]
        values = [pair.partition("=")[2] for pair in self.query.split("&")]
        found = {*user.split(":", 1), user, self.query, *values}
        return sorted({*found, *map(unquote, found)} - {""}, key=len, reverse=True)


@lru_cache(maxsize=64)
def _connected(uri: str) -> tuple[Any, str]:
    from pyarrow.fs import FileSystem

    system, start = FileSystem.from_uri(uri)
    return system, start


@dataclass(frozen=True, slots=True)
class StorePath:
    """A file or a folder of a store; it holds nothing open, so that each worker opens it itself."""

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
    def parts(self) -> tuple[str, ...]:
        return tuple(part for part in self.path.split("/") if part)

    @property
    def stamp(self) -> Stamp:
        """Size and time of change, as listed or else as they are now; empty where they are unknown."""
        if self.known_stamp is not None:
            return self.known_stamp
        try:
            found = self.found()
        except StoreError:
            return ()
        return found.known_stamp or () if found is not None else ()

    def found(self) -> "StorePath | None":
        """The path with its kind and stamp, or None where nothing is; StoreError where the store fails."""
        system, inside = self._inside()
        try:
            info = system.get_file_info(inside)
        except Exception as error:
            raise StoreError(f"{self}: {cause_of(error, self.store)}") from None
        return _described(self, info)

    def below(self) -> Iterator["StorePath"]:
        """All files of the folder and of those below it, in no order; StoreError where they cannot be listed."""
        system, inside = self._inside()
        from pyarrow.fs import FileSelector, FileType

        try:
            listed = system.get_file_info(FileSelector(inside, allow_not_found=True, recursive=True))
        except Exception as error:
            raise StoreError(f"{self}: {cause_of(error, self.store)}") from None
        for info in listed:
            if info.type is FileType.File:
                within = posixpath.relpath(info.path, inside)
                found = _described(StorePath(self.store, posixpath.join(self.path, within)), info)
                assert found is not None
                yield found

    def open_input(self) -> Any:
        """The file as pyarrow has it, which reads at any place; ImageError where it cannot be opened."""
        try:
            system, inside = self._inside()
            return system.open_input_file(inside)
        except (StoreError, MissingExtraError) as error:
            raise ImageError(RefusalReason.UNREADABLE, str(error)) from None
        except Exception as error:
            raise refusal_of(error, self) from None

    def open(self) -> BinaryIO:
        """The file for reading from front to back, a few megabytes a request; ImageError where it cannot be opened."""
        return io.BufferedReader(self.open_input(), _BUFFER)

    def _inside(self) -> tuple[Any, str]:
        system, start = self.store.connect()
        return system, posixpath.join(start, self.path) if self.path else start


def is_uri(text: str) -> bool:
    return _URI.match(text) is not None


def without_options(text: str) -> str:
    """A path as it is; a URI without its options and its password, as results and reports may show it."""
    found = _URI.match(text)
    if found is None:
        return text
    scheme, host, rest = found.groups()
    return f"{scheme}://{_visible_host(scheme.lower(), host)}{_QUERY.sub('', rest)}"


def parse(uri: str) -> Path | StorePath:
    """The place that a URI names; nothing is opened. ParameterError for a URI of another kind.

    A path is written as it is, without escapes; file:// becomes a local path.
    """
    found = _URI.match(uri)
    if found is None:
        raise ParameterError(f"{uri} is no URI: write it as s3://bucket/folder")
    scheme, host, rest = found[1].lower(), found[2], found[3]
    shown = without_options(uri)
    if scheme == "file":
        if host not in ("", "localhost"):
            raise ParameterError(f"{shown} names another machine: mount its folder, and give the path")
        return Path(unquote(rest))
    if scheme not in SCHEMES:
        known = ", ".join(f"{each}://" for each in SCHEMES)
        raise ParameterError(f"{shown}: images are read from {known} and files: copy them to one of these first")
    if not host.rpartition("@")[2] and scheme not in ("hdfs", "viewfs"):
        raise ParameterError(f"{shown} names no bucket: write it as {scheme}://bucket/folder")
    query = _QUERY.search(rest)
    path = rest if query is None else rest[: query.start()]
    return StorePath(Store(scheme, host, query[1] if query is not None else ""), path.strip("/"))


def resolve(uri: str) -> tuple[Any, str]:
    """The pyarrow file system of a URI or of a local path, and the path in it, which need not exist.

    MissingExtraError without pyarrow; ParameterError for a URI of another kind; StoreError where a store fails.
    """
    place = parse(uri) if is_uri(uri) else Path(uri)
    if isinstance(place, StorePath):
        return place._inside()
    require("pyarrow", extra="parquet")
    from pyarrow.fs import LocalFileSystem

    return LocalFileSystem(), str(place.absolute())


def cause_of(error: Exception, store: Store | None = None) -> str:
    """The message of a store's error in one line, without the secrets of the store's URI."""
    text = str(error)
    for secret in store.secrets if store is not None else ():
        text = text.replace(secret, "***")
    said = escaped(text.partition("\n")[0])[:_LONGEST]
    return f"the store refuses ({said}): check the path, the credentials, the region and the endpoint"


def refusal_of(error: Exception, place: StorePath) -> ImageError:
    """The refusal of a file whose store failed with this error."""
    missing = isinstance(error, FileNotFoundError) or _MISSING.search(str(error)) is not None
    return ImageError(RefusalReason.MISSING if missing else RefusalReason.UNREADABLE, cause_of(error, place.store))


def _visible_host(scheme: str, host: str) -> str:
    """The host without keys; of Azure and HDFS the part before the @ is a name, of which a password is left out."""
    user, mark, rest = host.rpartition("@")
    return rest if scheme in ("s3", "gs", "gcs") else f"{user.partition(':')[0]}{mark}{rest}"


def _described(place: StorePath, info: Any) -> StorePath | None:
    from pyarrow.fs import FileType

    if info.type is FileType.NotFound:
        return None
    if info.type is FileType.Directory:
        return replace(place, is_folder=True)
    return replace(place, known_stamp=(int(info.size), int(info.mtime_ns or 0)))
