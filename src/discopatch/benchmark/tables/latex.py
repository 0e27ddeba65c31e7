"""Tables as LaTeX, as in the paper: rules of booktabs, the best in bold, the second underlined.

Use them with `\\input{tables}` in a document that has `\\usepackage{booktabs,graphicx}`.
"""

import re
from collections.abc import Iterable, Sequence
from itertools import groupby

from discopatch.benchmark.tables.table import Cell, Heading, Number, Row, Table

_MARKS = {0: "%s", 1: r"\textbf{%s}", 2: r"\underline{%s}"}
_ESCAPES = {
    "\\": r"$\backslash$",
    "~": r"$\sim$",
    "^": r"\^{}",
    "<": "$<$",
    ">": "$>$",
    "±": r"$\pm$",
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
}
_SPECIAL = re.compile("|".join(map(re.escape, _ESCAPES)))
_ONE_COLUMN = 70  # characters in a row; more spans both columns of the page
_FLOATS = 8  # LaTeX holds few that wait for a page

# Never enlarges a narrow table.
_FIT = r"\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{%"


def document(title: str, tables: Iterable[Table]) -> str:
    """All tables, for a document of one's own to read."""
    lines = [
        f"% {title}. Written by a program: changes here will be lost.",
        r"% Needs \usepackage{booktabs,graphicx}.",
        r"\providecommand{\around}[1]{\,{\scriptsize #1}}",
    ]
    for number, table in enumerate(tables, start=1):
        lines += ["", render(table).rstrip()]
        if number % _FLOATS == 0:
            lines.append(r"\clearpage")
    return "\n".join(lines) + "\n"


def render(table: Table) -> str:
    """A float, made smaller where it is wider than the text."""
    plain = len(table.rows) - table.averages
    kind = "table*" if _width(table) > _ONE_COLUMN else "table"
    lines = [
        rf"\begin{{{kind}}}[!ht]",
        r"    \centering",
        rf"    \caption{{{escape(table.title)}. {escape(table.caption)}}}",
        rf"    \label{{tab:{table.name}}}",
        f"    {_FIT}",
        rf"    \begin{{tabular}}{{@{{}}l{'c' * (len(table.headings) - 1)}@{{}}}}",
        r"        \toprule",
        *_head(table.headings),
        r"        \midrule",
        *map(_row, table.rows[:plain]),
        *([r"        \midrule"] if table.averages else []),
        *map(_row, table.rows[plain:]),
        r"        \bottomrule",
        r"    \end{tabular}}",
        *(rf"    \par\smallskip{{\footnotesize {escape(note)}\par}}" for note in table.notes),
        rf"\end{{{kind}}}",
    ]
    return "\n".join(lines) + "\n"


def escape(text: str) -> str:
    """Words that LaTeX prints as they are."""
    return _SPECIAL.sub(lambda found: _ESCAPES[found[0]], text)


def _head(headings: Sequence[Heading]) -> list[str]:
    last = _line([_bold(heading.text) for heading in headings])
    if not any(heading.above for heading in headings):
        return [last]
    cells, rules, first = [], [], 1
    for above, shared in groupby(headings, key=lambda heading: heading.above):
        size = len(list(shared))
        if above:
            cells.append(rf"\multicolumn{{{size}}}{{c}}{{{_bold(above)}}}")
            rules.append(rf"\cmidrule(lr){{{first}-{first + size - 1}}}")
        else:
            cells += [""] * size
        first += size
    return [_line(cells), f"        {''.join(rules)}", last]


def _row(row: Row) -> str:
    return _line([_cell(each) for each in row])


def _line(cells: Sequence[str]) -> str:
    return f"        {' & '.join(cells)} \\\\"


def _bold(text: str) -> str:
    return rf"\textbf{{{escape(text)}}}" if text else ""


def _cell(cell: Cell) -> str:
    return escape(cell) if isinstance(cell, str) else "/".join(map(_number, cell))


def _number(number: Number | None) -> str:
    if number is None:
        return "--"
    around = rf"\around{{{_minus(escape(number.around))}}}" if number.around else ""
    return _MARKS[number.place] % _minus(number.text) + around


def _minus(text: str) -> str:
    return text.replace("-", "$-$")


def _width(table: Table) -> int:
    """Characters of the widest row and its gaps, roughly."""
    rows = [[_plain(each) for each in row] for row in table.rows] + [[len(each.text) for each in table.headings]]
    return sum(max(column) + 2 for column in zip(*rows, strict=True))


def _plain(cell: Cell) -> int:
    if isinstance(cell, str):
        return len(cell)
    return sum(2 if number is None else 1 + len(number.text) + len(number.around) for number in cell)
