"""What people look at: the report and its heatmaps."""

from discopatch.report.findings import Findings
from discopatch.report.heatmap import overlay, save_heatmap
from discopatch.report.page import ReportContent, render, write_report

__all__ = ["Findings", "ReportContent", "overlay", "render", "save_heatmap", "write_report"]
