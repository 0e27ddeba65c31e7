"""The command line: one file a command, each only parses arguments and prints."""

import io
import os
import sys

import typer

from discopatch.cli.bench import bench
from discopatch.cli.data import app as data
from discopatch.cli.datacheck import check
from discopatch.cli.demo import demo
from discopatch.cli.explain import explain
from discopatch.cli.export import export
from discopatch.cli.fit import fit
from discopatch.cli.score import score
from discopatch.cli.train import train

app = typer.Typer(
    help="Tells whether an image is like the images you trust.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
for command in (fit, score, explain, export, train, bench, demo):
    app.command()(command)
data.command()(check)
app.add_typer(data, name="data")


@app.callback(invoke_without_command=True)
def options(version: bool = typer.Option(False, "--version", help="Print the version and stop.")) -> None:
    """Tells whether an image is like the images you trust, how sure that is, and where it differs."""
    if version:
        import discopatch

        print(discopatch.__version__)
        raise typer.Exit


def main() -> None:
    """Runs a command; what a person can mend is said in one line, without a traceback."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="surrogateescape")  # a file's name need not be valid text
    try:
        app()
    except (ValueError, OSError, RuntimeError, ModuleNotFoundError) as error:
        if os.environ.get("DISCOPATCH_TRACEBACK"):
            raise
        print(f"error: {error}", file=sys.stderr)
        sys.exit(1)
