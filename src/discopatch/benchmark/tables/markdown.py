"""Tables as Markdown: the best in bold, the second in italics."""

from collections.abc import Iterable

from discopatch.benchmark.tables.table import Cell, Heading, Number, Table

_MARKS = {1: "**", 2: "*"}


def document(title: str, intro: str, tables: Iterable[Table]) -> str:
    """A page: what it is about, then the tables one after the other."""
    return "\n\n".join([f"# {title}", intro, *map(render, tables)]) + "\n"


def render(table: Table) -> str:
    """Title, caption, the table itself, notes."""
    plain = len(table.rows) - table.averages
    rows = [[_heading(each) for each in table.headings], ["---", *["---:"] * (len(table.headings) - 1)]]
    rows += [[_cell(each) for each in row] for row in table.rows[:plain]]
    rows += [[f"**{_cell(row[0])}**", *map(_cell, row[1:])] for row in table.rows[plain:]]
    body = "\n".join(f"| {' | '.join(row)} |" for row in rows)
    return "\n\n".join([f"## {table.title}", table.caption, body, *(f"- {note}" for note in table.notes)])


def _heading(heading: Heading) -> str:
    return "<br>".join(_safe(text) for text in (heading.above, heading.text) if text)


def _cell(cell: Cell) -> str:
    return _safe(cell) if isinstance(cell, str) else "/".join(map(_number, cell))


def _number(number: Number | None) -> str:
    if number is None:
        return "-"
    mark = _MARKS.get(number.place, "")
    return f"{mark}{number.text}{mark} {number.around}".strip()


def _safe(text: str) -> str:
    return text.replace("|", "\\|").replace("*", "\\*").replace("\n", " ")
