"""Printers of predictions: text, CSV and JSON on stdout, one by one, in constant memory."""

import csv
import io
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import typer

from discopatch.utils import escaped

Record = Mapping[str, Any]  # the columns of `discopatch.results.as_row`


def decision_text(*, is_ood: bool) -> str:
    return "out-of-distribution" if is_ood else "normal"


class Printer(Protocol):
    """Prints records one by one."""

    def print(self, record: Record) -> None: ...

    def end(self) -> None: ...


class TextPrinter:
    """One line an image: its escaped name, score, p-value and decision, or `refused` and the reason."""

    def print(self, record: Record) -> None:
        if record["error"] is not None:
            fields = [record["name"], "refused", record["error"]]
        else:
            decision = decision_text(is_ood=record["is_ood"])
            fields = [record["name"], f"{record['score']:.6f}", f"p={record['p_value']:.4f}", decision]
        print("\t".join(map(escaped, fields)))

    def end(self) -> None:
        pass


class CsvPrinter:
    """A header and one row an image; booleans as in JSON, nulls as empty cells.

    Names are exact. A name that begins with = stays as it is, although a spreadsheet may take it for a formula.
    """

    def __init__(self, fields: Sequence[str]) -> None:
        self._row = io.StringIO(newline="")
        self._csv = csv.DictWriter(self._row, fields, lineterminator="\r\n")  # so that both are quoted
        self._csv.writeheader()
        self._print_row()

    def print(self, record: Record) -> None:
        self._csv.writerow(
            {name: json.dumps(value) if isinstance(value, bool) else value for name, value in record.items()}
        )
        self._print_row()

    def _print_row(self) -> None:
        print(self._row.getvalue().removesuffix("\r\n"))
        self._row.seek(0)
        self._row.truncate()

    def end(self) -> None:
        pass


class JsonPrinter:
    """A JSON array of objects, written one by one."""

    def __init__(self) -> None:
        self._before = "[\n"

    def print(self, record: Record) -> None:
        print(f"{self._before}  {json.dumps(record)}", end="")
        self._before = ",\n"

    def end(self) -> None:
        print("[]" if self._before == "[\n" else "\n]")


def choose_printer(*, as_csv: bool, as_json: bool, fields: Sequence[str]) -> Printer:
    return CsvPrinter(fields) if as_csv else JsonPrinter() if as_json else TextPrinter()


@contextmanager
def ignore_broken_pipe(*, status: int) -> Iterator[None]:
    """Ends the command with that status when its output is closed, as in `... | head`."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        sys.stdout = None  # or the interpreter prints an error as it exits
        raise typer.Exit(status) from None
