"""A table before it is known whether it will be Markdown or LaTeX."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Literal

from discopatch.errors import ParameterError

Better = Literal[-1, 0, 1]  # lower, neither, higher
Triple = Sequence[float]  # value, low, high


@dataclass(frozen=True)
class Number:
    """A number as it will be printed, with an interval or a standard deviation beside it where there is one."""

    value: float
    interval: tuple[float, float] | None = None
    spread: float | None = None
    digits: int = 1
    better: Better = 0
    signed: bool = False
    place: int = 0  # 1 for the best of its column, 2 for the second, as far as the printed digits tell

    @property
    def text(self) -> str:
        """97.2, 6,218,753 or +0.4."""
        return self._format(self.value)

    @property
    def around(self) -> str:
        """[96.8, 97.5] or ± 0.3; empty for a number alone."""
        if self.interval is not None:
            return f"[{', '.join(map(self._format, self.interval))}]"
        return "" if self.spread is None else f"± {self.spread:,.{self.digits}f}"

    @property
    def rounded(self) -> float:
        """The value of the printed digits."""
        return round(self.value, self.digits) + 0.0  # turns -0.0 into 0.0

    def _format(self, value: float) -> str:
        return f"{round(value, self.digits) + 0.0:{'+' if self.signed else ''},.{self.digits}f}"


Cell = str | tuple[Number | None, ...]  # text, or numbers side by side: 97.2/10.6
Row = tuple[Cell, ...]


@dataclass(frozen=True)
class Heading:
    """The heading of a column; successive columns with the same text `above` share it."""

    text: str
    above: str = ""


@dataclass(frozen=True)
class Table:
    """Headings and rows with what a reader must know of them; the first column names the row."""

    name: str  # of letters, digits and hyphens: the LaTeX label
    title: str
    caption: str
    headings: tuple[Heading, ...]
    rows: tuple[Row, ...]
    averages: int = 0  # last rows that stand apart from the others

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.headings):
                raise ParameterError(
                    f"table {self.name}: {len(row)} cells under {len(self.headings)} headings; give one cell for each"
                )


def percentage(
    triple: Triple | None, *, better: Better = 0, interval: bool = False, signed: bool = False
) -> Number | None:
    """A share of 1 with its ends, times 100; None stays None."""
    if triple is None:
        return None
    value, low, high = (100 * each for each in triple)
    return Number(value, (low, high) if interval else None, better=better, signed=signed)


def is_empty(cell: Cell) -> bool:
    """Whether nothing would be printed: no text, and no number that is known."""
    return not any(cell) if isinstance(cell, tuple) else not cell


def mark_best(rows: Iterable[Row]) -> tuple[Row, ...]:
    """The rows with the best and the second of every column marked; numbers that print alike share a place.

    Numbers in one cell are compared each with those in its own place; those with `better` 0 are left alone, and so is a
    column in which all numbers print alike.
    """
    columns = [_marked_column(column) for column in zip(*rows, strict=True)]
    return tuple(zip(*columns, strict=True))


def _marked_column(column: Sequence[Cell]) -> list[Cell]:
    cells = [cell for cell in column if isinstance(cell, tuple)]
    orders = [
        sorted({rank for number in numbers if (rank := _rank(number)) is not None})
        for numbers in zip_longest(*cells)  # numbers in the same place of their cells
    ]
    return [tuple(map(_marked, cell, orders)) if isinstance(cell, tuple) else cell for cell in column]


def _rank(number: Number | None) -> float | None:
    """Lower is better; None for what is not compared."""
    return -number.better * number.rounded if number is not None and number.better else None


def _marked(number: Number | None, order: Sequence[float]) -> Number | None:
    rank = _rank(number)
    if number is None or rank is None or len(order) < 2:
        return number
    place = order.index(rank) + 1
    return replace(number, place=place if place <= 2 else 0)
