"""The losses of all runs in one small CSV, and their curves."""

import csv
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from common import running_mean
from discopatch.errors import ParameterError
from discopatch.training.progress import COLUMNS, read_losses
from discopatch.utils import write_atomically

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Losses = NDArray[np.float64]  # (steps, COLUMNS)

MAX_LINES = 500
PANELS = {
    "discriminator": "discriminator loss",
    "reconstruction": "reconstruction (MSE)",
    "kl": "KL divergence",
    "fool_reconstructed": r"$-$log D(reconstructed)",
    "fool_generated": r"$-$log D(generated)",
    "vae": "VAE loss",
}


def read_run(path: Path) -> Losses:
    """The losses.csv of one run."""
    lines = read_losses(path)
    if not lines:
        raise ParameterError(f"no losses of this version in {path}: give the losses.csv of a run")
    return np.array(lines)


def thin(losses: Losses, lines: int = MAX_LINES) -> Losses:
    """At most so many rows: means of successive steps, at the last step of each block."""
    blocks = np.array_split(losses, min(lines, len(losses)))
    return np.array([[block[-1, 0], *block[:, 1:].mean(0)] for block in blocks])


def write_losses(path: Path, runs: Mapping[str, Path]) -> None:
    """One CSV for all runs, thinned; the first column is the name of the run."""
    write_all_losses(path, {name: thin(read_run(source)) for name, source in runs.items()})


def write_all_losses(path: Path, runs: Mapping[str, Losses]) -> None:
    rows = [
        [name, int(step), *(f"{value:.5g}" for value in values)]
        for name, losses in runs.items()
        for step, *values in losses.tolist()
    ]

    def write(partial: Path) -> None:
        with partial.open("w", newline="") as file:
            csv.writer(file).writerows([["run", *COLUMNS], *rows])

    write_atomically(path, write)


def read_all_losses(path: Path) -> dict[str, Losses]:
    """What `write_losses` wrote, by run."""
    with path.open(newline="") as file:
        rows = list(csv.reader(file))[1:]
    names = dict.fromkeys(row[0] for row in rows)
    return {name: np.array([row[1:] for row in rows if row[0] == name], np.float64) for name in names}


def losses_figure(runs: Mapping[str, Losses], *, window: int = 50) -> "Figure":
    """Every loss against the step with its running mean, a colour for each run."""
    from discopatch.bench.plots.style import TWO_COLUMNS, colour, new_figure, plot_style

    with plot_style():
        figure, axes = new_figure(TWO_COLUMNS, 3.6, rows=2, columns=3, sharex=True)
        flat = [axis for line in axes for axis in line]
        for axis, (name, title) in zip(flat, PANELS.items(), strict=True):
            highest = 0.0
            for place, (label, losses) in enumerate(runs.items()):
                steps, values = losses[:, 0], losses[:, COLUMNS.index(name)]
                smooth = running_mean(values, window)
                axis.plot(steps, values, color=colour(place), alpha=0.25, linewidth=0.4)
                axis.plot(steps[len(steps) - len(smooth) :], smooth, color=colour(place), label=label)
                highest = max(highest, float(np.percentile(values, 99.5)))
            axis.set_title(title)
            axis.set_ylim(0, 1.05 * highest or 1)  # the first steps would flatten the rest
            axis.grid()
        for axis in axes[-1]:
            axis.set_xlabel("step")
        if len(runs) > 1:
            lines = [line for line in flat[0].get_lines() if line.get_label() in runs]
            figure.legend(handles=lines, loc="outside lower center", ncols=4)
    return figure
