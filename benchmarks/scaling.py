"""Seconds and peak memory to score many images from tar shards: time should grow in line, memory not at all.

python benchmarks/scaling.py --detector DETECTOR --shard photos.tar       # 1,000, 10,000 and 100,000 images
python benchmarks/scaling.py --detector DETECTOR --shard photos.tar --images 1000 --images 4000

The shard is read as often as it takes. Each size has a process of its own, since memory is counted by its peak.
"""

import subprocess
import sys
import time
from itertools import cycle, islice
from pathlib import Path
from typing import Annotated

import typer

from discopatch.benchmark.memory import peak_mib
from discopatch.cli.loading import load
from discopatch.cli.options import workers_of
from discopatch.images import Workers


def main(
    detector: Annotated[Path, typer.Option(help="That `discopatch fit` or `discopatch export` wrote.")],
    shard: Annotated[Path, typer.Option(help="A tar of images.")],
    images: Annotated[list[int] | None, typer.Option(help="Sizes; several times.")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, ...")] = "auto",
    batch_size: Annotated[int, typer.Option(help="Images that pass together.")] = 8,
    workers: Annotated[int | None, typer.Option(help="How many decode.")] = None,
    processes: Annotated[bool, typer.Option("--processes", help="Decode in processes instead of threads.")] = False,
    alone: Annotated[
        bool, typer.Option("--alone", hidden=True, help="This process scores, and prints two numbers.")
    ] = False,
) -> None:
    """Prints a table, each row as soon as it is known."""
    if alone:
        decoding = workers_of(workers, processes=processes)
        print(*score(detector, shard, images[0] if images else 0, device, batch_size, decoding))
        return
    print("| images | seconds | images/s | peak MiB |\n|---|---|---|---|", flush=True)
    options = [f"--device={device}", f"--batch-size={batch_size}", *([f"--workers={workers}"] if workers else [])]
    options += ["--processes"] * processes
    for count in images or [1_000, 10_000, 100_000]:
        command = [__file__, f"--detector={detector}", f"--shard={shard}", f"--images={count}", "--alone", *options]
        done = subprocess.run([sys.executable, *command], stdout=subprocess.PIPE, text=True, check=True)
        seconds, peak = map(float, done.stdout.split())
        print(f"| {count:,} | {seconds:.1f} | {count / seconds:.0f} | {peak:.0f} |", flush=True)


def score(
    detector: Path, shard: Path, count: int, device: str, batch_size: int, workers: Workers
) -> tuple[float, float]:
    """Seconds and peak MiB; loading is not counted."""
    loaded = load(detector, device=device, batch_size=batch_size)
    again = islice(cycle([str(shard)]), count)  # more shards than are ever opened
    start = time.perf_counter()
    seen = sum(1 for _ in islice(loaded.predictions(again, workers=workers), count))
    assert seen == count, f"{seen} of {count} images"
    return time.perf_counter() - start, peak_mib()


if __name__ == "__main__":
    typer.run(main)
