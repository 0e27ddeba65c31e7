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
from discopatch.encoders.factory import check_decoder, make_encoders
from discopatch.encoders.joined import JoinedEncoder, joined_sizes
from discopatch.encoders.network import Layers, NetworkEncoder, OutsideNetwork
from discopatch.encoders.outside import AnyWeights, ChosenNetworks, NetworkName, find_network, load_networks
from discopatch.encoders.places import SomePlaces, local_features

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
    "Precision",
    "SomePlaces",
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
