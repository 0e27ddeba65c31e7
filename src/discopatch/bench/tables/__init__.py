"""The results of a benchmark as tables: Markdown for reading, LaTeX for print, CSV for other programs."""

from discopatch.bench.tables.build import result_tables, write_page, write_tables
from discopatch.bench.tables.frame import by_method, results_frame
from discopatch.bench.tables.table import Cell, Heading, Number, Row, Table, mark_best, percentage
from discopatch.bench.tables.writers import latex_page, markdown_page, markdown_table, to_latex, to_markdown

__all__ = [
    "Cell",
    "Heading",
    "Number",
    "Row",
    "Table",
    "by_method",
    "latex_page",
    "mark_best",
    "markdown_page",
    "markdown_table",
    "percentage",
    "result_tables",
    "results_frame",
    "to_latex",
    "to_markdown",
    "write_page",
    "write_tables",
]
