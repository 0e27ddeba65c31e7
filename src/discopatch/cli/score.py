"""discopatch score"""

import csv
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Protocol

import typer

from discopatch.cli.options import source_of

if TYPE_CHECKING:
    from discopatch.images import Refusal
    from discopatch.scoring import Score


def score(
    images: Annotated[list[str], typer.Argument(help="Files, folders, patterns or tar shards.")],
    weights: Annotated[Path, typer.Option(help="A .safetensors file that `discopatch train` wrote.")],
    patches: Annotated[int, typer.Option(help="Patches an image.", min=1)] = 64,
    sampling: Annotated[str, typer.Option(help="random (seeded, the same for all) or grid.")] = "random",
    head: Annotated[str, typer.Option(help="logit, or sigmoid for the paper's score.")] = "logit",
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    seed: Annotated[int, typer.Option(help="Of the places of the patches.")] = 0,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1, ...")] = "auto",
    batch_size: Annotated[int, typer.Option(help="Images that pass together.", min=1)] = 8,
    workers: Annotated[int | None, typer.Option(help="Threads that decode.", min=1)] = None,
) -> None:
    """Print each image's name and score: the higher, the less it is like the images of the training."""
    if as_csv and as_json:
        raise typer.BadParameter("choose one of --csv and --json")

    import torch
    from rich.console import Console
    from rich.progress import MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
    from rich.text import Text

    from discopatch.images import Refusal, RefusalReport
    from discopatch.images.open import DEFAULT_WORKERS
    from discopatch.model.weights import Weights
    from discopatch.scoring import Scorer, find_head

    scorer = Scorer(
        Weights.load(weights),
        patches=patches,
        sampling=sampling,  # type: ignore[arg-type]  # checked there
        head=find_head(head),
        seed=seed,
        device=("cuda" if torch.cuda.is_available() else "cpu") if device == "auto" else device,
        batch_size=batch_size,
    )
    console = Console(stderr=True)
    report = RefusalReport()
    printer: type[Printer] = CsvPrinter if as_csv else JsonPrinter if as_json else TextPrinter
    columns = (SpinnerColumn(), TextColumn("scoring"), MofNCompleteColumn(), TimeElapsedColumn())
    bar = Progress(
        *columns,
        console=console,
        transient=True,
        disable=not console.is_terminal,
        redirect_stdout=sys.stdout.isatty(),  # never where scores go into a file
    )
    with bar as progress, broken_pipe_is_fine():
        task = progress.add_task("scoring", total=None)
        out = printer()
        for result in scorer.score(source_of(images), workers=workers or DEFAULT_WORKERS):
            if isinstance(result, Refusal):
                report.add(result)
            else:
                report.accepted += 1
            out.print(result)
            progress.advance(task)
        out.end()
    if not report.accepted:
        raise report.nothing_left()
    if report:
        console.print(Text(report.summary(), style="yellow"), soft_wrap=True)  # names may hold [brackets]


class Printer(Protocol):
    """Prints results one by one, so that a million of them need no memory."""

    def print(self, result: "Score | Refusal") -> None:
        """One line or record."""

    def end(self) -> None:
        """Whatever the format wants last."""


class TextPrinter:
    """Name and score, a tab between them; refused images are left to the report at the end."""

    def print(self, result: "Score | Refusal") -> None:
        """One line."""
        if hasattr(result, "score"):
            print(f"{result.name}\t{result.score:.6f}")

    def end(self) -> None:
        """Nothing more."""


class CsvPrinter:
    """name,score,error with a header; exactly one of score and error is filled."""

    def __init__(self) -> None:
        self._csv = csv.writer(sys.stdout, lineterminator="\n")
        self._csv.writerow(("name", "score", "error"))

    def print(self, result: "Score | Refusal") -> None:
        """One line."""
        values = record(result)
        self._csv.writerow((values["name"], values.get("score", ""), values.get("error", "")))

    def end(self) -> None:
        """Nothing more."""


class JsonPrinter:
    """A JSON array, written as it grows."""

    def __init__(self) -> None:
        self._before = "[\n"

    def print(self, result: "Score | Refusal") -> None:
        """One element."""
        print(f"{self._before}  {json.dumps(record(result))}", end="")
        self._before = ",\n"

    def end(self) -> None:
        """Closes the array."""
        print("[]" if self._before == "[\n" else "\n]")


def record(result: "Score | Refusal") -> dict[str, Any]:
    """The result as plain values; a score keeps all its digits."""
    if hasattr(result, "score"):
        return {"name": result.name, "score": result.score}
    return {"name": result.name, "error": f"{result.reason}: {result.detail}"}


@contextmanager
def broken_pipe_is_fine() -> Iterator[None]:
    """`discopatch score ... | head` ends quietly."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        sys.stdout = None  # or the interpreter complains again as it exits
        raise typer.Exit(0) from None
