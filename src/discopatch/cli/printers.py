"""Predictions on stdout, one by one, so that a million of them need no memory."""

import csv
import io
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import typer

from discopatch.utils import escaped

Record = Mapping[str, Any]  # the fields of one image; an image without a score has an error instead


def decision_text(*, is_ood: bool) -> str:
    return "out-of-distribution" if is_ood else "normal"


class Printer(Protocol):
    """Prints records as they come."""

    def print(self, record: Record) -> None: ...

    def end(self) -> None: ...


class TextPrinter:
    """One line an image, for reading: its escaped name and its score, then p-value and decision where there are any.

    A refused image has `refused` and the reason in place of its score.
    """

    def print(self, record: Record) -> None:
        fields = [record["name"]]
        if "error" in record:
            fields += ["refused", record["error"]]
        else:
            fields.append(f"{record['score']:.6f}")
        if "is_ood" in record:
            fields += [f"p={record['p_value']:.4f}", decision_text(is_ood=record["is_ood"])]
        print("\t".join(map(escaped, fields)))

    def end(self) -> None:
        pass


class CsvPrinter:
    """A header and one row an image, which has either a score or an error; booleans as in JSON, lists with spaces.

    Names are exact, for programs: one that holds an end of line is quoted, and one that begins with = stays as it is,
    though a spreadsheet may take it for a formula.
    """

    def __init__(self, fields: Sequence[str]) -> None:
        self._row = io.StringIO(newline="")
        self._csv = csv.DictWriter(self._row, (*fields, "error"), lineterminator="\r\n")  # so that both are quoted
        self._csv.writeheader()
        self._print_row()

    def print(self, record: Record) -> None:
        self._csv.writerow({name: as_cell(value) for name, value in record.items()})
        self._print_row()

    def _print_row(self) -> None:
        print(self._row.getvalue().removesuffix("\r\n"))
        self._row.seek(0)
        self._row.truncate()

    def end(self) -> None:
        pass


def as_cell(value: Any) -> Any:
    if isinstance(value, bool):
        return json.dumps(value)
    return " ".join(value) if isinstance(value, list) else value


class JsonPrinter:
    """A JSON array of objects, written as it grows."""

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
    """Ends the command with that status, quietly, when the reader of its output goes away, as in `... | head`."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        sys.stdout = None  # or the interpreter complains again as it exits
        raise typer.Exit(status) from None
