"""Predictions as text, CSV and JSON, printed one by one, in constant memory."""

import csv
import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import typer

from discopatch.utils import escaped

Row = Mapping[str, Any]  # the columns of `discopatch.results.as_row`


def decision_text(*, is_ood: bool) -> str:
    return "out-of-distribution" if is_ood else "normal"


def text_lines(rows: Iterable[Row]) -> Iterator[str]:
    """One line an image: its escaped name, score, p-value, decision and class, or `refused` and the reason."""
    from discopatch.results import CLASS

    for row in rows:
        if row["error"] is not None:
            fields = [row["name"], "refused", row["error"]]
        else:
            decision = decision_text(is_ood=row["is_ood"])
            of = [row[CLASS]] if CLASS in row else []
            fields = [row["name"], f"{row['score']:.6f}", f"p={row['p_value']:.4f}", decision, *of]
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
