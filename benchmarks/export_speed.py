"""Milliseconds to score one picture that is already decoded: a detector in torch, and its exports without.

python benchmarks/export_speed.py camera-3 camera-3-onnx camera-3-onnx-int8 --threads 2

Each is timed in a process of its own, since the threads of two runtimes would wait for each other, and they take turns.
"""

import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from discopatch.deploy.references import made_up
from discopatch.deploy.runtime import Runtime
from discopatch.images import Pixels

WARM_UP = 3

Look = Callable[[Pixels], object]


def main(
    paths: Annotated[list[Path], typer.Argument(help="Detectors and exports of them.")],
    threads: int = 2,
    rounds: int = 4,
    repeats: int = 10,
    heat: Annotated[bool, typer.Option("--heat", help="Time the heatmap too.")] = False,
    alone: Annotated[bool, typer.Option("--alone", hidden=True)] = False,
) -> None:
    """Prints a table, a row for each path."""
    if alone:
        print(*timed(paths[0], threads, repeats, heat=heat))
        return
    times: dict[Path, list[float]] = {path: [] for path in paths}
    for number in range(rounds):
        for path in paths if number % 2 == 0 else reversed(paths):
            times[path] += in_a_process(path, threads, repeats, heat=heat)
    table = Table("one picture", "ms", "spread", title=f"{threads} threads, median of {rounds * repeats}")
    for path, found in times.items():
        table.add_row(path.name, f"{statistics.median(found):.1f}", f"{min(found):.1f}-{max(found):.1f}")
    Console().print(table)


def in_a_process(path: Path, threads: int, repeats: int, *, heat: bool) -> list[float]:
    """Milliseconds of each pass."""
    words = [sys.executable, __file__, str(path), "--threads", str(threads), "--repeats", str(repeats), "--alone"]
    done = subprocess.run([*words, *(["--heat"] if heat else [])], capture_output=True, text=True, check=True)
    return [float(number) for number in done.stdout.split()]


def timed(path: Path, threads: int, repeats: int, *, heat: bool) -> list[float]:
    """The same in this process, after a few passes to warm up."""
    picture = made_up(1, size=256)
    look = of_export(path, threads, heat=heat) if path.is_dir() else of_detector(path, threads, heat=heat)
    times = []
    for _ in range(WARM_UP + repeats):
        start = time.perf_counter()
        look(picture)
        times.append((time.perf_counter() - start) * 1e3)
    return times[WARM_UP:]


def of_export(path: Path, threads: int, *, heat: bool) -> Look:
    """What scores a picture, or explains it, by an export."""
    runtime = Runtime.load(path, threads=threads)
    return (lambda picture: runtime.explain(picture[0])) if heat else runtime.score_pixels


def of_detector(path: Path, threads: int, *, heat: bool) -> Look:
    """The same by the detector, in torch."""
    import torch

    from discopatch import Detector

    torch.set_num_threads(threads)
    detector = Detector.load(path, device="cpu")
    scorer, head = detector.scorer, detector.fitted.head
    return (lambda picture: detector.explain(picture[0])) if heat else lambda p: head.score(scorer.inspect_pixels(p))


if __name__ == "__main__":
    typer.run(main)
