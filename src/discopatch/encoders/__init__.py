"""Encoders turn images into features: the discriminator, networks from outside, or several of them together."""

from discopatch.encoders.base import BASIC_KINDS as BASIC_KINDS
from discopatch.encoders.base import Encoder as Encoder
from discopatch.encoders.base import FeatureBatch as FeatureBatch
from discopatch.encoders.base import Features as Features
from discopatch.encoders.base import FeatureSizes as FeatureSizes
from discopatch.encoders.base import JoinedEncoder as JoinedEncoder
from discopatch.encoders.base import Kind as Kind
from discopatch.encoders.base import map_on_cores as map_on_cores
from discopatch.encoders.base import resolve_device as resolve_device
from discopatch.encoders.discriminator import DiscriminatorEncoder as DiscriminatorEncoder
from discopatch.encoders.discriminator import FeatureExtractor as FeatureExtractor
from discopatch.encoders.discriminator import Patches as Patches
from discopatch.encoders.discriminator import Precision as Precision
from discopatch.encoders.discriminator import check_precision as check_precision
from discopatch.encoders.factory import AnyWeights as AnyWeights
from discopatch.encoders.factory import ChosenNetworks as ChosenNetworks
from discopatch.encoders.factory import check_decoder as check_decoder
from discopatch.encoders.factory import find_network as find_network
from discopatch.encoders.factory import load_networks as load_networks
from discopatch.encoders.factory import make_encoders as make_encoders
from discopatch.encoders.network import NetworkEncoder as NetworkEncoder
from discopatch.encoders.network import OutsideNetwork as OutsideNetwork
from discopatch.encoders.network import load_folder as load_folder
from discopatch.encoders.network import parse_name as parse_name
from discopatch.encoders.places import Compare as Compare
from discopatch.encoders.places import local_features as local_features
