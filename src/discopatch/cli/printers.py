"""Predictions on stdout, one by one, so that a million of them need no memory."""

import csv
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import typer

Record = Mapping[str, Any]  # the fields of one image; an image without a score has an error instead


def decision_text(*, is_ood: bool) -> str:
    return "out-of-distribution" if is_ood else "normal"


class Printer(Protocol):
    """Prints records as they come."""

    def print(self, record: Record) -> None: ...

    def end(self) -> None: ...


class TextPrinter:
    """One line an image: name and score, then p-value and decision where there are any; refused images have none."""

    def print(self, record: Record) -> None:
        if "error" in record:
            return
        line = f"{record['name']}\t{record['score']:.6f}"
        if "is_ood" in record:
            line += f"\tp={record['p_value']:.4f}\t{decision_text(is_ood=record['is_ood'])}"
        print(line)

    def end(self) -> None:
        pass


class CsvPrinter:
    """A header and one line an image, which has either a score or an error; booleans as in JSON."""

    def __init__(self, fields: Sequence[str]) -> None:
        self._csv = csv.DictWriter(sys.stdout, (*fields, "error"), lineterminator="\n")
        self._csv.writeheader()

    def print(self, record: Record) -> None:
        self._csv.writerow(
            {name: json.dumps(value) if isinstance(value, bool) else value for name, value in record.items()}
        )

    def end(self) -> None:
        pass


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
    if as_csv and as_json:
        raise typer.BadParameter("choose one of --csv and --json")
    return CsvPrinter(fields) if as_csv else JsonPrinter() if as_json else TextPrinter()


@contextmanager
def ignore_broken_pipe() -> Iterator[None]:
    """Ends the command quietly when the reader of its output goes away, as in `discopatch score ... | head`."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        sys.stdout = None  # or the interpreter complains again as it exits
        raise typer.Exit(0) from None
