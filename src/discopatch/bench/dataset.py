"""Image files of a benchmark, alone or inside tar shards, and sets of them with their preprocessing."""

import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from tarfile import TarError
from typing import Any, TypeVar

import numpy as np

import discopatch
from discopatch.bench.preprocessing import AS_TRAINED, Pipeline, Reading, apply_pipeline, describe_pipeline
from discopatch.errors import ImageError, NoImagesError, ParameterError
from discopatch.images import DEFAULT_LIMITS, Limits, Pixels, check_bytes
from discopatch.images.decode import decode
from discopatch.images.formats import IMAGE_SUFFIXES, SHARD_SUFFIXES
from discopatch.images.tar import open_archive
from discopatch.utils import write_atomically

T = TypeVar("T")


@dataclass(frozen=True, slots=True, order=True)
class ImageFile:
    """An image file; one inside an uncompressed tar shard is `size` bytes of it from `offset` on."""

    name: str
    path: Path
    offset: int = 0
    size: int = -1  # to the end

    def read(self) -> bytes:
        with self.path.open("rb") as file:
            file.seek(self.offset)
            return file.read(self.size)

    @property
    def digest(self) -> str:
        """The SHA-256 of its bytes; two files with the same digest hold the same image."""
        digest = hashlib.sha256()
        with self.path.open("rb") as file:
            file.seek(self.offset)
            left = self.length
            while left > 0 and (part := file.read(min(left, 2**20))):
                digest.update(part)
                left -= len(part)
        return digest.hexdigest()

    @property
    def length(self) -> int:
        """How many bytes it has."""
        return self.path.stat().st_size - self.offset if self.size < 0 else self.size


Files = tuple[ImageFile, ...]


@dataclass(frozen=True)
class ImageSet:
    """Files, whose indices begin at `first`, and their preprocessing: all that decides which pixels are scored.

    `reading` is how the discriminator gets them.
    """

    name: str
    files: Files
    pipeline: Pipeline
    first: int = 0
    limits: Limits = DEFAULT_LIMITS
    reading: Reading = AS_TRAINED

    def __len__(self) -> int:
        return len(self.files)

    @property
    def steps(self) -> list[dict[str, Any]]:
        """The preprocessing, for JSON and for digests."""
        reading = self.reading.describe()
        return [*describe_pipeline(self.pipeline), *([{"read": reading}] if reading else [])]

    def parts(self, size: int) -> Iterator["ImageSet"]:
        """Successive parts of at most `size` images, which keep their indices."""
        for start in range(0, len(self), size):
            yield replace(self, files=self.files[start : start + size], first=self.first + start)

    def load(self) -> Pixels:
        """(images, size, size, 3), decoded and preprocessed; in a benchmark an unreadable file is an error."""
        loaded = []
        for index, file in enumerate(self.files, start=self.first):
            try:
                check_bytes(file.length, self.limits)
                loaded.append(apply_pipeline(decode(file.read(), self.limits), self.pipeline, index))
            except ImageError as error:
                text = f"{file.name} in {file.path} cannot be read ({error.detail}): copy it again"
                raise ImageError(error.reason, text) from None
        return np.stack(loaded)


@dataclass(frozen=True)
class KeptImages:
    """Prepared images in a folder, so that another run, with other weights, need not decode and corrupt them again."""

    folder: Path
    images: ImageSet
    digest: str

    def load(self) -> Pixels:
        """The pixels as stored; a file that is missing or damaged is made anew."""
        path = self.folder / self.digest[:2] / f"{self.digest}.npy"
        try:
            pixels: Pixels = np.load(path, allow_pickle=False)
            if len(pixels) == len(self.images):
                return pixels
        except (OSError, ValueError, EOFError):
            pass
        pixels = self.images.load()

        def save(partial: Path) -> None:
            with partial.open("wb") as file:  # given a path, numpy would rename it
                np.save(file, pixels, allow_pickle=False)

        write_atomically(path, save, durable=False)
        return pixels


@dataclass(frozen=True, eq=False)
class Digests:
    """The digests of files, each read once, and of sets of them."""

    known: dict[ImageFile, str] = field(default_factory=dict)

    def read(self, files: Sequence[ImageFile], *, workers: int) -> None:
        new = [file for file in dict.fromkeys(files) if file not in self.known]
        with ThreadPoolExecutor(workers) as pool:
            self.known.update(zip(new, pool.map(lambda file: file.digest, new), strict=True))

    def of(self, images: ImageSet) -> str:
        """16 hex digits that stand for the images, their indices and their preprocessing."""
        pipeline = json.dumps([discopatch.__version__, images.first, images.steps], sort_keys=True)
        return digest_of_set([pipeline, *(self.known[file] for file in images.files)])


def digest_of_set(digests: Sequence[str]) -> str:
    """16 hex digits that stand for all of these, in their order."""
    return hashlib.sha256("\n".join(digests).encode()).hexdigest()[:16]


def list_files(path: Path) -> Files:
    """All images of a folder, to its bottom, or of an uncompressed tar shard, by name."""
    if not path.exists():
        raise NoImagesError(f"no folder or tar shard {path}: look in {describe_folder(path.parent)}")
    if path.name.lower().endswith(SHARD_SUFFIXES):
        files = _shard_files(path)
    elif path.is_dir():
        files = [ImageFile(name, path / name) for name in image_names(path)]
    else:
        raise ParameterError(f"{path} is a single file: give a folder or a tar shard")
    if not files:
        raise NoImagesError(f"no images in {path}: check the path")
    return tuple(sorted(files))


def _shard_files(shard: Path) -> list[ImageFile]:
    """Nothing is extracted, so the path of a member is only a name."""
    if shard.suffix != ".tar":
        raise ParameterError(f"{shard} is compressed, and cannot be read from its middle: gunzip it first")
    try:
        with open_archive(shard) as (found, _, _):
            members = [member for member in found if not member.issparse()]
    except (TarError, ImageError, OSError, ValueError) as error:
        raise ParameterError(f"{shard} is damaged or no tar shard ({error}): copy it again") from error
    return [
        ImageFile(member.name, shard, member.offset_data, member.size)
        for member in members
        if Path(member.name).suffix.lower() in IMAGE_SUFFIXES
    ]


def image_names(folder: Path) -> Iterator[str]:
    """The path of every image below the folder, relative to it; folders are listed, no file is opened."""

    def fail(error: OSError) -> None:
        raise error

    visited = set()
    for here, folders, files in os.walk(folder, onerror=fail, followlinks=True):
        path = Path(here)
        status = path.stat()
        if (identity := (status.st_dev, status.st_ino)) in visited:  # a link that leads back
            folders.clear()
            continue
        visited.add(identity)
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        parent = path.relative_to(folder).as_posix()
        for name in files:
            if name.lower().endswith(IMAGE_SUFFIXES) and not name.startswith("."):
                yield name if parent == "." else f"{parent}/{name}"


def describe_folder(folder: Path) -> str:
    """For errors, such as: data, which holds natural/, notes.txt and 3 more."""
    if not folder.exists():
        return f"{folder}, which does not exist"
    if not folder.is_dir():
        return f"{folder}, which is a file"
    with os.scandir(folder) as entries:
        names = sorted(entry.name + "/" * entry.is_dir() for entry in islice(entries, 1000))
    more = f" and {len(names) - 8} more" if len(names) > 8 else ""
    return f"{folder}, which holds {', '.join(names[:8])}{more}" if names else f"{folder}, which is empty"


def shuffled(items: Sequence[T], *, seed: int, count: int | None = None) -> list[T]:
    """The first `count` items, or all, in a random order that depends on the seed."""
    return [items[index] for index in np.random.default_rng(seed).permutation(len(items))[:count]]


def sample_files(files: Files, count: int | None) -> Files:
    """`count` of the files, always the same ones, in their order; all of them for None."""
    if count is None or count >= len(files):
        return files
    order = np.random.default_rng(0).permutation(len(files))[:count]
    return tuple(files[index] for index in sorted(order))
