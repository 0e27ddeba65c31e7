"""Explanations of a prediction: where an image is anomalous, and which known change it looks like."""

from discopatch.explain.anomaly_map import ANOMALY_MAP_SIZE, GRID, USUAL_SHARE, RegionModel, heat_of_places
from discopatch.explain.heatmap import colour_layer, css_gradient, image_format, overlay, save_heatmap
from discopatch.explain.reasons import REASON_IMAGES, ReasonModel
from discopatch.heads import PROBES

__all__ = [
    "ANOMALY_MAP_SIZE",
    "GRID",
    "PROBES",
    "REASON_IMAGES",
    "USUAL_SHARE",
    "ReasonModel",
    "RegionModel",
    "colour_layer",
    "css_gradient",
    "heat_of_places",
    "image_format",
    "overlay",
    "save_heatmap",
]
