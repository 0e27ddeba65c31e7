"""The two networks that train against each other."""

from dataclasses import dataclass
from typing import Self

import torch
from torch import nn

from discopatch.model.blocks import Block, channels_last
from discopatch.model.discriminator import Discriminator
from discopatch.model.patchnorm import PatchNorm2d
from discopatch.model.presets import Architecture
from discopatch.model.vae import VAE


@dataclass(frozen=True)
class Pair:
    """The VAE and its discriminator."""

    vae: VAE
    discriminator: Discriminator

    @classmethod
    def from_seed(cls, architecture: Architecture, seed: int) -> Self:
        """New networks, the same ones for the same seed; the global random state stays as it was."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return cls(channels_last(VAE(architecture)), channels_last(Discriminator(architecture)))

    def fuse(self) -> None:
        """Takes the fast passes of `fused.py` in training, wherever the normalisation allows it.

        A bias that a normalisation takes out again has no gradient but rounding noise: it rests from now on.
        """
        self.vae.fused = True
        for block in (*self.vae.modules(), *self.discriminator.modules()):
            if isinstance(block, Block) and isinstance(block.norm, PatchNorm2d | nn.BatchNorm2d):
                block.fused = True
                assert block.conv.bias is not None
                block.conv.bias.requires_grad_(False)
