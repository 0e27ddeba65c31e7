"""A set of images and the way that they go: all that decides what a network sees of it."""

import json
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

import discopatch
from discopatch.benchmark.imagefile import File, digest_of
from discopatch.benchmark.suites.suite import Files
from discopatch.benchmark.ways import Way, describe


@dataclass(frozen=True)
class ImageSet:
    """Files, numbered from `first` on, and their way to the network."""

    name: str
    files: Files
    way: Way
    first: int = 0

    def __len__(self) -> int:
        return len(self.files)

    def parts(self, size: int) -> Iterator["ImageSet"]:
        """So many at a time, each under its number."""
        for start in range(0, len(self), size):
            yield replace(self, files=self.files[start : start + size], first=self.first + start)


@dataclass(frozen=True, eq=False)
class Digests:
    """What each file holds, read once."""

    known: dict[File, str] = field(default_factory=dict)

    def learn(self, files: Sequence[File], *, workers: int) -> None:
        """Reads those that are not known yet."""
        new = [file for file in dict.fromkeys(files) if file not in self.known]
        with ThreadPoolExecutor(workers) as pool:
            self.known.update(zip(new, pool.map(lambda file: file.digest, new), strict=True))

    def of(self, images: ImageSet) -> str:
        """16 hex digits that stand for the images, their numbers and their way."""
        way = json.dumps([discopatch.__version__, images.first, describe(images.way)], sort_keys=True)
        return digest_of([way, *(self.known[file] for file in images.files)])
