"""Seconds and peak memory to score many images from tar shards: time should grow linearly, memory not at all.

python studies/scaling.py --detector DETECTOR --shard photos.tar       # 1,000, 10,000 and 100,000 images
python studies/scaling.py --detector DETECTOR --shard photos.tar --images 1000 --images 4000

The table of docs/performance.md. The shard is read as often as it takes. Each size has a process of its own, since
memory is counted by its peak.
"""

import subprocess
import sys
import time
from itertools import cycle, islice
from pathlib import Path
from typing import Annotated

import typer

from discopatch import load
from discopatch.bench.cost import peak_mib
from discopatch.images import DEFAULT_WORKERS, Processes, Workers

SIZES = (1_000, 10_000, 100_000)


def main(
    detector: Annotated[Path, typer.Option(help="That `discopatch fit` or `discopatch export` wrote.")],
    shard: Annotated[Path, typer.Option(help="A tar of images.")],
    images: Annotated[list[int] | None, typer.Option(help="Sizes; several times.")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, ...")] = "auto",
    batch_size: Annotated[int, typer.Option(help="Images that pass together.")] = 8,
    workers: Annotated[int | None, typer.Option(help="How many decode.")] = None,
    processes: Annotated[bool, typer.Option("--processes", help="Decode in processes instead of threads.")] = False,
    alone: Annotated[bool, typer.Option("--alone", hidden=True, help="Score here, and print two numbers.")] = False,
) -> None:
    """Prints a table, each row as soon as it is known."""
    sizes = images or SIZES
    if alone:
        decoding: Workers = DEFAULT_WORKERS if workers is None else workers
        if processes:
            decoding = Processes() if workers is None else Processes(workers)
        print(*score_images(detector, shard, sizes[0], device, batch_size, decoding))
        return
    print("| images | seconds | images/s | peak MiB |\n|---|---|---|---|", flush=True)
    options = [f"--device={device}", f"--batch-size={batch_size}", *([f"--workers={workers}"] if workers else [])]
    options += ["--processes"] * processes
    for count in sizes:
        command = [__file__, f"--detector={detector}", f"--shard={shard}", f"--images={count}", "--alone", *options]
        done = subprocess.run([sys.executable, *command], stdout=subprocess.PIPE, text=True, check=True)
        seconds, peak = map(float, done.stdout.split())
        print(f"| {count:,} | {seconds:.1f} | {count / seconds:.0f} | {peak:.0f} |", flush=True)


def score_images(
    path: Path, shard: Path, count: int, device: str, batch_size: int, workers: Workers
) -> tuple[float, float]:
    """Seconds and peak MiB; loading the detector is not counted."""
    detector = load(path, device=device, batch_size=batch_size)
    shards = islice(cycle([str(shard)]), count)  # more shards than are ever opened
    start = time.perf_counter()
    predicted = sum(1 for _ in islice(detector.predict_iter(shards, workers=workers), count))
    assert predicted == count, f"{predicted} of {count} images"
    return time.perf_counter() - start, peak_mib()


if __name__ == "__main__":
    typer.run(main)
