"""The loader of `discopatch train --stream` at the size of ImageNet: 1,281 shards of 1,000 JPEG, about 150 GB.

python studies/stream_training.py --folder shards/            # makes the shards there, about 0.5 GB on disk
python studies/stream_training.py --folder shards/ --shards 20 --images 100 --batches 5

The table of docs/training.md. A few real tar files stand under all names as hard links: the loader lists, shuffles and
reads as if they were 1,281, but the disk holds a few, and they stay in the page cache. So the rate is that of reading
from memory and decoding, not that of a disk. Nothing is trained.
"""

import hashlib
import io
import json
import os
import tarfile
import time
from dataclasses import asdict
from multiprocessing import get_context
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
import typer
from PIL import Image

from discopatch.bench.cost import peak_mib
from discopatch.images import DEFAULT_LIMITS, DEFAULT_WORKERS, Processes, Transform, Workers, open_index
from discopatch.images.samples import sample_photos
from discopatch.training.checkpoint import CheckpointHeader
from discopatch.training.stream import StreamedImages, StreamOrder
from discopatch.utils import temporary_folder

WIDTH, HEIGHT, QUALITY = 500, 375, 95  # of a usual image of ImageNet, about 110 kB
EPOCH = 3  # in whose middle the loader begins anew


def main(
    folder: Annotated[Path, typer.Option(help="Of the shards, which are made where they are missing.")],
    shards: Annotated[int, typer.Option(help="How many.")] = 1281,
    images: Annotated[int, typer.Option(help="In each shard.")] = 1000,
    distinct: Annotated[int, typer.Option(help="Shards that are files of their own.")] = 4,
    batch: Annotated[int, typer.Option(help="Images a step.")] = 64,
    batches: Annotated[int, typer.Option(help="That are loaded for the rate.")] = 200,
    workers: Annotated[int | None, typer.Option(help="How many decode.")] = None,
    processes: Annotated[bool, typer.Option("--processes", help="Decode in processes instead of threads.")] = False,
) -> None:
    """Prints a table: listing, memory, plan, state, rate, and going on from the middle of an epoch."""
    making = get_context("spawn").Process(target=make_shards, args=(folder, shards, images, distinct))
    making.start()  # in a process of its own, or its memory would be counted
    making.join()
    decoding: Workers = DEFAULT_WORKERS if workers is None else workers
    if processes:
        decoding = Processes() if workers is None else Processes(workers)
    before = peak_mib()
    with temporary_folder() as cache:
        rows = {}
        start = time.perf_counter()
        index = open_index(str(folder), cache)
        rows["listing, the first time"] = f"{time.perf_counter() - start:.2f} s"
        start = time.perf_counter()
        index = open_index(str(folder), cache)
        rows["listing, from the stored index"] = f"{time.perf_counter() - start:.2f} s"
        rows["stored index"] = f"{sum(path.stat().st_size for path in (cache / 'shards').iterdir()) / 1e6:.1f} MB"
    rows["memory of the index, at its peak"] = f"{peak_mib() - before:.0f} MiB"
    rows["images"] = f"{len(index):,} in {len(index.shards):,} shards, {index.sizes.sum() / 1e9:.1f} GB"

    order = StreamOrder(index.counts, seed=0)
    start = time.perf_counter()
    every = order.images(0, len(index))
    rows["order of a whole epoch"] = f"{time.perf_counter() - start:.2f} s"
    assert np.array_equal(np.sort(every), np.arange(len(index)))
    start = time.perf_counter()
    place = EPOCH * len(index) + len(index) // 2
    StreamOrder(index.counts, seed=0).images(place, batch)
    rows["order of one batch, from nothing"] = f"{(time.perf_counter() - start) * 1e3:.1f} ms"
    state = json.dumps(asdict(CheckpointHeader(step=place // batch, images_seen=place)))
    rows["state of the stream"] = f"{len(state)} bytes: {state}"

    loader = StreamedImages(
        index,
        torch.device("cpu"),
        Transform(),
        seed=0,
        batch=batch,
        stride=batch,
        workers=decoding,
        limits=DEFAULT_LIMITS,
    )
    for name, first in (("first batch, at the beginning", 0), (f"first batch, in the middle of epoch {EPOCH}", place)):
        start = time.perf_counter()
        loader.take(first, batch)
        rows[name] = f"{time.perf_counter() - start:.2f} s"
    start = time.perf_counter()
    passed = [digest_of(loader, place + step * batch, batch) for step in range(1, batches + 1)]
    seconds = time.perf_counter() - start
    rows["rate"] = f"{batches * batch / seconds:.0f} images/s with {decoding} on {os.cpu_count()} cores"
    loader.close()
    again = digest_of(loader, place + batches // 2 * batch, batch)
    loader.close()
    rows["a batch after beginning anew"] = "the same to the bit" if again == passed[batches // 2 - 1] else "DIFFERS"
    rows["memory in all, at its peak"] = f"{peak_mib():.0f} MiB (before: {before:.0f})"
    print("| | |\n|---|---|")
    for name, value in rows.items():
        print(f"| {name} | {value} |")


def digest_of(loader: StreamedImages, place: int, count: int) -> str:
    return hashlib.sha256(loader.take(place, count).numpy().tobytes()).hexdigest()


def make_shards(folder: Path, shards: int, images: int, distinct: int) -> None:
    """Some tar files of JPEG cut from sample photos, and hard links to them under the other names."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"shard-{number:05d}.tar" for number in range(shards)]
    for number, path in enumerate(paths[:distinct]):
        if not path.exists():
            write_shard(path, images, seed=number)
    for number, path in enumerate(paths[distinct:]):
        if not path.exists():
            os.link(paths[number % distinct], path)


def write_shard(path: Path, images: int, *, seed: int) -> None:
    """So many JPEG of usual size; a cut of a photo, enlarged, and a little noise, which makes the usual bytes."""
    rng = np.random.default_rng(seed)
    photos = list(sample_photos(("astronaut", "coffee", "rocket", "cat")).values())
    with tarfile.open(path.with_suffix(".partial"), "w") as archive:
        for number in range(images):
            photo = Image.fromarray(photos[int(rng.integers(len(photos)))])
            width, height = photo.size
            left, top = int(rng.integers(width // 2)), int(rng.integers(height // 2))
            cut = photo.resize((WIDTH, HEIGHT), box=(left, top, left + width // 2, top + height // 2))
            noisy = np.asarray(cut, np.float32) + rng.normal(0, 7, (HEIGHT, WIDTH, 1)).astype(np.float32)
            file = io.BytesIO()
            Image.fromarray(noisy.clip(0, 255).astype(np.uint8)).save(file, "jpeg", quality=QUALITY)
            member = tarfile.TarInfo(f"n{number % 50:08d}/n{number % 50:08d}_{number:05d}.JPEG")
            member.size = file.tell()
            file.seek(0)
            archive.addfile(member, file)
    path.with_suffix(".partial").rename(path)


if __name__ == "__main__":
    typer.run(main)
