"""discopatch doctor"""

import json
from typing import Annotated, Any

import typer

from discopatch.cli import options

STYLES = {"passed": "green", "failed": "red", "skipped": "yellow"}
FILE_WIDTH = 140  # characters in a line where the output is not a terminal


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, for an issue report or a program.")] = False,
    no_test: Annotated[bool, typer.Option("--no-test", help="Leave out the self-test, which takes seconds.")] = False,
) -> None:
    """Show versions, devices and missing extras, and test the installation. Add its output to an issue report.

    Nothing is downloaded or sent.

    Exit status: 0 passed; 1 the self-test failed; 2 a wrong option.
    """
    from rich.console import Console

    from discopatch.doctor import examine

    with options.progress_bar(Console(stderr=True), "reading versions") as bar:
        report = examine(test=not no_test, progress=bar.describe)
    if as_json:
        print(json.dumps(report, indent=2))
    else:
        print_report(report)
    if not report["ok"]:
        raise typer.Exit(1)


def print_report(report: dict[str, Any]) -> None:
    """Prints one table for each part of the report."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from discopatch.utils import escaped

    console = Console()
    console = console if console.is_terminal else Console(width=FILE_WIDTH)
    extras: list[tuple[str, ...]] = [(name, each["install"] or "installed") for name, each in report["extras"].items()]
    steps: list[tuple[str, ...]] = [
        (each["step"], each["status"], f"{each['seconds']} s", each["detail"]) for each in report["self_test"]
    ]
    for title, rows in (
        ("versions", list(report["versions"].items())),
        ("devices", list(report["devices"].items())),
        ("extras", extras),
        ("self-test", steps or [("left out",)]),
    ):
        table = Table(title=title, title_justify="left", title_style="bold", show_header=False, box=None)
        for _ in rows[0]:
            table.add_column(overflow="fold")
        for row in rows:
            table.add_row(*(Text(escaped(cell), STYLES.get(cell, "")) for cell in row))
        console.print(table)
    console.print("the self-test failed" if not report["ok"] else "no problem found", highlight=False)
