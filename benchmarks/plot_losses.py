"""The loss curves of one or several runs, as a picture.

python benchmarks/plot_losses.py RUN/losses.csv curves.png
"""

from pathlib import Path
from typing import Annotated

import typer

from discopatch.benchmark.figures.losses import losses_figure
from discopatch.benchmark.figures.style import save


def main(
    losses: list[Path],
    out: Path,
    window: Annotated[int, typer.Option(help="Steps of the running mean.")] = 50,
) -> None:
    """Draws every loss against the step, with its running mean; runs go by the names of their folders."""
    runs = {path.resolve().parent.name: path for path in losses}
    if len(runs) < len(losses):
        runs = {str(path): path for path in losses}
    save(losses_figure(runs, window=window), out.with_suffix(""), [out.suffix[1:]])


if __name__ == "__main__":
    typer.run(main)
