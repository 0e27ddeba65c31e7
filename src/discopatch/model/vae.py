"""The VAE: the factory of negatives, needed in training only."""

from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor, nn

from discopatch.model.blocks import Block, doubling, halving
from discopatch.model.fused import convolve_to_pixels
from discopatch.model.presets import Architecture


class Forgery(NamedTuple):
    """What the VAE makes of one batch of real patches and of noise."""

    reconstructed: Tensor  # (B, 3, S, S) in [-1, 1]
    generated: Tensor  # (B, 3, S, S) in [-1, 1]
    mean: Tensor  # (B, latent)
    log_variance: Tensor  # (B, latent)


class VAE(nn.Module):
    """Encoder and decoder of patches; its encoder is the discriminator's body, its decoder the mirror of that."""

    def __init__(self, architecture: Architecture) -> None:
        super().__init__()
        self.architecture = architecture
        self.fused = False
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

    def forward(self, real: Tensor, latent_noise: Tensor, prior: Tensor) -> Forgery:
        """One reconstruction of each real patch and one generation from each draw of the prior."""
        mean, log_variance = self.encode(real)
        latent = mean + latent_noise * torch.exp(0.5 * log_variance)
        return Forgery(self.decode(latent), self.decode(prior), mean, log_variance)

    def encode(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Patches to the mean and log-variance of their latent."""
        for block in self.encoder:
            x = block(x)
        x = x.flatten(1)
        return self.to_mean(x), self.to_log_variance(x)

    def decode(self, latent: Tensor) -> Tensor:
        """Latents to patches in [-1, 1]."""
        shape = self.architecture
        x = self.from_latent(latent).view(-1, shape.hidden[-1], shape.cells, shape.cells)
        for block in self.decoder:
            x = block(x)
        if self.fused and self.training:
            x = convolve_to_pixels(x, self.to_pixels.weight, self.to_pixels.bias)
        else:
            x = self.to_pixels(x)
        return torch.tanh(x)
