"""The report on scored images, one self-contained HTML file, and heatmaps of where an image is anomalous."""

from discopatch.report.builder import ReportBuilder
from discopatch.report.content import ReportContent
from discopatch.report.heatmap import image_format, overlay, save_heatmap
from discopatch.report.page import write_report

__all__ = ["ReportBuilder", "ReportContent", "image_format", "overlay", "save_heatmap", "write_report"]
