"""discopatch demo"""

import shutil
from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer

from discopatch.cli import options
from discopatch.cli.rows import decision_text
from discopatch.errors import ParameterError

MARKER = ".discopatch-demo"  # a file that marks the folder of a demo


def demo(
    out: Annotated[Path, typer.Option(help="Folder to write; an earlier demo is replaced.")] = Path("demo-run"),
    seed: Annotated[int, typer.Option(help=options.SEED)] = 0,
) -> None:
    """Fit a detector on sample photos, score clean and corrupted ones, and write the report."""
    from rich.console import Console
    from rich.table import Table

    from discopatch.demo import CONDITIONS, FALSE_ALARM_RATE, run_demo
    from discopatch.utils import check_output, require

    for module in ("skimage", "sklearn"):
        require(module, "demo")
    check_output(out, folder=True)
    console = Console()
    prepare_folder(out)
    table = Table(title=f"Sample photos; guaranteed false-alarm rate: at most {FALSE_ALARM_RATE:.0%} on average")
    for heading in ("corruption", "severity", "median p-value", "flagged", "majority"):
        table.add_column(heading, justify="left" if heading in ("corruption", "majority") else "right")
    created = datetime.now().astimezone().isoformat()
    with options.progress_bar(console, "reading sample photos") as bar:
        for done, row in enumerate(run_demo(out, seed=seed, created=created, progress=bar.follow_fit), start=1):
            bar.describe("scoring photos, one corruption after the other")
            bar(done, len(CONDITIONS))
            majority = decision_text(is_ood=row.flagged > len(row.predictions) / 2)
            flagged = f"{row.flagged} of {len(row.predictions)}"
            table.add_row(row.corruption, str(row.severity), f"{row.median_p_value:.3f}", flagged, majority)
    console.print(table)
    console.print(f"detector: {out / 'detector'}", markup=False, highlight=False)
    console.print(f"report, to open in a browser: {out / 'report.html'}", markup=False, highlight=False)


def prepare_folder(out: Path) -> None:
    """Makes the folder, or empties the folder of an earlier demo; any other folder with files is an error.

    The marker is written first, so that a demo that was killed can be run again.
    """
    marker = out / MARKER
    if out.exists() and not marker.exists() and any(out.iterdir()):
        raise ParameterError(f"{out} exists and is not the folder of a demo: choose another --out")
    out.mkdir(parents=True, exist_ok=True)
    marker.touch()
    for path in out.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        elif path != marker:
            path.unlink()
