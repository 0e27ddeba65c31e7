"""Reports on scored images, evaluations and audits: one self-contained HTML file each."""

from discopatch.report.boxes import BoxesBuilder
from discopatch.report.content import ReportContent
from discopatch.report.page import ReportBuilder, write_audit, write_evaluation, write_report

__all__ = ["BoxesBuilder", "ReportBuilder", "ReportContent", "write_audit", "write_evaluation", "write_report"]
