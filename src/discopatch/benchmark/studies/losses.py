"""The losses of all runs in one small table, for curves."""

import csv
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from discopatch.files import write_atomically
from discopatch.training.log import COLUMNS, read_losses

MOST = 500


def thinned(lines: NDArray[np.float64], most: int = MOST) -> NDArray[np.float64]:
    """(steps, columns) -> at most so many rows: means of successive steps, at the last step of each block."""
    blocks = np.array_split(lines, min(most, len(lines)))
    return np.array([[block[-1, 0], *block[:, 1:].mean(0)] for block in blocks])


def write_losses(out: Path, runs: Iterable[tuple[str, Path]]) -> None:
    """One CSV for all runs; the first column is the name of the run."""
    rows = [
        [name, int(step), *(f"{value:.5g}" for value in losses)]
        for name, path in runs
        for step, *losses in thinned(np.array(read_losses(path))).tolist()
    ]

    def write(beside: Path) -> None:
        with beside.open("w", newline="") as file:
            csv.writer(file).writerows([["run", *COLUMNS], *rows])

    write_atomically(out, write)


def unfold(path: Path, folder: Path) -> dict[str, Path]:
    """The inverse: a CSV for each run, such as a run writes itself, by its name."""
    with path.open(newline="") as file:
        rows = list(csv.reader(file))[1:]
    found = {}
    for run in dict.fromkeys(row[0] for row in rows):
        found[run] = folder / f"{run}.csv"
        lines = [COLUMNS, *(row[1:] for row in rows if row[0] == run)]
        found[run].parent.mkdir(parents=True, exist_ok=True)
        with found[run].open("w", newline="") as file:
            csv.writer(file).writerows(lines)
    return found
