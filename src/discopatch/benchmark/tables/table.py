"""A table before it is known where it will be printed."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

Better = Literal[-1, 0, 1]  # lower, none, higher
Triple = Sequence[float]  # value, low, high


@dataclass(frozen=True)
class Number:
    """A number as it will be printed, with an interval or a spread around it where there is one."""

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
        return self._written(self.value)

    @property
    def around(self) -> str:
        """[96.8, 97.5] or ± 0.3; empty for a number alone."""
        if self.interval is not None:
            return f"[{', '.join(map(self._written, self.interval))}]"
        return "" if self.spread is None else f"± {self.spread:,.{self.digits}f}"

    @property
    def rounded(self) -> float:
        """What the printed digits say."""
        return round(self.value, self.digits) + 0.0  # turns -0.0 into 0.0

    def _written(self, value: float) -> str:
        return f"{round(value, self.digits) + 0.0:{'+' if self.signed else ''},.{self.digits}f}"


Cell = str | tuple[Number | None, ...]  # words, or numbers that stand side by side: 97.2/10.6
Row = tuple[Cell, ...]


@dataclass(frozen=True)
class Heading:
    """Of a column; successive columns with the same words `above` share them."""

    text: str
    above: str = ""


@dataclass(frozen=True)
class Table:
    """All that a reader sees of it; the first column names the row."""

    name: str  # of letters, digits and hyphens
    title: str
    caption: str
    headings: tuple[Heading, ...]
    rows: tuple[Row, ...]
    notes: tuple[str, ...] = ()
    averages: int = 0  # last rows that stand apart from the others

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.headings):
                raise ValueError(f"table {self.name}: {len(row)} cells under {len(self.headings)} headings")


def percent(
    triple: Triple | None, *, better: Better = 0, interval: bool = False, signed: bool = False
) -> Number | None:
    """A share of 1, times 100."""
    if triple is None:
        return None
    value, low, high = (100 * each for each in triple)
    return Number(value, (low, high) if interval else None, better=better, signed=signed)


def cell(*numbers: Number | None) -> Cell:
    """Numbers side by side; a gap where none of them is known."""
    return numbers if any(number is not None for number in numbers) else ""


def ranked(rows: Iterable[Row]) -> tuple[Row, ...]:
    """With the best and the second of every column marked; numbers that are printed alike share a place."""
    columns = [_ranked_column(column) for column in zip(*rows, strict=True)]
    return tuple(zip(*columns, strict=True))


def _ranked_column(column: Sequence[Cell]) -> list[Cell]:
    width = max((len(each) for each in column if not isinstance(each, str)), default=0)
    orders = [_order(column, part) for part in range(width)]
    return [each if isinstance(each, str) else tuple(map(_placed, each, orders)) for each in column]


def _order(column: Sequence[Cell], part: int) -> list[float]:
    """The printed values from best to worst."""
    numbers = [each[part] for each in column if not isinstance(each, str) and part < len(each)]
    compared = [number for number in numbers if number is not None and number.better]
    return sorted({-number.better * number.rounded for number in compared})


def _placed(number: Number | None, order: Sequence[float]) -> Number | None:
    if number is None or not number.better or len(order) < 2:
        return number
    place = order.index(-number.better * number.rounded) + 1
    return replace(number, place=place if place <= 2 else 0)
