"""Explanations of a prediction: where an image is anomalous, and which known change it looks like.

Heatmaps need no torch, so that exported detectors draw them too; `anomaly_map` and `reasons` are imported by name.
"""

from discopatch.explain.heatmap import colour_layer, css_gradient, image_format, overlay, save_heatmap

__all__ = ["colour_layer", "css_gradient", "image_format", "overlay", "save_heatmap"]
