"""Networks of the benchmark: two rival classifiers, and any encoder of this package with the same interface."""

from discopatch.bench.networks.base import Backbone, ClassifierBackbone, EncoderBackbone
from discopatch.bench.networks.fetch import BACKBONES, fetch_backbone, is_fetched, load_backbone

__all__ = [
    "BACKBONES",
    "Backbone",
    "ClassifierBackbone",
    "EncoderBackbone",
    "fetch_backbone",
    "is_fetched",
    "load_backbone",
]
