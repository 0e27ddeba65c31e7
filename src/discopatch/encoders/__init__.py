"""What turns images into features."""

from discopatch.encoders.base import BASIC_KINDS, Encoder, Extracted, FeatureBatch, Features, FeatureSizes, Kind
from discopatch.encoders.discriminator import (
    DiscriminatorEncoder,
    FeatureExtractor,
    Patches,
    Precision,
    check_precision,
    feature_sizes,
    resolve_device,
)
from discopatch.encoders.places import SomePlaces, local_features

__all__ = [
    "BASIC_KINDS",
    "DiscriminatorEncoder",
    "Encoder",
    "Extracted",
    "FeatureBatch",
    "FeatureExtractor",
    "FeatureSizes",
    "Features",
    "Kind",
    "Patches",
    "Precision",
    "SomePlaces",
    "check_precision",
    "feature_sizes",
    "local_features",
    "resolve_device",
]
