"""Results on stdout, one by one, so that a million of them need no memory."""

import csv
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import typer

Record = Mapping[str, Any]  # what is known about one image; an image without a score has an error instead


class Printer(Protocol):
    """Prints records as they come."""

    def print(self, record: Record) -> None:
        """One line or element."""

    def end(self) -> None:
        """Whatever the format wants last."""


class TextPrinter:
    """Name and score, a tab between them, and the verdict where there is one; refused images are left to the end."""

    def print(self, record: Record) -> None:
        """One line."""
        if "error" in record:
            return
        line = f"{record['name']}\t{record['score']:.6f}"
        if "is_ood" in record:
            line += f"\tp={record['p_value']:.4f}\t{'unlike normal' if record['is_ood'] else 'like normal'}"
        print(line)

    def end(self) -> None:
        """Nothing more."""


class CsvPrinter:
    """One column a field with a header; an image has either a score or an error."""

    def __init__(self, fields: Sequence[str]) -> None:
        self._csv = csv.DictWriter(sys.stdout, (*fields, "error"), lineterminator="\n")
        self._csv.writeheader()

    def print(self, record: Record) -> None:
        """One line; yes and no as JSON writes them."""
        self._csv.writerow(
            {name: json.dumps(value) if value in (True, False) else value for name, value in record.items()}
        )

    def end(self) -> None:
        """Nothing more."""


class JsonPrinter:
    """A JSON array, written as it grows."""

    def __init__(self) -> None:
        self._before = "[\n"

    def print(self, record: Record) -> None:
        """One element."""
        print(f"{self._before}  {json.dumps(record)}", end="")
        self._before = ",\n"

    def end(self) -> None:
        """Closes the array."""
        print("[]" if self._before == "[\n" else "\n]")


def choose_printer(*, as_csv: bool, as_json: bool, fields: Sequence[str]) -> Printer:
    """The one that was asked for."""
    if as_csv and as_json:
        raise typer.BadParameter("choose one of --csv and --json")
    return CsvPrinter(fields) if as_csv else JsonPrinter() if as_json else TextPrinter()


@contextmanager
def broken_pipe_is_fine() -> Iterator[None]:
    """`discopatch score ... | head` ends quietly."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        sys.stdout = None  # or the interpreter complains again as it exits
        raise typer.Exit(0) from None
