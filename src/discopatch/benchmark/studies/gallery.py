"""Every picture that the studies look at, prepared once for all models: one array, mapped into memory.

No torch here: the processes that prepare pictures read this file too.
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from discopatch.benchmark.imagefile import File, files_in
from discopatch.benchmark.pool import PART, Pool
from discopatch.benchmark.storage import LOSSLESS, Storage
from discopatch.benchmark.suites.natural import GROUPS, STORED
from discopatch.benchmark.suites.order import in_random_order
from discopatch.files import write_json
from discopatch.images import Limits, Pixels, Transform
from discopatch.images.decode import decode

Tell = Callable[[str], object]

FIT, TEST = "fit", "test"
NEAR, FAR, CONTROL = (
    tuple(name for name, group in GROUPS.items() if group == wanted) for wanted in ("near", "far", "control")
)


@dataclass(frozen=True)
class Wanted:
    """Which pictures, and how they are made."""

    transform: Transform
    fit: int
    limit: int | None
    corruptions: tuple[str, ...]
    severities: tuple[int, ...]
    seed: int
    storage: Storage = STORED

    @property
    def cells(self) -> list[tuple[str, int]]:
        """Every corruption at every severity."""
        return list(product(self.corruptions, self.severities))


@dataclass(frozen=True, eq=False)
class Gallery:
    """The pictures and which of them are which set; the photos to fit on come first.

    Everything but these was stored once more at the size of the transform, as they were: one way for all.
    """

    pixels: Pixels  # (N, size, size, 3); writing into it changes no file
    sets: dict[str, tuple[int, int]]  # from, to
    wanted: Wanted
    key: str
    digests: dict[str, str]

    def of(self, name: str) -> Pixels:
        """The pictures of a set."""
        return self.pixels[self.place(name)]

    def place(self, name: str) -> slice:
        """Where a set lies."""
        return slice(*self.sets[name])

    def size(self, name: str) -> int:
        """How many pictures a set has."""
        start, stop = self.sets[name]
        return stop - start

    def after(self, name: str) -> tuple[Pixels, dict[str, slice]]:
        """All pictures of the sets after that one, without a copy, and where each set lies among them."""
        first = self.sets[name][1]
        places = {each: slice(start - first, stop - first) for each, (start, stop) in self.sets.items()}
        return self.pixels[first:], {each: place for each, place in places.items() if place.start >= 0}

    def groups(self, severities: Sequence[int]) -> dict[str, tuple[str, ...]]:
        """The sets that are not normal, by what they are to the photos."""
        cells = tuple(cell_name(*cell) for cell in self.wanted.cells if cell[1] in severities)
        return {"near": NEAR, "far": FAR, "covariate": cells, "control": CONTROL}

    @property
    def data(self) -> dict[str, dict[str, Any]]:
        """How many pictures each set has, and what stands for them."""
        return {name: {"images": self.size(name), "digest": digest} for name, digest in self.digests.items()}


def cell_name(corruption: str, severity: int) -> str:
    """Of the test photos under that corruption."""
    return f"{corruption} {severity}"


def prepare(
    files: dict[str, list[File]], folder: Path, wanted: Wanted, *, workers: int, tell: Tell = lambda what: None
) -> Gallery:
    """The pictures of these files; found again in `folder` when they are there already."""
    key = key_of(files, wanted)
    place = folder / f"gallery-{key}"
    if (place / "index.json").exists():
        return load(place, wanted)
    with Pool(workers, frost="frost" in wanted.corruptions) as pool:
        build(place, files, wanted, pool, key, tell)
    return load(place, wanted)


def chosen_files(root: Path, wanted: Wanted) -> dict[str, list[File]]:
    """From root/natural/train-*.tar, test.tar and root/ood/*.tar, by set; of many, some at random."""
    shards = sorted((root / "natural").glob("train-*.tar"))
    if not shards:
        raise FileNotFoundError(f"no train-*.tar in {root / 'natural'}: give the folder that holds natural/ and ood/")
    found = {
        FIT: in_random_order(
            [file for shard in shards for file in files_in(shard)], seed=wanted.seed, count=wanted.fit
        ),
        TEST: in_random_order(files_in(root / "natural" / "test.tar"), seed=wanted.seed, count=wanted.limit),
    }
    for name in (*NEAR, *FAR, *CONTROL):
        found[name] = in_random_order(files_in(root / "ood" / f"{name}.tar"), seed=wanted.seed, count=wanted.limit)
    return found


def key_of(files: dict[str, list[File]], wanted: Wanted) -> str:
    """16 hex digits that stand for the request."""
    listed = {name: [[file.path.name, file.name, file.size] for file in each] for name, each in files.items()}
    asked = {**asdict(wanted), "transform": wanted.transform.digest}
    return hashlib.sha256(json.dumps([listed, asked], sort_keys=True).encode()).hexdigest()[:16]


def build(folder: Path, files: dict[str, list[File]], wanted: Wanted, pool: Pool, key: str, tell: Tell) -> None:
    """Writes the array set by set, and its index at the end."""
    folder.mkdir(parents=True, exist_ok=True)
    images = sum(map(len, files.values())) + len(wanted.cells) * len(files[TEST])
    size = wanted.transform.size
    pixels = np.lib.format.open_memmap(folder / "pixels.npy", "w+", np.uint8, (images, size, size, 3))
    sets: dict[str, tuple[int, int]] = {}
    digests: dict[str, str] = {}
    done = 0
    for name, parts in all_sets(files, wanted, pool):
        total, start = hashlib.sha256(), done
        for part in parts:
            pixels[done : done + len(part)] = part
            total.update(part.tobytes())
            done += len(part)
        sets[name], digests[name] = (start, done), total.hexdigest()[:16]
        tell(f"prepared {name}, {done:,} of {images:,} pictures")
    pixels.flush()
    del pixels
    write_json(folder / "index.json", {"key": key, "sets": sets, "digests": digests})


def all_sets(
    files: dict[str, list[File]], wanted: Wanted, pool: Pool
) -> Iterator[tuple[str, Iterable[NDArray[np.uint8]]]]:
    """Each set with its pictures, part by part; the last step of all but the photos to fit on is their storage."""
    for name, each in files.items():
        if name == TEST:
            bare = np.concatenate(list(read(pool, each, wanted.transform, LOSSLESS)))
            parts = np.split(bare, range(PART, len(bare), PART))
            yield name, pool.stream(partial(wanted.storage.store_all, part) for part in parts)
        else:
            yield name, read(pool, each, wanted.transform, LOSSLESS if name == FIT else wanted.storage)
    parts_of_a_cell = -(-len(bare) // PART)
    stream = pool.corrupted(bare, wanted.cells, wanted.storage)
    for cell in wanted.cells:
        yield cell_name(*cell), (next(stream)[2] for _ in range(parts_of_a_cell))


def read(pool: Pool, files: Sequence[File], transform: Transform, storage: Storage) -> Iterator[Pixels]:
    """Decoded, transformed and stored, part by part."""
    starts = range(0, len(files), PART)
    return pool.stream(partial(read_part, files[at : at + PART], transform, storage) for at in starts)


def read_part(files: Sequence[File], transform: Transform, storage: Storage) -> Pixels:
    """(N, size, size, 3)."""
    return storage.store_all(np.stack([transform(decode(file.read(), Limits())) for file in files]))


def load(folder: Path, wanted: Wanted) -> Gallery:
    """What `build` wrote."""
    index = json.loads((folder / "index.json").read_text())
    sets = {name: (start, stop) for name, (start, stop) in index["sets"].items()}
    # Copied on write: torch warns of arrays that cannot be written to.
    pixels = np.load(folder / "pixels.npy", mmap_mode="c")
    return Gallery(pixels, sets, wanted, index["key"], index["digests"])
