"""The loss curves of one or several training runs, such as docs/images/paper-preset-losses.png.

python studies/plot_losses.py RUN/losses.csv curves.png
"""

from pathlib import Path
from typing import Annotated

import typer

from discopatch.bench.plots.style import save_figure
from paper.losses import losses_figure, read_run


def main(
    losses: list[Path],
    out: Path,
    window: Annotated[int, typer.Option(help="Steps of the running mean.")] = 50,
) -> None:
    """Draws every loss against the step, with its running mean; runs go by the names of their folders."""
    names = [path.resolve().parent.name for path in losses]
    if len(set(names)) < len(names):
        names = [str(path) for path in losses]
    runs = {name: read_run(path) for name, path in zip(names, losses, strict=True)}
    save_figure(losses_figure(runs, window=window), out.with_suffix(""), [out.suffix[1:]])


if __name__ == "__main__":
    typer.run(main)
