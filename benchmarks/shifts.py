"""AUROC of corrupted against clean images of a folder or shard, for given weights.

python benchmarks/shifts.py IMAGES --weights RUN/discriminator.safetensors --limit 100
"""

from itertools import islice
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from discopatch import images
from discopatch.benchmark.shifts import measure_shifts
from discopatch.images import RefusalReport, accepted
from discopatch.model.weights import Weights
from discopatch.scoring import Scorer


def main(
    source: Annotated[str, typer.Argument(metavar="IMAGES")],
    weights: Annotated[Path, typer.Option(help="A .safetensors file that `discopatch train` wrote.")],
    limit: Annotated[int, typer.Option(help="The first so many images.")] = 100,
    patches: int = 64,
    severity: Annotated[list[int], typer.Option(help="May be given several times.")] = [0, 1, 3, 5],  # noqa: B006
) -> None:
    """Prints a table, a row a corruption and severity; severity 0 is the control and must be 0.5."""
    loaded = Weights.load(weights)
    stream = images.open(source, transform=loaded.transform)
    pictures = list(islice(accepted(stream, RefusalReport()), limit))
    table = Table("corruption", "severity", "mean score", "AUROC", title=f"{len(pictures)} images, {patches} patches")
    for shift in measure_shifts(Scorer(loaded, patches=patches), pictures, severity):
        table.add_row(shift.corruption, str(shift.severity), f"{shift.scores.mean():+.3f}", f"{shift.auroc:.3f}")
    Console().print(table)


if __name__ == "__main__":
    typer.run(main)
