"""discopatch data check"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from discopatch.benchmark.suites.check import Finding

COLUMNS = ("set", "role", "found", "expected", "status", "where")
NUMBERS = ("found", "expected")
SETS = ("fit", "test", "near", "far", "fit and test")  # roles without which there is no run
IN_A_FILE = 200  # characters a line, where no terminal says how many there are


def check(
    root: Annotated[
        Path, typer.Argument(help="OpenOOD's data folder, a folder of natural/ and ood/, or of solar cells.")
    ],
) -> None:
    """Say which images of a benchmark are there, which are missing, and where they are had."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from discopatch.benchmark.suites.check import check_data

    findings = check_data(root)
    console = Console()
    if not console.is_terminal:
        console = Console(width=IN_A_FILE)
    table = Table()
    for heading in COLUMNS:
        number = heading in NUMBERS
        table.add_column(heading, justify="right" if number else "left", no_wrap=number, overflow="fold")
    for finding in findings:
        table.add_row(*map(Text, cells(finding)))  # a file's name may hold [brackets]
    console.print(table)
    missing = [finding.name for finding in findings if not finding.usable]
    fewer = [finding.name for finding in findings if finding.role in SETS and finding.found < (finding.expected or 0)]
    if partial := [name for name in fewer if name not in missing]:
        print(f"fewer images than published: {', '.join(partial)}; figures do not compare with published ones")
    print(f"missing: {', '.join(missing)}" if missing else "all that a run needs is there")
    print("nothing was downloaded" + ": get what is missing from where the table says, and check again" * bool(missing))
    if missing:
        raise typer.Exit(1)


def cells(finding: "Finding") -> tuple[str, ...]:
    """As the table shows them."""
    expected = "" if finding.expected is None else f"{finding.expected:,}"
    return (finding.name, finding.role, f"{finding.found:,}", expected, finding.status, finding.where)
