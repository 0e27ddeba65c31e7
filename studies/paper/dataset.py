"""All images of the studies, decoded, preprocessed and corrupted once for all models: one array, mapped into memory.

No torch here: the processes that prepare the images import this file too.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from discopatch.bench.dataset import Digests, Files, ImageSet, digest_of_set, list_files, shuffled
from discopatch.bench.pool import PART, CorruptionPool
from discopatch.bench.preprocessing import matched
from discopatch.bench.suites.natural import GROUPS, STORED, train_shards
from discopatch.bench.suites.natural import TEST as TEST_SHARD
from discopatch.errors import NoImagesError
from discopatch.images import Pixels
from discopatch.utils import write_json
from paper.plan import Plan

FIT, TEST = "fit", "test"
NEAR, FAR, CONTROL = (
    tuple(name for name, group in GROUPS.items() if group == wanted) for wanted in ("near", "far", "control")
)
INDEX, PIXELS = "index.json", "pixels.npy"


@dataclass(frozen=True, eq=False)
class Dataset:
    """The images and where each set lies among them; the photos to fit on come first."""

    pixels: Pixels  # (N, size, size, 3); writing into it changes no file
    sets: dict[str, slice]
    key: str  # stands for the files and their preprocessing
    digests: dict[str, str]  # of the pixels of each set

    def images(self, name: str) -> Pixels:
        """(images, size, size, 3) of that set."""
        return self.pixels[self.sets[name]]

    def size(self, name: str) -> int:
        return len(self.images(name))

    def without_fit(self) -> tuple[Pixels, dict[str, slice]]:
        """All images but those to fit on, without a copy, and where each set lies among them."""
        first = self.sets[FIT].stop
        places = {name: slice(place.start - first, place.stop - first) for name, place in self.sets.items()}
        return self.pixels[first:], {name: place for name, place in places.items() if place.start >= 0}

    @property
    def summary(self) -> dict[str, dict[str, Any]]:
        """How many images each set has, and the digest of their pixels."""
        return {name: {"images": self.size(name), "digest": digest} for name, digest in self.digests.items()}


def set_groups(plan: Plan, severities: Sequence[int]) -> dict[str, tuple[str, ...]]:
    """The sets that are compared with the test photos, by group."""
    corrupted = tuple(corrupted_name(*cell) for cell in plan.cells if cell[1] in severities)
    return {"near": NEAR, "far": FAR, "covariate": corrupted, "control": CONTROL}


def corrupted_name(corruption: str, severity: int) -> str:
    """The name of the set of corrupted test photos, such as fog 3."""
    return f"{corruption} {severity}"


def list_sets(root: Path, plan: Plan) -> list[ImageSet]:
    """The sets of root/natural/train-*.tar, test.tar and root/ood/*.tar, and the test photos under each corruption.

    The preprocessing of everything but the photos to fit on ends in the storage that these already have.
    """
    shards = train_shards(root)
    if not shards:
        raise NoImagesError(f"no train-*.tar in {root / 'natural'}: give the folder that holds natural/ and ood/")
    protocol = matched(plan.transform, STORED)
    train = [file for shard in shards for file in list_files(shard)]

    def some(path: str) -> Files:
        return tuple(shuffled(list_files(root / path), seed=plan.seed, count=plan.limit))

    test = some(TEST_SHARD)
    return [
        ImageSet(FIT, tuple(shuffled(train, seed=plan.seed, count=plan.fit)), protocol.fit),
        ImageSet(TEST, test, protocol.normal),
        *(ImageSet(name, some(f"ood/{name}.tar"), protocol.other) for name in (*NEAR, *FAR, *CONTROL)),
        *(ImageSet(corrupted_name(*cell), test, protocol.corrupted(*cell)) for cell in plan.cells),
    ]


def prepare_dataset(sets: Sequence[ImageSet], folder: Path, *, workers: int) -> Dataset:
    """The images of these sets; what an earlier call left in `folder` is used again."""
    digests = Digests()
    digests.read([file for images in sets for file in images.files], workers=workers)
    key = digest_of_set([digests.of(images) for images in sets])
    place = folder / f"dataset-{key}"
    if not (place / INDEX).exists():
        frost = any(images.name.startswith("frost") for images in sets)
        with CorruptionPool(workers, frost=frost) as pool:
            write_dataset(place, sets, pool)
    index = json.loads((place / INDEX).read_text())
    # Copied on write: torch warns of arrays that cannot be written to.
    pixels = np.load(place / PIXELS, mmap_mode="c")
    return Dataset(pixels, {name: slice(*ends) for name, ends in index["sets"].items()}, key, index["digests"])


def write_dataset(folder: Path, sets: Sequence[ImageSet], pool: CorruptionPool) -> None:
    """Writes the array set by set, and its index at the end."""
    folder.mkdir(parents=True, exist_ok=True)
    parts = [(images.name, part) for images in sets for part in images.parts(PART)]
    places: dict[str, list[int]] = {}
    digests = {images.name: hashlib.sha256() for images in sets}
    pixels, done = None, 0
    for (name, part), loaded in zip(parts, pool.stream(part.load for _, part in parts), strict=True):
        if pixels is None:
            shape = (sum(map(len, sets)), *loaded.shape[1:])
            pixels = np.lib.format.open_memmap(folder / PIXELS, "w+", np.uint8, shape)
        pixels[done : done + len(part)] = loaded
        digests[name].update(loaded.tobytes())
        places.setdefault(name, [done, done])
        done += len(part)
        places[name][1] = done
    assert pixels is not None
    pixels.flush()
    write_json(
        folder / INDEX, {"sets": places, "digests": {name: each.hexdigest()[:16] for name, each in digests.items()}}
    )
