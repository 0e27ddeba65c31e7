"""The paper's networks, which turn patches into logits and statistics of every layer."""

from discopatch.model.config import Architecture as Architecture
from discopatch.model.config import Normalisation as Normalisation
from discopatch.model.layers import PatchNorm2d as PatchNorm2d
from discopatch.model.layers import channels_last as channels_last
from discopatch.model.networks import VAE as VAE
from discopatch.model.networks import Discriminator as Discriminator
from discopatch.model.networks import DiscriminatorOutput as DiscriminatorOutput
from discopatch.model.networks import Networks as Networks
from discopatch.model.patches import extract_patches as extract_patches
from discopatch.model.patches import grid_corners as grid_corners
from discopatch.model.patches import scoring_corners as scoring_corners
from discopatch.model.weights import Weights as Weights
from discopatch.model.weights import parameters_digest as parameters_digest
from discopatch.model.weights import read_safetensors as read_safetensors
from discopatch.model.weights import write_safetensors as write_safetensors
