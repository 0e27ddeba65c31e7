"""Tables as Markdown, for reading, and as LaTeX, for print: the best in bold, the second in italics or underlined."""

import re
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from typing import NamedTuple

from discopatch.bench.tables.table import Cell, Heading, Table, is_empty

_LATEX_ESCAPES = {
    "\\": r"$\backslash$",
    "~": r"$\sim$",
    "^": r"\^{}",
    "<": "$<$",
    ">": "$>$",
    "±": r"$\pm$",
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
}
_ONE_COLUMN = 70  # characters in a row; a wider table spans both columns of the page
_FLOATS = 8  # LaTeX holds few that wait for a page

# Never enlarges a narrow table.
_FIT = r"\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{%"


def markdown_table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table of finished text: the first column flush left, the others flush right."""
    lines = [headings, ["---", *["---:"] * (len(headings) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def to_markdown(table: Table, *, level: int = 2) -> str:
    """A heading of that level, the caption, and the table."""
    headings = ["<br>".join(filter(None, map(_escape_markdown, (each.above, each.text)))) for each in table.headings]
    rows = [[_cell_text(cell, _MARKDOWN) for cell in row] for row in table.rows]
    for row in rows[len(rows) - table.averages :]:
        row[0] = f"**{row[0]}**"
    return "\n\n".join([f"{'#' * level} {table.title}", table.caption, markdown_table(headings, rows)])


def markdown_page(title: str, intro: str, tables: Iterable[Table]) -> str:
    """A page with a title and an introduction above the tables."""
    return "\n\n".join([f"# {title}", intro, *map(to_markdown, tables)]) + "\n"


def _escape_markdown(text: str) -> str:
    return text.replace("|", "\\|").replace("*", "\\*").replace("\n", " ")


def to_latex(table: Table) -> str:
    r"""A float with booktabs rules, shrunk where it is wider than the text.

    A document that uses it needs `\usepackage{booktabs,graphicx}` and the command that `latex_page` begins with.
    """
    kind = "table*" if _width(table) > _ONE_COLUMN else "table"
    rows = [_latex_line(_cell_text(cell, _LATEX) for cell in row) for row in table.rows]
    if table.averages:
        rows.insert(len(rows) - table.averages, r"        \midrule")
    lines = [
        rf"\begin{{{kind}}}[!ht]",
        r"    \centering",
        rf"    \caption{{{escape_latex(table.title)}. {escape_latex(table.caption)}}}",
        rf"    \label{{tab:{table.name}}}",
        f"    {_FIT}",
        rf"    \begin{{tabular}}{{@{{}}l{'c' * (len(table.headings) - 1)}@{{}}}}",
        r"        \toprule",
        *_latex_headings(table.headings),
        r"        \midrule",
        *rows,
        r"        \bottomrule",
        r"    \end{tabular}}",
        rf"\end{{{kind}}}",
    ]
    return "\n".join(lines) + "\n"


def latex_page(title: str, tables: Iterable[Table]) -> str:
    r"""All tables, to be read by a document with `\input{tables}`."""
    lines = [
        f"% {title}. Written by a program: changes here will be lost.",
        r"% Needs \usepackage{booktabs,graphicx}.",
        r"\providecommand{\around}[1]{\,{\scriptsize #1}}",
    ]
    for number, table in enumerate(tables, start=1):
        lines += ["", to_latex(table).rstrip()]
        if number % _FLOATS == 0:
            lines.append(r"\clearpage")
    return "\n".join(lines) + "\n"


def escape_latex(text: str) -> str:
    """Text that LaTeX prints as it is."""
    special = "|".join(map(re.escape, _LATEX_ESCAPES))
    return re.sub(special, lambda found: _LATEX_ESCAPES[found[0]], text)


def _latex_headings(headings: Sequence[Heading]) -> list[str]:
    last = _latex_line(_latex_bold(heading.text) for heading in headings)
    if not any(heading.above for heading in headings):
        return [last]
    cells, rules, first = [], [], 1
    for above, shared in groupby(headings, key=lambda heading: heading.above):
        size = len(list(shared))
        if above:
            cells.append(rf"\multicolumn{{{size}}}{{c}}{{{_latex_bold(above)}}}")
            rules.append(rf"\cmidrule(lr){{{first}-{first + size - 1}}}")
        else:
            cells += [""] * size
        first += size
    return [_latex_line(cells), f"        {''.join(rules)}", last]


def _latex_line(cells: Iterable[str]) -> str:
    return f"        {' & '.join(cells)} \\\\"


def _latex_bold(text: str) -> str:
    return rf"\textbf{{{escape_latex(text)}}}" if text else ""


class _Markup(NamedTuple):
    """How a cell is written: its text, numbers by their place, what stands beside them, a minus, a missing number."""

    escape: Callable[[str], str]
    marks: tuple[str, str, str]
    around: str
    minus: str
    missing: str


_MARKDOWN = _Markup(_escape_markdown, ("{}", "**{}**", "*{}*"), " {}", "-", "-")
_LATEX = _Markup(escape_latex, ("{}", r"\textbf{{{}}}", r"\underline{{{}}}"), r"\around{{{}}}", "$-$", "--")


def _cell_text(cell: Cell, markup: _Markup) -> str:
    if isinstance(cell, str):
        return markup.escape(cell)
    if is_empty(cell):
        return ""
    parts = []
    for number in cell:
        if number is None:
            parts.append(markup.missing)
        else:
            around = markup.around.format(markup.escape(number.around)) if number.around else ""
            parts.append((markup.marks[number.place].format(number.text) + around).replace("-", markup.minus))
    return "/".join(parts)


def _width(table: Table) -> int:
    """Characters of the widest row and its gaps, roughly: the Markdown without its marks."""
    rows = [[len(_cell_text(cell, _MARKDOWN).replace("*", "")) + 1 for cell in row] for row in table.rows]
    rows.append([len(heading.text) for heading in table.headings])
    return sum(max(column) + 2 for column in zip(*rows, strict=True))
