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
from discopatch.encoders.joined import JoinedEncoder
from discopatch.encoders.network import NetworkEncoder, OutsideNetwork
from discopatch.encoders.outside import AnyWeights, ChosenNetworks, find_network, load_networks

__all__ = [
    "BASIC_KINDS",
    "AnyWeights",
    "ChosenNetworks",
    "DiscriminatorEncoder",
    "Encoder",
    "Extracted",
    "FeatureBatch",
    "FeatureExtractor",
    "Features",
    "JoinedEncoder",
    "Kind",
    "NetworkEncoder",
    "OutsideNetwork",
    "Patches",
    "Precision",
    "check_precision",
    "find_network",
    "load_networks",
    "resolve_device",
]
