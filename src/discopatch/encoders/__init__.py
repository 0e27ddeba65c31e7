"""Encoders turn images into features: the discriminator, networks from outside, or several of them together."""

from discopatch.encoders.base import (
    BASIC_KINDS,
    Encoder,
    Extracted,
    FeatureBatch,
    Features,
    FeatureSizes,
    JoinedEncoder,
    Kind,
    joined_sizes,
)
from discopatch.encoders.discriminator import (
    DiscriminatorEncoder,
    FeatureExtractor,
    Patches,
    Precision,
    check_precision,
    feature_sizes,
    resolve_device,
)
from discopatch.encoders.factory import (
    AnyWeights,
    ChosenNetworks,
    NetworkName,
    check_decoder,
    find_network,
    load_networks,
    make_encoders,
)
from discopatch.encoders.network import Layers, NetworkEncoder, OutsideNetwork
from discopatch.encoders.places import PlaceSample, local_features

__all__ = [
    "BASIC_KINDS",
    "AnyWeights",
    "ChosenNetworks",
    "DiscriminatorEncoder",
    "Encoder",
    "Extracted",
    "FeatureBatch",
    "FeatureExtractor",
    "FeatureSizes",
    "Features",
    "JoinedEncoder",
    "Kind",
    "Layers",
    "NetworkEncoder",
    "NetworkName",
    "OutsideNetwork",
    "Patches",
    "PlaceSample",
    "Precision",
    "check_decoder",
    "check_precision",
    "feature_sizes",
    "find_network",
    "joined_sizes",
    "load_networks",
    "local_features",
    "make_encoders",
    "resolve_device",
]
