"""Markdown with full rows, and LaTeX that compiles: escaped, balanced, as many cells in every row."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from discopatch.bench.tables import (
    Heading,
    Number,
    Row,
    Table,
    latex_page,
    mark_best,
    markdown_table,
    result_tables,
    to_latex,
    to_markdown,
)
from discopatch.bench.tables.writers import escape_latex
from tests.bench.sample_results import REFERENCE, make_results, only, without

DOCUMENT = r"""\documentclass[twocolumn]{article}
\usepackage{booktabs,graphicx}
\begin{document}
\input{tables}
\end{document}
"""
ROWS: list[Row] = [
    (r"50 % of #1_a & b \ {c} ~^", (Number(97.2, better=1), Number(10.6, better=-1))),
    ("plain", (Number(95, better=1), None)),
    ("gap", ""),
    ("gaps", (None, None)),
    ("signed", (Number(-0.4, (-1, 0.2), better=1, signed=True), Number(3, spread=0.1))),
]
AWKWARD = Table("awkward", "A & B", "100 %.", (Heading("x_1|*"), Heading("y", "over")), mark_best(ROWS), averages=1)
RESULTS = only(make_results(0), [REFERENCE, "discopatch-64/logit", "resnet50/knn"])
TABLES = [AWKWARD, *result_tables(RESULTS)[:16]]


def test_markdown_marks_the_best_and_the_second() -> None:
    lines = to_markdown(AWKWARD, level=3).splitlines()
    assert lines[0] == "### A & B"
    assert lines[4] == r"| x_1\|\* | over<br>y |"
    assert lines[6:] == [
        r"| 50 % of #1_a & b \ {c} ~^ | **97.2**/10.6 |",
        "| plain | *95.0*/- |",
        "| gap |  |",
        "| gaps |  |",
        "| **signed** | -0.4 [-1.0, +0.2]/3.0 ± 0.1 |",
    ]


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.name)
def test_rows_of_markdown_are_full(table: Table) -> None:
    lines = [line for line in to_markdown(table).splitlines() if line.startswith("|")]
    assert {line.count(" | ") for line in lines} == {len(table.headings) - 1}


def test_a_plain_markdown_table_has_its_numbers_flush_right() -> None:
    assert markdown_table(["a", "b"], [["x", "1"]]) == "| a | b |\n| --- | ---: |\n| x | 1 |"


def test_text_is_escaped_for_latex() -> None:
    assert escape_latex("50 % of a_b & {c}") == r"50 \% of a\_b \& \{c\}"
    assert escape_latex("\\~^#$±") == r"$\backslash$$\sim$\^{}\#\$$\pm$"


def test_latex_has_the_best_in_bold_the_second_underlined_and_a_gap_as_a_dash() -> None:
    text = to_latex(AWKWARD)
    assert r"\textbf{97.2}/10.6 \\" in text
    assert r"\underline{95.0}/-- \\" in text
    assert r"gap &  \\" in text
    assert r"gaps &  \\" in text
    assert r"$-$0.4\around{[$-$1.0, +0.2]}/3.0\around{$\pm$ 0.1}" in text
    assert text.index(r"\midrule", text.index("gaps")) < text.index("signed")


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.name)
def test_everything_that_begins_ends_and_rows_of_latex_are_full(table: Table) -> None:
    text = to_latex(table)
    stack: list[str] = []
    for kind, name in re.findall(r"\\(begin|end)\{(.+?)\}", text):
        if kind == "begin":
            stack.append(name)
        else:
            assert stack.pop() == name
    assert not stack
    bare = re.sub(r"\\[{}&%$#_]", "", text)
    assert bare.count("{") == bare.count("}")
    for line in text.splitlines():
        if line.endswith(r"\\"):
            spans = [int(size) for size in re.findall(r"\\multicolumn\{(\d+)\}", line)]
            cells = len(re.findall(r"(?<!\\)&", line)) + 1 - len(spans) + sum(spans)
            assert cells == len(table.headings)


def test_labels_are_unique_and_nothing_is_left_of_markdown() -> None:
    text = latex_page("Everything", result_tables(RESULTS))
    labels = re.findall(r"\\label\{(.+?)\}", text)
    assert len(labels) == len(set(labels)) > 10
    assert not re.search(r"multirow|`|\*(?!\})", re.sub(r"table\*", "", text))


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="pdflatex is not installed")
def test_it_compiles(tmp_path: Path) -> None:
    (tmp_path / "tables.tex").write_text(
        latex_page("Everything", [AWKWARD, *result_tables(without(RESULTS, ["paper"]))])
    )
    (tmp_path / "document.tex").write_text(DOCUMENT)
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "document.tex"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, errors="replace", check=False)
    assert done.returncode == 0, done.stdout[-2000:]
