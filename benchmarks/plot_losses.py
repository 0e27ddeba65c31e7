"""The loss curves of a run, as a picture.

python benchmarks/plot_losses.py RUN/losses.csv curves.png
"""

from pathlib import Path
from typing import Annotated

import matplotlib
import numpy as np
import typer
from numpy.typing import NDArray

from discopatch.training.log import COLUMNS, read_losses

matplotlib.use("Agg")
import matplotlib.pyplot as plt

PANELS = {
    "discriminator": "discriminator loss",
    "reconstruction": "reconstruction (MSE)",
    "kl": "KL divergence",
    "fool_reconstructed": "-log D(reconstructed)",
    "fool_generated": "-log D(generated)",
    "vae": "VAE loss",
}


def main(losses: Path, out: Path, window: Annotated[int, typer.Option(help="Steps of the running mean.")] = 50) -> None:
    """Draws every loss against the step, with its running mean."""
    table = np.array(read_losses(losses))
    figure, axes = plt.subplots(2, 3, figsize=(11, 5.2), sharex=True)
    for axis, (name, title) in zip(axes.flat, PANELS.items(), strict=True):
        values = table[:, COLUMNS.index(name)]
        axis.plot(table[:, 0], values, color="#b8c4d6", linewidth=0.5)
        axis.plot(table[window - 1 :, 0], running_mean(values, window), color="#1f4e8c", linewidth=1.4)
        axis.set_title(title, fontsize=10)
        axis.set_ylim(0, 1.05 * np.percentile(values, 99.5))  # the first steps would flatten the rest
        axis.grid(alpha=0.25)
    for axis in axes[-1]:
        axis.set_xlabel("step")
    figure.tight_layout()
    figure.savefig(out, dpi=110)


def running_mean(values: NDArray[np.float64], window: int) -> NDArray[np.float64]:
    """The mean of each `window` successive values."""
    return np.convolve(values, np.ones(window) / window, mode="valid")


if __name__ == "__main__":
    typer.run(main)
