"""The command line: one file a command, which parses arguments and prints."""

import io
import os
import signal
import sys
from contextlib import suppress

import typer

from discopatch.cli.accept import accept
from discopatch.cli.audit import audit
from discopatch.cli.bench import bench
from discopatch.cli.convert import convert
from discopatch.cli.data import app as data
from discopatch.cli.demo import demo
from discopatch.cli.doctor import doctor
from discopatch.cli.evaluate import evaluate
from discopatch.cli.explain import explain
from discopatch.cli.export import export
from discopatch.cli.fit import fit
from discopatch.cli.monitor import monitor
from discopatch.cli.options import on_signals
from discopatch.cli.rescore import rescore
from discopatch.cli.score import score
from discopatch.cli.serve import serve
from discopatch.cli.train import train
from discopatch.cli.watch import watch
from discopatch.errors import FULL, DiscopatchError, OutputError
from discopatch.utils import escaped

THREADS = "Threads that compute, for detectors and exports. Default: OMP_NUM_THREADS, or all cores."
app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode="rich")
COMMANDS = (
    *(audit, fit, accept, score, rescore, explain, evaluate, monitor, watch),
    *(serve, export, train, convert, bench, demo, doctor),
)
for command in COMMANDS:
    app.command()(command)
app.add_typer(data, name="data")


@app.callback(invoke_without_command=True)
def begin(
    version: bool = typer.Option(False, "--version", help="Print the version and exit."),
    threads: int | None = typer.Option(None, min=1, help=THREADS),
) -> None:
    """Detect out-of-distribution images, with a guaranteed false-alarm rate and heatmaps of what differs."""
    if threads is not None:
        os.environ["OMP_NUM_THREADS"] = str(threads)  # torch reads it at its import
    if version:
        import discopatch

        print(discopatch.__version__)
        raise typer.Exit


class Stopped(BaseException):
    """Ctrl-C or a termination; typer would turn a KeyboardInterrupt into a status of its own."""


def main() -> None:
    """Runs a command; an error is printed as one line, or raised with DISCOPATCH_TRACEBACK=1."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        exact = sys.stdout.encoding.lower().replace("-", "") == "utf8"  # other encodings lack some letters
        sys.stdout.reconfigure(errors="surrogateescape" if exact else "backslashreplace")
    try:
        with on_signals(raise_stopped):
            status = run_command()
    except Stopped as stopped:
        (number,) = stopped.args
        print_error("stopped", f"{signal.strsignal(number)}: nothing is left half-written")
        status = 128 + number
    except (DiscopatchError, OSError) as error:
        if os.environ.get("DISCOPATCH_TRACEBACK"):
            raise
        if not isinstance(error, DiscopatchError) and error.errno in FULL:
            error = OutputError(error.errno, error.strerror, error.filename or "the output")
        print_error("error", str(error))
        status = 1
    try:
        flush_output()
    except (OSError, ValueError):
        sys.stdout, status = None, status or 1  # output that cannot be printed is dropped
    sys.exit(status)


def run_command() -> int:
    """The status of the command, after its output is written."""
    try:
        app()
    except SystemExit as end:
        with suppress(BrokenPipeError):
            flush_output()
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    raise AssertionError("a command ends with SystemExit")


def flush_output() -> None:
    if sys.stdout is not None:
        sys.stdout.flush()


def print_error(label: str, text: str) -> None:
    with suppress(OSError):
        print(f"{label}: {escaped(text)}", file=sys.stderr, flush=True)


def raise_stopped(number: int) -> None:
    """Raises Stopped, so that temporary files are removed."""
    raise Stopped(number)
