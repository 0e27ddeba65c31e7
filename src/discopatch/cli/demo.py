"""discopatch demo"""

import shutil
from pathlib import Path
from typing import Annotated

import typer


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
    replace_run(out)
    table = Table(title="Held-out photos: higher score = less like the training photos")
    for heading in ("corruption", "severity", "mean score", "AUROC against clean"):
        table.add_column(heading, justify="left" if heading == "corruption" else "right")
    for shift in run_demo(out, steps=steps, seed=seed, console=console):
        clean = " (clean)" if shift.severity == 0 else ""
        table.add_row(shift.corruption, f"{shift.severity}{clean}", f"{shift.scores.mean():+.3f}", f"{shift.auroc:.3f}")
    console.print(table)
    console.print(f"the photos with their scores: {out / 'scores.png'}", markup=False, highlight=False)


def replace_run(out: Path) -> None:
    """Clears an earlier demo; a folder that is anything else is left alone."""
    if (out / "run.json").exists():
        shutil.rmtree(out)
    elif out.exists():
        raise ValueError(f"{out} exists and is not a demo's run: choose another --out")
