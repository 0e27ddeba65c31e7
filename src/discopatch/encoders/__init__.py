"""What turns images into features."""

from discopatch.encoders.base import Encoder, Extracted, FeatureBatch, Features
from discopatch.encoders.discriminator import (
    DiscriminatorEncoder,
    FeatureExtractor,
    Patches,
    Precision,
    check_precision,
    resolve_device,
)

__all__ = [
    "DiscriminatorEncoder",
    "Encoder",
    "Extracted",
    "FeatureBatch",
    "FeatureExtractor",
    "Features",
    "Patches",
    "Precision",
    "check_precision",
    "resolve_device",
]
