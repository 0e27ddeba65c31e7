"""The VAE, which makes the negatives of the training, and the two networks that train against each other."""

from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor, nn

from discopatch.model.config import Architecture
from discopatch.model.discriminator import Discriminator
from discopatch.model.layers import Block, channels_last, doubling, halving


class VAEOutput(NamedTuple):
    """Output of the VAE for one batch of real patches and of noise."""

    reconstructed: Tensor  # (B, 3, S, S) in [-1, 1]
    generated: Tensor  # (B, 3, S, S) in [-1, 1]
    mean: Tensor  # (B, latent)
    log_variance: Tensor  # (B, latent)


class VAE(nn.Module):
    """Encoder and decoder of patches; the encoder is the discriminator's body, the decoder its mirror."""

    def __init__(self, architecture: Architecture) -> None:
        super().__init__()
        self.architecture = architecture
        widths = (3, *architecture.hidden)
        self.encoder = nn.ModuleList(
            Block(halving(inputs, outputs), nn.BatchNorm2d(outputs)) for inputs, outputs in pairwise(widths)
        )
        self.to_mean = nn.Linear(architecture.flat, architecture.latent)
        self.to_log_variance = nn.Linear(architecture.flat, architecture.latent)
        self.from_latent = nn.Linear(architecture.latent, architecture.flat)
        mirrored = (*reversed(architecture.hidden), architecture.hidden[0])
        self.decoder = nn.ModuleList(
            Block(doubling(inputs, outputs), nn.BatchNorm2d(outputs)) for inputs, outputs in pairwise(mirrored)
        )
        self.to_pixels = nn.Conv2d(architecture.hidden[0], 3, kernel_size=3, padding=1)
        self.fused_to_pixels: Any = None  # the last convolution for training on a GPU, see `discopatch.model.kernels`

    def forward(self, real: Tensor, latent_noise: Tensor, prior: Tensor) -> VAEOutput:
        """Reconstruction of each real patch and one generated patch per draw of the prior."""
        mean, log_variance = self.encode(real)
        latent = mean + latent_noise * torch.exp(0.5 * log_variance)
        return VAEOutput(self.decode(latent), self.decode(prior), mean, log_variance)

    def encode(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Patches to the mean and log-variance of their latent, two tensors (B, latent)."""
        for block in self.encoder:
            x = block(x).features
        x = x.flatten(1)
        return self.to_mean(x), self.to_log_variance(x)

    def decode(self, latent: Tensor) -> Tensor:
        """Latents (B, latent) to patches (B, 3, S, S) in [-1, 1]."""
        shape = self.architecture
        x = self.from_latent(latent).view(-1, shape.hidden[-1], shape.cells, shape.cells)
        for block in self.decoder:
            x = block(x).features
        if self.fused_to_pixels is not None and self.training:
            return torch.tanh(self.fused_to_pixels(x, self.to_pixels.weight, self.to_pixels.bias))
        return torch.tanh(self.to_pixels(x))


@dataclass(frozen=True)
class Networks:
    """The VAE and its discriminator."""

    vae: VAE
    discriminator: Discriminator

    @classmethod
    def from_seed(cls, architecture: Architecture, seed: int) -> Self:
        """New networks, the same ones for the same seed; the global random state stays as it was."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return cls(channels_last(VAE(architecture)), channels_last(Discriminator(architecture)))
