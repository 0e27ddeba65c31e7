"""The paper's networks: patches become logits, and statistics of every layer."""

from discopatch.model.config import Architecture, Kind, Normalisation
from discopatch.model.discriminator import Discriminator, DiscriminatorOutput
from discopatch.model.layers import PatchNorm2d, channels_last, patch_statistics
from discopatch.model.patches import extract_patches, grid_corners, random_corners, scoring_corners
from discopatch.model.vae import VAE, Networks, VAEOutput
from discopatch.model.weights import Weights, parameters_digest, read_safetensors, write_safetensors

__all__ = [
    "VAE",
    "Architecture",
    "Discriminator",
    "DiscriminatorOutput",
    "Kind",
    "Networks",
    "Normalisation",
    "PatchNorm2d",
    "VAEOutput",
    "Weights",
    "channels_last",
    "extract_patches",
    "grid_corners",
    "parameters_digest",
    "patch_statistics",
    "random_corners",
    "read_safetensors",
    "scoring_corners",
    "write_safetensors",
]
