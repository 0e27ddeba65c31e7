"""What turns images into features."""

from discopatch.encoders.base import BASIC_KINDS, Encoder, Extracted, FeatureBatch, Features, Kind
from discopatch.encoders.discriminator import (
    DiscriminatorEncoder,
    FeatureExtractor,
    Patches,
    Precision,
    check_precision,
    resolve_device,
)

__all__ = [
    "BASIC_KINDS",
    "DiscriminatorEncoder",
    "Encoder",
    "Extracted",
    "FeatureBatch",
    "FeatureExtractor",
    "Features",
    "Kind",
    "Patches",
    "Precision",
    "check_precision",
    "resolve_device",
]
