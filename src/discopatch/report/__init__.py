"""The report on scored images: one self-contained HTML file."""

from discopatch.report.builder import ReportBuilder
from discopatch.report.content import ReportContent
from discopatch.report.page import write_report

__all__ = ["ReportBuilder", "ReportContent", "write_report"]
