"""Image files, by themselves or inside tar shards, known by where they lie and read when they are needed."""

import hashlib
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from discopatch.images import Limits, NoImagesError
from discopatch.images.item import IMAGE_SUFFIXES
from discopatch.images.shard import SHARD_SUFFIXES
from discopatch.images.sources import entries, images


@dataclass(frozen=True, slots=True, order=True)
class File:
    """An image file; one inside an uncompressed tar shard is so many bytes from an offset on."""

    name: str
    path: Path
    offset: int = 0
    size: int = -1  # to the end

    def read(self) -> bytes:
        """Its bytes."""
        with self.path.open("rb") as file:
            file.seek(self.offset)
            return file.read(self.size)

    @property
    def digest(self) -> str:
        """Of its bytes; two files with the same one hold the same image."""
        return hashlib.sha256(self.read()).hexdigest()


def files_in(place: Path) -> list[File]:
    """All images of a folder, to its bottom, or of an uncompressed tar shard, by name."""
    found = in_shard(place) if place.name.lower().endswith(SHARD_SUFFIXES) else in_folder(place)
    if not found:
        raise NoImagesError(f"no images in {place}: check the path")
    return sorted(found)


def in_folder(folder: Path) -> list[File]:
    """Named as they are below the folder."""
    items = images(entries(folder), Limits())
    paths = [item.content for item in items if isinstance(item.content, Path)]
    return [File(path.relative_to(folder).as_posix(), path) for path in paths]


def in_shard(shard: Path) -> list[File]:
    """Named as they are in the archive; nothing is extracted, so a member's path is only a name."""
    if shard.suffix != ".tar":
        raise ValueError(f"{shard} is compressed, and cannot be read from its middle: gunzip it first")
    with tarfile.open(shard, "r:") as archive:
        members = [member for member in archive if member.isfile()]
    return [
        File(member.name, shard, member.offset_data, member.size)
        for member in members
        if Path(member.name).suffix.lower() in IMAGE_SUFFIXES
    ]


def digest_of(digests: Sequence[str]) -> str:
    """16 hex digits that stand for all of these, in their order."""
    return hashlib.sha256("\n".join(digests).encode()).hexdigest()[:16]
