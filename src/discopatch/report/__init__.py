"""The report on scored images: one self-contained HTML file."""

from discopatch.report.boxes import BoxesBuilder
from discopatch.report.content import ReportContent
from discopatch.report.page import ReportBuilder, write_report

__all__ = ["BoxesBuilder", "ReportBuilder", "ReportContent", "write_report"]
