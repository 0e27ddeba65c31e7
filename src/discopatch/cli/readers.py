"""Predictions that `discopatch score` printed, read one by one in constant memory."""

import csv
import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Annotated, Any

from discopatch.errors import ParameterError
from discopatch.history import from_row
from discopatch.results import Prediction
from discopatch.schema import between, read_fields

CONSTANTS = {"": None, "true": True, "false": False}


@dataclass
class PrintedRow:
    """The columns of a prediction that are checked."""

    name: str
    score: float | None = None
    p_value: Annotated[float, between(0, 1)] | None = None
    is_ood: bool | None = None
    error: str | None = None


def read_predictions(path: Path) -> Iterator[Prediction]:
    """The predictions of a file, or of standard input for `-`: CSV, the array of `score --json`, or JSON lines."""
    opened = nullcontext(sys.stdin) if str(path) == "-" else path.open(encoding="utf-8", errors="surrogateescape")
    with opened as file:
        first = next((line for line in file if line.strip()), "")
        is_json = first.lstrip()[:1] in ("[", "{")
        rows = json_rows(chain([first], file)) if is_json else map(typed, csv.DictReader(chain([first], file)))
        number = 0
        try:
            for number, row in enumerate(rows, start=1):  # noqa: B007 - for the error
                read_fields(PrintedRow, row, where="it", ignore_unknown=True)
                yield from_row(row)
        except (ValueError, TypeError) as error:
            remedy = "give the output of `discopatch score` of this detector"
            raise ParameterError(f"{path}, after {number} predictions: {error}: {remedy}") from error


def json_rows(lines: Iterator[str]) -> Iterator[Mapping[str, Any]]:
    """The objects of lines that hold one each; others only open or close the array."""
    for line in lines:
        content = line.strip().removesuffix(",")
        if content not in ("", "[", "]", "[]"):
            yield json.loads(content)


def typed(row: Mapping[str, str]) -> dict[str, Any]:
    """The values of a row of CSV."""
    texts = ("name", "error", "significant")
    return {
        name: (value or None if name in texts else CONSTANTS[value] if value in CONSTANTS else float(value))
        for name, value in row.items()
    }
