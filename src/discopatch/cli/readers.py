"""Predictions that `discopatch score` printed, read one by one, so that a million of them need no memory."""

import csv
import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import IO, Annotated, Any

from discopatch.errors import ParameterError
from discopatch.results import ComponentScore, Prediction
from discopatch.schema import between, read_fields

LONGEST_LINE = 2**20
TRUTHS = {"true": True, "false": False}


@dataclass(frozen=True)
class Record:
    """The fields of a prediction that are read; others are passed over."""

    name: str
    score: float | None = None
    p_value: Annotated[float, between(0, 1)] | None = None
    is_ood: bool | None = None
    error: str | None = None


def read_predictions(path: Path, components: Sequence[str]) -> Iterator[Prediction]:
    """What a file has, or standard input for `-`: CSV, the array of `score --json`, or a JSON object a line."""
    opened = nullcontext(sys.stdin) if str(path) == "-" else path.open(encoding="utf-8", errors="surrogateescape")
    with opened as file:
        lines = bounded_lines(file, path)
        number, first = next(((number, line) for number, line in lines if line.strip()), (0, ""))
        rows: Iterator[tuple[int, Mapping[str, Any]]]
        if first.lstrip()[:1] in ("[", "{"):
            rows = (row for place, line in chain([(number, first)], lines) for row in json_row(line, place, path))
        else:
            rows = csv_rows(first, lines)
        for place, row in rows:
            yield as_prediction(row, components, where=f"{path}, line {place}")


def bounded_lines(file: IO[str], path: Path) -> Iterator[tuple[int, str]]:
    for number in range(1, sys.maxsize):
        line = file.readline(LONGEST_LINE)
        if not line:
            return
        if len(line) >= LONGEST_LINE:
            raise ParameterError(f"{path}, line {number}, is too long: give what `discopatch score` printed")
        yield number, line


def json_row(line: str, place: int, path: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """The object of one line, unless it only opens or closes the array."""
    content = line.strip().removesuffix(",")
    if content in ("", "[", "]", "[]"):
        return
    try:
        found = json.loads(content)  # names may have bytes that are no text
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise ParameterError(f"{path}, line {place}, is no JSON object: give what `discopatch score --json` printed")
    yield place, found


def csv_rows(header: str, lines: Iterable[tuple[int, str]]) -> Iterator[tuple[int, Mapping[str, Any]]]:
    names = next(csv.reader([header]), [])
    reader = csv.reader(line for _, line in lines)
    for row in reader:
        cells = dict(zip(names, row, strict=False))
        yield reader.line_num + 1, {name: as_value(name, cell) for name, cell in cells.items() if cell != ""}


def as_value(name: str, cell: str) -> Any:
    if name in ("name", "error", "significant"):
        return cell
    try:
        return TRUTHS[cell] if cell in TRUTHS else float(cell)
    except ValueError:
        return cell


def as_prediction(row: Mapping[str, Any], components: Sequence[str], *, where: str) -> Prediction:
    """The prediction that `as_dict` made the row of."""
    try:
        found = read_fields(Record, row, where="it", ignore_unknown=True)
        significant = row.get("significant", [])
        said = significant.split() if isinstance(significant, str) else significant
        parts = tuple(ComponentScore(name, float(row[name]), name in said) for name in components if name in row)
        return Prediction(found.name, found.score, found.p_value, found.is_ood, found.error, parts)
    except (ParameterError, TypeError, ValueError) as error:
        raise ParameterError(f"{where}: {error}: give what `discopatch score` of this detector printed") from error
