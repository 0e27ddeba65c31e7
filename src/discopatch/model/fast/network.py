"""The pass as a whole."""

from dataclasses import dataclass
from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor

from discopatch.model.blocks import Block
from discopatch.model.discriminator import Discriminator
from discopatch.model.fast.layers import First, Judge, Middle
from discopatch.model.fast.look import Look
from discopatch.model.fast.stages import Affine, Stages


@dataclass(frozen=True, eq=False)
class Network:
    """A discriminator whose normalisation is PatchNorm, laid out for one precision."""

    first: First
    middle: tuple[Middle, ...]
    judge: Judge
    channels: int  # of all layers together
    dtype: torch.dtype

    @classmethod
    def of(cls, discriminator: Discriminator, dtype: torch.dtype) -> Self:
        """Where the discriminator lies."""
        architecture = discriminator.architecture
        if architecture.normalisation != "patch":
            raise ValueError(
                f"the fast pass normalises by image, and this discriminator has the normalisation "
                f"{architecture.normalisation!r}: use precision='float32'"
            )
        first, *others = (block for block in discriminator.blocks if isinstance(block, Block))
        begins = [2 * sum(architecture.hidden[:number]) for number in range(len(architecture.hidden))]
        middle = tuple(Middle.of(block, begin, dtype) for block, begin in zip(others, begins[1:], strict=True))
        judge = Judge.of(discriminator.head, architecture.cells)
        return cls(First.of(first), middle, judge, sum(architecture.hidden), dtype)

    def places(self, look: Look) -> int:
        """Logits of an image."""
        return int(look.patches * (look.side(1 + len(self.middle)) - self.judge.cells + 1) ** 2)

    def width(self, look: Look) -> int:
        """Numbers that are found of an image: its statistics, as evidence has them, then its logits."""
        return 2 * self.channels + self.places(look)

    def run(self, pictures: Tensor, look: Look, stages: Stages) -> Tensor:
        """(B, size, size, 3) in uint8 -> (B, width) in float32."""
        pictures = pictures.contiguous()  # kernels take it for granted
        found = torch.empty(len(pictures), self.width(look), device=pictures.device)
        x = self._first(pictures, look, stages, found)
        affine: Affine | None = None
        for layer in self.middle:
            x = convolve(x if affine is None else stages.activate(x, affine), layer.kernel)
            sums = stages.sums(x, len(pictures))
            affine = stages.settle(sums, x, layer.norm, found, pixels=x.numel() // x.shape[3] // len(pictures))
        stages.judge(x, affine, self.judge, found, first=2 * self.channels)
        return found

    def _first(self, pictures: Tensor, look: Look, stages: Stages, found: Tensor) -> Tensor:
        layer = self.first
        sums = (stages.moments(pictures, look).flatten(1) @ layer.forms).view(len(pictures), 1, 2, -1)
        affine = stages.settle(sums, None, layer.norm, found, pixels=look.pixels(1))
        return stages.first(pictures, look, layer, affine, self.dtype)


def convolve(x: Tensor, kernel: Tensor) -> Tensor:
    """3x3, stride 2, padding 1, without bias, on (B, rows, columns, C)."""
    return F.conv2d(x.permute(0, 3, 1, 2), kernel, None, 2, 1).permute(0, 2, 3, 1).contiguous()
