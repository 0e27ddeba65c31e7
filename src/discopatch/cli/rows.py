"""Predictions as text, CSV and JSON, printed and read one by one, in constant memory."""

import csv
import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from discopatch.utils import counted, escaped

if TYPE_CHECKING:
    from discopatch.results import Prediction

Row = Mapping[str, Any]  # the columns of `discopatch.results.as_row`
CONSTANTS = {"": None, "true": True, "false": False}


def decision_text(*, is_ood: bool) -> str:
    return "out-of-distribution" if is_ood else "normal"


def text_lines(rows: Iterable[Row]) -> Iterator[str]:
    """One line an image: its escaped name, score, p-value and decision, or `refused` and the reason."""
    for row in rows:
        if row["error"] is not None:
            fields = [row["name"], "refused", row["error"]]
        else:
            decision = decision_text(is_ood=row["is_ood"])
            fields = [row["name"], f"{row['score']:.6f}", f"p={row['p_value']:.4f}", decision]
        yield "\t".join(map(escaped, fields))


class Echo:
    """A file for `csv`, whose `writerow` returns what its file's `write` returns."""

    def write(self, text: str) -> str:
        return text.removesuffix("\r\n")


def csv_lines(rows: Iterable[Row], columns: Sequence[str]) -> Iterator[str]:
    """A header and one row an image; booleans as in JSON, nulls as empty cells.

    Names are exact. A name that begins with = stays as it is, although a spreadsheet may take it for a formula.
    """
    writer = csv.writer(Echo(), lineterminator="\r\n")  # so that both are quoted
    yield writer.writerow(columns)
    for row in rows:
        yield writer.writerow(json.dumps(each) if isinstance(each, bool) else each for each in row.values())


def json_lines(rows: Iterable[Row]) -> Iterator[str]:
    """A JSON array with one object a line."""
    before = "["
    for row in rows:
        yield before
        before = f"  {json.dumps(row)},"
    yield before.removesuffix(",")
    yield "]"


@contextmanager
def ignore_broken_pipe(*, status: int) -> Iterator[None]:
    """Ends the command with that status when its output is closed, as in `... | head`."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        sys.stdout = None  # or the interpreter prints an error as it exits
        raise typer.Exit(status) from None


def read_predictions(path: Path) -> "Iterator[Prediction]":
    """The predictions of a file, or of standard input for `-`: CSV, the array of `score --json`, or JSON lines."""
    from discopatch.errors import ParameterError
    from discopatch.results import Prediction, from_row
    from discopatch.schema import read_fields

    opened = nullcontext(sys.stdin) if str(path) == "-" else path.open(encoding="utf-8", errors="surrogateescape")
    with opened as file:
        first = next((line for line in file if line.strip()), "")
        is_json, lines = first.lstrip()[:1] in ("[", "{"), chain([first], file)
        number = 0
        try:
            for number, row in enumerate(parsed(lines) if is_json else map(typed, csv.DictReader(lines)), start=1):  # noqa: B007
                read_fields(Prediction, row, where="it", ignore_unknown=True)
                yield from_row(row)
        except (ValueError, TypeError) as error:
            remedy = "give the output of `discopatch score` of this detector"
            raise ParameterError(f"{path}, after {counted(number, 'prediction')}: {error}: {remedy}") from error


def parsed(lines: Iterable[str]) -> Iterator[Row]:
    """The objects of lines that hold one each; others only open or close the array."""
    for line in lines:
        content = line.strip().removesuffix(",")
        if content not in ("", "[", "]"):
            yield json.loads(content)


def typed(row: Mapping[str, str]) -> dict[str, Any]:
    """The values of a row of CSV."""
    texts = ("name", "error", "caution", "significant")
    return {
        name: (value or None if name in texts else CONSTANTS[value] if value in CONSTANTS else float(value))
        for name, value in row.items()
    }
