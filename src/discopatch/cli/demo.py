"""discopatch demo"""

import shutil
from pathlib import Path
from typing import Annotated

import typer

MARK = ".discopatch-demo"


def demo(
    out: Annotated[Path, typer.Option(help="Folder of the demo's run; replaced each time.")] = Path("demo-run"),
    steps: Annotated[int, typer.Option(help="Steps of training.", min=1)] = 600,
    seed: Annotated[int, typer.Option(help="Of everything random.")] = 0,
) -> None:
    """Train the small preset on sample photos for a short while and score clean and corrupted ones."""
    from rich.console import Console
    from rich.table import Table

    from discopatch.demo import run_demo

    console = Console()
    claim(out)
    table = Table(title="Held-out photos: higher score = less like the training photos")
    for heading in ("corruption", "severity", "mean score", "AUROC against clean"):
        table.add_column(heading, justify="left" if heading == "corruption" else "right")
    for shift in run_demo(out, steps=steps, seed=seed, console=console):
        clean = " (clean)" if shift.severity == 0 else ""
        table.add_row(shift.corruption, f"{shift.severity}{clean}", f"{shift.scores.mean():+.3f}", f"{shift.auroc:.3f}")
    console.print(table)
    console.print(f"the photos with their scores: {out / 'scores.png'}", markup=False, highlight=False)


def claim(out: Path) -> None:
    """Makes the demo's folder, clearing an earlier demo; any other folder, a training run above all, is left alone."""
    if (out / MARK).exists():
        shutil.rmtree(out)
    elif out.exists():
        raise ValueError(f"{out} exists and is not a demo's: choose another --out")
    out.mkdir(parents=True)
    (out / MARK).touch()
