"""Seconds and memory to fit a detector on files and to score others with it, on a CPU.

python studies/fit_speed.py                                 # crops of sample photos
python studies/fit_speed.py --solar FOLDER --threads 2      # solar cells: labels.csv and images/
python studies/fit_speed.py --solar FOLDER --head combined --weights FILE.safetensors

The table of docs/performance.md.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from time import process_time
from typing import Annotated

import torch
import typer
from PIL import Image
from rich.console import Console
from rich.table import Table

from common import seconds_of
from discopatch import Detector
from discopatch.bench.cost import peak_mib
from discopatch.bench.dataset import shuffled
from discopatch.bench.suites.solar import NORMAL_CELL, labelled_cells
from discopatch.heads import DEFAULT_HEAD
from discopatch.images.samples import TRAINING, crops, sample_photos
from discopatch.model import Weights
from discopatch.pretrained import DEFAULT_WEIGHTS, PRETRAINED, load_pretrained


def main(
    solar: Annotated[Path | None, typer.Option(help="Folder with labels.csv and images/.")] = None,
    fit: Annotated[int, typer.Option(help="Images to fit on.")] = 600,
    score: Annotated[int, typer.Option(help="Images to score.")] = 100,
    threads: Annotated[int | None, typer.Option(help="Of torch. Default: its own choice.")] = None,
    weights: Annotated[str, typer.Option(help="Pretrained weights by name, or a file of weights.")] = DEFAULT_WEIGHTS,
    head: Annotated[str, typer.Option(help="What makes the score.")] = DEFAULT_HEAD,
    repeats: Annotated[int, typer.Option(help="In the same process; the shortest counts.")] = 1,
) -> None:
    """Prints a table with a row a step; the memory is the most that the process ever held."""
    torch.set_num_threads(threads or torch.get_num_threads())
    title = f"{weights}, {head}, {fit} images to fit, {score} to score; CPU, {torch.get_num_threads()} threads"
    table = Table("step", "seconds", "seconds of cores", "ms an image", "peak MiB", title=title)
    load = partial(load_pretrained, weights) if weights in PRETRAINED else partial(Weights.load, Path(weights))
    with TemporaryDirectory() as folder:
        files = image_files(solar, Path(folder), fit + score)
        detector = Detector(load(), head=head, device="cpu")
        steps: dict[str, tuple[int, int, Callable[[], object]]] = {
            "load the weights": (0, 1, load),
            "fit": (fit, repeats, lambda: detector.fit(files[:fit])),
            "score": (score, repeats, lambda: detector.predict(files[fit:])),
        }
        for name, (images, times, step) in steps.items():
            seconds, of_cores = min(both_seconds_of(step) for _ in range(times))
            each = f"{seconds / images * 1e3:.0f}" if images else ""
            table.add_row(name, f"{seconds:.2f}", f"{of_cores:.2f}", each, f"{peak_mib():.0f}")
    Console().print(table)


def both_seconds_of(step: Callable[[], object]) -> tuple[float, float]:
    """Wall-clock seconds of one call, and those of all cores together."""
    before = process_time()
    return seconds_of(step), process_time() - before


def image_files(solar: Path | None, folder: Path, count: int) -> list[Path]:
    """Normal solar cells, or crops of sample photos written to the folder, 300 pixels wide and high like the cells."""
    if solar is not None:
        files = [file.path for file in shuffled(labelled_cells(solar)[NORMAL_CELL], seed=0)]
        if len(files) < count:
            raise typer.BadParameter(f"{len(files)} normal cells, {count} are needed: lower --fit or --score")
        return files[:count]
    for image in crops(sample_photos(TRAINING), -(-count // len(TRAINING)), size=300, seed=0):
        Image.fromarray(image.pixels).save(folder / f"{image.name}.png")
    files = sorted(folder.iterdir())
    Random(0).shuffle(files)  # photo after photo would be images that drift
    return files[:count]


if __name__ == "__main__":
    typer.run(main)
