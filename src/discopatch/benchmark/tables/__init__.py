"""What a benchmark run found, as tables: Markdown for reading, LaTeX for print, CSV for other programs."""

from discopatch.benchmark.tables.build import all_tables, write_tables

__all__ = ["all_tables", "write_tables"]
