"""What `discopatch bench` shows on the terminal."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import Console
    from rich.table import Table

GROUPS = {"near": "near", "far": "far", "covariate": "corrupt"}


@contextmanager
def following(console: "Console") -> Iterator[Callable[[str, int, int], None]]:
    """A bar with what is being done and how long it takes; into a file, a line whenever something new begins."""
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (TextColumn("{task.description:34}"), BarColumn(), MofNCompleteColumn())
    with Progress(
        *columns, TimeElapsedColumn(), TimeRemainingColumn(), console=console, disable=not console.is_terminal
    ) as bar:
        task = bar.add_task("starting", total=None)
        last = ""

        def tell(what: str, done: int, total: int) -> None:
            nonlocal last
            bar.update(task, description=what, completed=done, total=total)
            if what != last and not console.is_terminal:
                console.print(f"{datetime.now():%H:%M:%S} {what} ({done:,} of {total:,})", highlight=False)
            last = what

        yield tell


def left_out(folder: "Path | None") -> str:
    """Which backbones are not here, and how to get them; empty when all are."""
    from discopatch.baselines.backbones.named import BACKBONES, fetched

    absent = [name for name in BACKBONES if not fetched(name, folder)]
    return f"without {', '.join(absent)}: `discopatch data fetch {' '.join(absent)}` brings them" if absent else ""


def summary(report: dict[str, Any]) -> "Table":
    """A row for each method: the mean AUROC of each group under each protocol, beside what the route alone gives."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    from discopatch.benchmark.tables.labels import eye_label, score_label, split

    table = Table(
        title=f"{report['suite']}: mean AUROC x 100 / control",
        caption="Control: normal images that only went the same way, against normal images. "
        "Far from 50, the figure before it measures the route.",
        box=box.SIMPLE,
        padding=(0, 1, 0, 0),
    )
    columns = [
        (protocol, group)
        for group in GROUPS
        for protocol, found in report["protocols"].items()
        if group in found["means"]
    ]
    table.add_column("method", no_wrap=True)
    for protocol, group in columns:
        table.add_column(f"{GROUPS[group]}\n{protocol}", justify="right", no_wrap=True)
    last = ""
    for name in report["methods"]:
        eye, method = split(name)
        if eye != last:
            table.add_section()
            table.add_row(Text(eye_label(eye), style="bold"))
            last = eye
        table.add_row(score_label(method), *(cell(report["protocols"][each], group, name) for each, group in columns))
    return table


def cell(found: dict[str, Any], group: str, name: str) -> str:
    """Such as 93.1/50."""
    figures = found["means"][group].get(name)
    if figures is None:
        return ""
    control = found["control"].get(name) if group == "covariate" else figures.get("control")
    return f"{100 * figures['auroc'][0]:.1f}" + (f"/{100 * control[0]:.0f}" if control else "")
