"""discopatch demo"""

import shutil
from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer

from discopatch.cli.options import counting

MARK = ".discopatch-demo"


def demo(
    out: Annotated[Path, typer.Option(help="Folder of the demo; replaced each time.")] = Path("demo-run"),
    seed: Annotated[int, typer.Option(help="Of everything random.")] = 0,
) -> None:
    """Fit a detector on sample photos, let it decide about clean and corrupted ones, write the report."""
    from rich.console import Console
    from rich.table import Table

    from discopatch.demo import FALSE_ALARM_RATE, run_demo

    console = Console()
    claim(out)
    table = Table(title=f"Which photos are unlike the normal ones? Promised false alarms: {FALSE_ALARM_RATE:.0%}")
    for heading in ("corruption", "severity", "median p-value", "flagged", "verdict"):
        table.add_column(heading, justify="left" if heading in ("corruption", "verdict") else "right")
    created = datetime.now().astimezone().isoformat()
    with counting(console, "looking at normal photos") as one_more:
        for row in run_demo(out, seed=seed, created=created, progress=one_more):
            verdict = "unlike normal" if row.flagged > len(row.predictions) / 2 else "like normal"
            flagged = f"{row.flagged} of {len(row.predictions)}"
            table.add_row(row.corruption, str(row.severity), f"{row.median_p_value:.3f}", flagged, verdict)
    console.print(table)
    console.print(f"the detector: {out / 'detector'}", markup=False, highlight=False)
    console.print(f"the report, to open in a browser: {out / 'report.html'}", markup=False, highlight=False)


def claim(out: Path) -> None:
    """Makes the demo's folder, clearing an earlier demo; any other folder, a training run above all, is left alone."""
    if (out / MARK).exists():
        shutil.rmtree(out)
    elif out.exists():
        raise ValueError(f"{out} exists and is not a demo's: choose another --out")
    out.mkdir(parents=True)
    (out / MARK).touch()
