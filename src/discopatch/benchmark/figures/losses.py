"""The loss curves of one or several runs."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from discopatch.benchmark.figures.style import TWO_COLUMNS, colour, new, printed
from discopatch.training.log import COLUMNS, read_losses

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Array = NDArray[np.float64]

PANELS = {
    "discriminator": "discriminator loss",
    "reconstruction": "reconstruction (MSE)",
    "kl": "KL divergence",
    "fool_reconstructed": r"$-$log D(reconstructed)",
    "fool_generated": r"$-$log D(generated)",
    "vae": "VAE loss",
}


def losses_figure(runs: Mapping[str, Path], *, window: int = 50) -> "Figure":
    """Every loss against the step with its running mean; `runs` are losses.csv files by their labels."""
    tables = {label: read_run(path) for label, path in runs.items()}
    with printed():
        figure, axes = new(TWO_COLUMNS, 3.6, rows=2, columns=3, sharex=True)
        flat = [axis for line in axes for axis in line]
        for axis, (name, title) in zip(flat, PANELS.items(), strict=True):
            highest = 0.0
            for place, (label, table) in enumerate(tables.items()):
                steps, values = table[:, 0], table[:, COLUMNS.index(name)]
                smooth = running_mean(values, window)
                axis.plot(steps, values, color=colour(place), alpha=0.25, linewidth=0.4)
                axis.plot(steps[len(steps) - len(smooth) :], smooth, color=colour(place), label=label)
                highest = max(highest, float(np.percentile(values, 99.5)))
            axis.set_title(title)
            axis.set_ylim(0, 1.05 * highest or 1)  # the first steps would flatten the rest
            axis.grid()
        for axis in axes[-1]:
            axis.set_xlabel("step")
        if len(tables) > 1:
            lines = [line for line in flat[0].get_lines() if line.get_label() in tables]
            figure.legend(handles=lines, loc="outside lower center", ncols=4)
    return figure


def read_run(path: Path) -> Array:
    """(steps, columns)."""
    lines = read_losses(path)
    if not lines:
        raise ValueError(f"no losses of this version in {path}: give the losses.csv of a run")
    return np.array(lines)


def running_mean(values: Array, window: int) -> Array:
    """The mean of each `window` successive values, or of all where there are fewer."""
    size = max(1, min(window, len(values)))
    result: Array = np.convolve(values, np.ones(size) / size, mode="valid")
    return result
