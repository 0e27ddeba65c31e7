"""The command line: one file a command, each of which only parses arguments and prints."""

import io
import os
import sys

import typer

from discopatch.cli.bench import bench
from discopatch.cli.data import app as data
from discopatch.cli.demo import demo
from discopatch.cli.explain import explain
from discopatch.cli.export import export
from discopatch.cli.fit import fit
from discopatch.cli.score import score
from discopatch.cli.train import train
from discopatch.errors import DiscopatchError

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
for command in (fit, score, explain, export, train, bench, demo):
    app.command()(command)
app.add_typer(data, name="data")


@app.callback(invoke_without_command=True)
def show_version(version: bool = typer.Option(False, "--version", help="Print the version and exit.")) -> None:
    """Detect out-of-distribution images, with a guaranteed false-alarm rate and heatmaps of what differs."""
    if version:
        import discopatch

        print(discopatch.__version__)
        raise typer.Exit


def main() -> None:
    """Runs a command; an error that a user can mend is printed as one line, or raised with DISCOPATCH_TRACEBACK=1."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="surrogateescape")  # a file's name need not be valid text
    try:
        app()
    except (DiscopatchError, OSError) as error:
        if os.environ.get("DISCOPATCH_TRACEBACK"):
            raise
        print(f"error: {error}", file=sys.stderr)
        sys.exit(1)
