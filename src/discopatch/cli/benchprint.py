"""What `discopatch bench` shows on the terminal."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import Console
    from rich.table import Table

GROUPS = {"near": "near", "far": "far", "covariate": "corrupted"}


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
    from rich.table import Table

    from discopatch.benchmark.tables.labels import method_label

    table = Table(
        title=f"{report['suite']}: mean AUROC x 100, in brackets that of normal images which went the same way",
        caption="a number in brackets far from 50 says that the figure before it measures the route",
    )
    table.add_column("method")
    columns = [
        (protocol, group)
        for group in GROUPS
        for protocol, found in report["protocols"].items()
        if group in found["means"]
    ]
    for protocol, group in columns:
        table.add_column(f"{GROUPS[group]}\n{protocol}", justify="right")
    for name in report["methods"]:
        cells = [cell(report["protocols"][protocol], group, name) for protocol, group in columns]
        table.add_row(method_label(name), *cells)
    return table


def cell(found: dict[str, Any], group: str, name: str) -> str:
    """Such as 93.1 (50.0)."""
    figures = found["means"][group].get(name)
    if figures is None:
        return ""
    control = found["control"].get(name) if group == "covariate" else figures.get("control")
    return f"{100 * figures['auroc'][0]:.1f}" + (f" ({100 * control[0]:.0f})" if control else "")
