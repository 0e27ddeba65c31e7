"""Frozen classifiers that others trained: pictures become the features that the baselines look at."""

from discopatch.baselines.backbones.backbone import Backbone
from discopatch.baselines.backbones.named import BACKBONES, fetched, load_backbone

__all__ = ["BACKBONES", "Backbone", "fetched", "load_backbone"]
