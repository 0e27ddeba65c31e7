"""Tables with a row for each method, put together column by column."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from discopatch.benchmark.tables.labels import method_label
from discopatch.benchmark.tables.table import Cell, Heading, Table, ranked

METHOD = Heading("Method")


@dataclass(frozen=True)
class Column:
    """What stands in it for each method; those that are missing leave a gap."""

    heading: Heading
    cells: Mapping[str, Cell]


def by_method(
    name: str,
    title: str,
    caption: str,
    columns: Iterable[Column],
    methods: Iterable[str],
    *,
    notes: tuple[str, ...] = (),
) -> Table:
    """A row for each of the methods, the best marked; columns in which nothing stands are left out."""
    filled = [column for column in columns if any(column.cells.values())]
    rows = [(method_label(method), *(column.cells.get(method, "") for column in filled)) for method in methods]
    headings = (METHOD, *(column.heading for column in filled))
    return Table(name, title, caption, headings, ranked(rows), notes)
