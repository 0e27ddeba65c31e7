"""LaTeX that compiles: escaped, balanced, as many cells in every row."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from discopatch.benchmark.studies.tables import studies_tables
from discopatch.benchmark.tables import all_tables, latex
from discopatch.benchmark.tables.table import Heading, Number, Row, Table, ranked

from ..report_samples import make_report, without
from ..studies.report_samples import make_studies_report

DOCUMENT = r"""\documentclass[twocolumn]{article}
\usepackage{booktabs,graphicx}
\begin{document}
\input{tables}
\end{document}
"""


def awkward() -> Table:
    rows: list[Row] = [
        (r"50 % of #1_a & b \ {c} ~^", (Number(97.2, better=1), Number(10.6, better=-1))),
        ("plain", (Number(95, better=1), None)),
        ("gap", ""),
        ("signed", (Number(-0.4, (-1, 0.2), better=1, signed=True), Number(3, spread=0.1))),
    ]
    return Table(
        "awkward", "A & B", "100 %.", (Heading("x_1"), Heading("y", "over")), ranked(rows), ("a_b",), averages=1
    )


def compiles(folder: Path, text: str) -> None:
    (folder / "tables.tex").write_text(text)
    (folder / "document.tex").write_text(DOCUMENT)
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "document.tex"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, errors="replace", check=False)
    assert done.returncode == 0, done.stdout[-2000:]


def test_words_are_escaped() -> None:
    assert latex.escape("50 % of a_b & {c}") == r"50 \% of a\_b \& \{c\}"
    assert latex.escape("\\~^#$±") == r"$\backslash$$\sim$\^{}\#\$$\pm$"


def test_the_best_is_bold_the_second_underlined_and_a_gap_a_dash() -> None:
    text = latex.render(awkward())
    assert r"\textbf{97.2}/10.6 \\" in text.replace(r"\underline{10.6}", "10.6")
    assert r"\underline{95.0}/-- \\" in text
    assert r"gap &  \\" in text
    assert r"$-$0.4\around{[$-$1.0, +0.2]}/3.0\around{$\pm$ 0.1}" in text


@pytest.mark.parametrize("table", [awkward(), *all_tables(make_report(0))[:16]], ids=lambda table: table.name)
def test_everything_that_begins_ends_and_rows_are_full(table: Table) -> None:
    text = latex.render(table)
    opened = re.findall(r"\\(begin|end)\{(.+?)\}", text)
    stack: list[str] = []
    for kind, name in opened:
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


def test_labels_are_unique_and_no_row_needs_multirow() -> None:
    text = latex.document("Everything", all_tables(make_report(0)))
    labels = re.findall(r"\\label\{(.+?)\}", text)
    assert len(labels) == len(set(labels)) > 10
    assert "multirow" not in text


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="pdflatex is not installed")
def test_it_compiles(tmp_path: Path) -> None:
    report = without(make_report(0), ["paper"])
    compiles(tmp_path, latex.document("Everything", [awkward(), *all_tables(report)]))


@pytest.mark.parametrize("table", studies_tables(make_studies_report()), ids=lambda table: table.name)
def test_tables_of_studies_are_whole_too(table: Table) -> None:
    test_everything_that_begins_ends_and_rows_are_full(table)


def test_labels_stay_unique_beside_studies_and_nothing_is_left_of_markdown() -> None:
    text = latex.document("Everything", all_tables(make_report(0), make_studies_report()))
    labels = re.findall(r"\\label\{(.+?)\}", text)
    assert len(labels) == len(set(labels))
    assert not re.search(r"`|\*(?!\})", re.sub(r"table\*", "", text))


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="pdflatex is not installed")
def test_studies_compile(tmp_path: Path) -> None:
    compiles(tmp_path, latex.document("Studies", studies_tables(make_studies_report())))
