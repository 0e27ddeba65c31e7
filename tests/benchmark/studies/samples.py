"""A small tree in the layout of the real one, a plan for it, and a gallery that needs no files."""

import io
import tarfile
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np
from PIL import Image
from rich.console import Console

from discopatch.benchmark.studies.clock import Clock
from discopatch.benchmark.studies.everything import Studies
from discopatch.benchmark.studies.gallery import CONTROL, FAR, FIT, NEAR, TEST, Gallery, cell_name
from discopatch.benchmark.studies.plan import Plan
from discopatch.benchmark.studies.training import School
from discopatch.images import Picture
from discopatch.images.samples import crops, sample_photos
from discopatch.training.machine import Machine

SMALL = replace(
    Plan.tiny(),
    patches_in_all=32,
    images=2,
    patches=4,
    fit=12,
    limit=6,
    severities=(3,),
    batch_sizes=(1, 4),
    resamples=20,
)
QUIET = Console(quiet=True)


def make_tree(root: Path) -> Path:
    """Crops of sample photos; those of one photo stand for all that is strange."""
    photos, others = sample_photos(["coffee", "temple"]), sample_photos(["coins"])
    shard(root / "natural" / "train-0000.tar", crops(photos, 4, size=64, seed=1))
    shard(root / "natural" / "train-0001.tar", crops(photos, 4, size=64, seed=2))
    shard(root / "natural" / "test.tar", crops(photos, 4, size=90, seed=3))
    for number, name in enumerate((*NEAR, *FAR, *CONTROL)):
        shard(root / "ood" / f"{name}.tar", crops(others, 7, size=80, seed=number))
    return root


def shard(path: Path, pictures: Iterable[Picture]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as archive:
        for number, picture in enumerate(pictures):
            file = io.BytesIO()
            Image.fromarray(picture.pixels).save(file, "JPEG", quality=92)
            member = tarfile.TarInfo(f"{path.stem}-{number:03d}.jpg")
            member.size = len(file.getvalue())
            file.seek(0)
            archive.addfile(member, file)


def make_gallery(plan: Plan = SMALL, *, images: int = 6) -> Gallery:
    """So many pictures of each set."""
    wanted = plan.wanted
    names = [FIT, TEST, *NEAR, *FAR, *CONTROL, *(cell_name(*cell) for cell in wanted.cells)]
    size = plan.transform.size
    photos = crops(sample_photos(["cat", "coins"]), len(names) * images, size=size, seed=0)
    pixels = np.stack([photo.pixels for photo in photos[: len(names) * images]])
    sets = {name: (number * images, (number + 1) * images) for number, name in enumerate(names)}
    return Gallery(pixels, sets, wanted, "key", dict.fromkeys(names, "digest"))


def make_school(tree: Path, work: Path, *, compile: bool = False) -> School:
    shards = tuple(sorted(map(str, (tree / "natural").glob("train-*.tar"))))
    return School(shards, work, Machine(accelerator="cpu", compile=compile, workers=1), QUIET)


def make_studies(tree: Path, work: Path, out: Path, plan: Plan = SMALL, *, minutes: float | None = None) -> Studies:
    out.mkdir(exist_ok=True)
    clock = Clock(minutes, say=lambda line: None)
    return Studies(plan, tree, out, make_school(tree, work), clock, device="cpu", workers=1)
