"""Patches become logits and statistics."""

from discopatch.model.discriminator import Discriminator, Inspection
from discopatch.model.pair import Pair
from discopatch.model.patchnorm import PatchNorm2d, patch_statistics
from discopatch.model.presets import PRESETS, Architecture, Grouping, Normalisation, Preset, find_preset
from discopatch.model.vae import VAE, Forgery

__all__ = [
    "PRESETS",
    "VAE",
    "Architecture",
    "Discriminator",
    "Forgery",
    "Grouping",
    "Inspection",
    "Normalisation",
    "Pair",
    "PatchNorm2d",
    "Preset",
    "find_preset",
    "patch_statistics",
]
