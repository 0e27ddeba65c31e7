"""An inverted residual discriminator for the fast pass: its own layers, in half precision."""

from copy import deepcopy
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from discopatch.model.discriminator import Discriminator
from discopatch.model.fast.network import LEVELS, PatchLayout, Stages
from discopatch.model.fast.residual_network import Describe
from discopatch.model.inverted import InvertedLayer
from discopatch.model.layers import channels_last
from discopatch.model.patches import extract_patches

PIXEL_SCALE = LEVELS + 1  # a pixel k enters as (2 k - 255) / 256, which is exact in half precision


@dataclass(frozen=True, eq=False)
class FastInverted:
    """Computes in float16 where others do in bfloat16.

    Nothing rounded is normalised away in this network, and three bits more are as fast; ReLU6 keeps values in range.
    """

    discriminator: Discriminator
    dtype: torch.dtype
    describe: Describe | None

    @classmethod
    def of(cls, discriminator: Discriminator, dtype: torch.dtype, describe: Describe | None = None) -> Self:
        """On the device of the discriminator; `describe` says what else is wanted of the maps."""
        dtype = torch.float16 if dtype == torch.bfloat16 else dtype
        copy = deepcopy(discriminator).requires_grad_(False).eval()
        first = copy.blocks[0]
        assert isinstance(first, InvertedLayer)
        assert first.stem is not None
        first.stem.weight.mul_(PIXEL_SCALE / LEVELS)
        return cls(channels_last(copy.to(dtype)), dtype, describe)

    @property
    def channels(self) -> int:
        return sum(self.discriminator.architecture.hidden)

    @property
    def pooled(self) -> slice:
        """Where among the statistics the means of the last map are."""
        last = self.discriminator.architecture.hidden[-1]
        return slice(2 * self.channels - 2 * last, 2 * self.channels - last)

    def run(self, images: Tensor, layout: PatchLayout, stages: Stages) -> tuple[Tensor, ...]:
        """(B, size, size, 3) in uint8 to statistics and logits in float32, and what `describe` makes of the maps."""
        patches = extract_patches(images, layout.corners.long(), layout.patch).to(self.dtype)
        x = ((2 * patches - LEVELS) / PIXEL_SCALE).contiguous(memory_format=torch.channels_last)
        output = self.discriminator(x, layout.patches, statistics=True)
        out = torch.cat((output.statistics, output.logits.float().reshape(len(images), -1)), 1)
        return (out,) if self.describe is None else (out, self.describe(output.features))
