"""Object stores and file systems of clusters by their URIs, as `pyarrow.fs.FileSystem.from_uri` takes them.

Options and passwords of a URI may be secret: they are part of no name, no error and no log.
"""

import posixpath
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import unquote

from discopatch.errors import DiscopatchError, ParameterError, StoreError
from discopatch.utils import escaped, require

Stamp: TypeAlias = tuple[int, ...]  # size and time of change, empty where they are unknown

SCHEMES = ("s3", "gs", "gcs", "abfs", "abfss", "hdfs", "viewfs")
_URI = re.compile(r"([a-z][a-z0-9+.-]+)://([^/?]*)(.*?)(?:\?(\w+=[^&]*(?:&\w+=[^&]*)*))?", re.IGNORECASE | re.DOTALL)
_LONGEST = 300  # characters of a store's message


@dataclass(frozen=True, slots=True)
class StorePath:
    """A file or a folder of a store; it holds nothing open, so that each worker opens it itself."""

    root: str = field(repr=False)  # the URI of the bucket, with keys and options
    path: str  # below it, without a slash at either end
    is_folder: bool = field(default=False, compare=False)
    stamp: Stamp = field(default=(), compare=False, repr=False)  # as it was listed

    def __str__(self) -> str:
        return f"{without_options(self.root)}/{self.path}"

    @property
    def name(self) -> str:
        return posixpath.basename(self.path)

    @property
    def parts(self) -> tuple[str, ...]:
        return tuple(part for part in self.path.split("/") if part)

    def connect(self) -> tuple[Any, str]:
        """The pyarrow file system, the same for all threads, and the path in it."""
        require("pyarrow", extra="parquet")
        with store_errors(self, self.root):
            system, start = _connected(self.root)
            return system, posixpath.join(start, self.path) if self.path else start

    def found(self) -> "StorePath | None":
        """The path with its kind and stamp, or None where nothing is; StoreError where the store fails."""
        system, inside = self.connect()
        from pyarrow.fs import FileType

        with store_errors(self, self.root):
            info = system.get_file_info(inside)
        if info.type is FileType.NotFound:
            return None
        return replace(self, is_folder=info.type is FileType.Directory, stamp=stamp_of_info(info))

    def below(self) -> Iterator["StorePath"]:
        """All files of the folder and of those below it, in no order; StoreError where they cannot be listed."""
        system, inside = self.connect()
        from pyarrow.fs import FileSelector, FileType

        with store_errors(self, self.root):
            listed = system.get_file_info(FileSelector(inside, allow_not_found=True, recursive=True))
        for info in listed:
            if info.type is FileType.File:
                path = posixpath.join(self.path, posixpath.relpath(info.path, inside))
                yield StorePath(self.root, path, stamp=stamp_of_info(info))

    def open(self) -> Any:
        """The file as pyarrow has it, which reads at any place; FileNotFoundError or StoreError."""
        system, inside = self.connect()
        with store_errors(self, self.root):
            return system.open_input_file(inside)


@lru_cache(maxsize=64)
def _connected(uri: str) -> tuple[Any, str]:
    from pyarrow.fs import FileSystem

    system, start = FileSystem.from_uri(uri)
    return system, start


def stamp_of_info(info: Any) -> Stamp:
    return (int(info.size), int(info.mtime_ns or 0)) if info.size is not None else ()


def without_options(text: str) -> str:
    """A path as it is; a URI without its options and its password, as results and reports may show it."""
    found = _URI.fullmatch(text)
    if found is None:
        return text
    scheme, host, path, _ = found.groups()
    user, mark, rest = host.rpartition("@")
    # Of Azure and HDFS the part before the @ is a name; in other stores it holds keys.
    visible = rest if scheme.lower() in ("s3", "gs", "gcs") else f"{user.partition(':')[0]}{mark}{rest}"
    return f"{scheme}://{visible}{path}"


def parse(text: str) -> Path | StorePath:
    """The place that a path or a URI names; nothing is opened. ParameterError for a URI of another kind.

    The path of a URI is written as it is, without escapes; file:// becomes a local path.
    """
    found, shown = _URI.fullmatch(text), without_options(text)
    if found is None:
        return Path(text)
    scheme, host, path, query = found[1].lower(), found[2], found[3], found[4]
    if scheme == "file":
        if host not in ("", "localhost"):
            raise ParameterError(f"{shown} names another machine: mount its folder, and give the path")
        return Path(unquote(path))
    if scheme not in SCHEMES:
        known = ", ".join(f"{each}://" for each in SCHEMES)
        raise ParameterError(f"{shown}: images are read from {known} and files: copy them to one of these first")
    if not host.rpartition("@")[2] and scheme not in ("hdfs", "viewfs"):
        raise ParameterError(f"{shown} names no bucket: write it as {scheme}://bucket/folder")
    return StorePath(f"{scheme}://{host}{f'?{query}' if query else ''}", path.strip("/"))


@contextmanager
def store_errors(name: object, uri: str = "") -> Iterator[None]:
    """Turns any error of a store, but that a file is missing, into a StoreError without the secrets of the URI."""
    try:
        yield
    except (DiscopatchError, FileNotFoundError):
        raise
    except Exception as error:
        raise StoreError(f"{name}: {cause_of(error, uri)}") from None


def cause_of(error: Exception, uri: str) -> str:
    """The message of a store's error in one line, without the secrets of the URI."""
    text, found = str(error), _URI.fullmatch(uri)
    if found is not None:
        user, query = found[2].rpartition("@")[0], found[4] or ""
        parts = {user, *user.split(":", 1), query, *(pair.partition("=")[2] for pair in query.split("&"))}
        for secret in sorted({*parts, *map(unquote, parts)} - {""}, key=len, reverse=True):
            text = text.replace(secret, "***")
    said = escaped(text.partition("\n")[0])[:_LONGEST]
    return f"the store refuses ({said}): check the path, the credentials, the region and the endpoint"
