"""Seconds and memory to fit a detector on files and to score others with it, on a CPU.

python benchmarks/fit_speed.py                                 # crops of sample photos
python benchmarks/fit_speed.py --solar FOLDER --threads 2      # solar cells: labels.csv and images/
"""

import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, TypeVar

import torch
import typer
from PIL import Image
from rich.console import Console
from rich.table import Table

from discopatch import Detector
from discopatch.benchmark.memory import peak_mib
from discopatch.benchmark.suites.order import in_random_order
from discopatch.benchmark.suites.solar import NORMAL_CELL, labelled_cells
from discopatch.images.samples import TRAINING, crops, sample_photos
from discopatch.weights import DEFAULT

T = TypeVar("T")


def main(
    solar: Annotated[Path | None, typer.Option(help="Folder with labels.csv and images/.")] = None,
    fit: Annotated[int, typer.Option(help="Images to fit on.")] = 600,
    score: Annotated[int, typer.Option(help="Images to score.")] = 100,
    threads: Annotated[int | None, typer.Option(help="Of torch. Default: its own choice.")] = None,
    weights: Annotated[str, typer.Option(help="Released weights by name.")] = DEFAULT,
    repeats: Annotated[int, typer.Option(help="Each in the same process; the shortest counts.")] = 1,
) -> None:
    """Prints a table, a row a step; the memory is the most that the process ever held."""
    torch.set_num_threads(threads or torch.get_num_threads())
    title = f"{weights}, {fit} images to fit, {score} to score; CPU, {torch.get_num_threads()} threads"
    table = Table("step", "seconds", "ms an image", "peak MiB", title=title)
    with TemporaryDirectory() as folder:
        files = image_files(solar, Path(folder), fit + score)
        start, detector = timed(lambda: Detector.pretrained(weights, device="cpu"), 1)
        table.add_row("load the weights", f"{start:.2f}", "", f"{peak_mib():.0f}")
        seconds, _ = timed(lambda: detector.fit(files[:fit]), repeats)
        table.add_row("fit", f"{seconds:.1f}", f"{seconds / fit * 1e3:.0f}", f"{peak_mib():.0f}")
        seconds, _ = timed(lambda: detector.predict(files[fit:]), repeats)
        table.add_row("score", f"{seconds:.1f}", f"{seconds / score * 1e3:.0f}", f"{peak_mib():.0f}")
    Console().print(table)


def image_files(solar: Path | None, folder: Path, count: int) -> list[Path]:
    """Normal solar cells, or crops of sample photos written to the folder, 300 pixels wide and high like the cells."""
    if solar is not None:
        files = [file.path for file in in_random_order(labelled_cells(solar)[NORMAL_CELL], seed=0)]
        if len(files) < count:
            raise typer.BadParameter(f"{len(files)} normal cells, {count} are needed: lower --fit or --score")
        return files[:count]
    found = []
    for picture in crops(sample_photos(TRAINING), -(-count // len(TRAINING)), size=300, seed=0):
        found.append(folder / f"{picture.name}.png")
        Image.fromarray(picture.pixels).save(found[-1])
    return sorted(found)[:count]


def timed(call: Callable[[], T], repeats: int) -> tuple[float, T]:
    """The shortest time in seconds, and the last result."""
    best = float("inf")
    for _ in range(repeats):
        start = time.perf_counter()
        result = call()
        best = min(best, time.perf_counter() - start)
    return best, result


if __name__ == "__main__":
    typer.run(main)
