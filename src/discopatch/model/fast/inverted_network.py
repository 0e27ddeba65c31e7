"""An inverted residual discriminator laid out for the fast pass: blocks of one or two kernels, in half precision."""

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor, nn

from discopatch.model.discriminator import Discriminator
from discopatch.model.fast.inverted_blocks import FastMBConv, Stem
from discopatch.model.fast.network import Classifier, NormLayer, PatchLayout, Stages
from discopatch.model.fast.residual_network import Describe
from discopatch.model.inverted import InvertedLayer, MBConv, SameConv2d


@dataclass(frozen=True, eq=False)
class FastInverted:
    """Computes in float16 where others do in bfloat16.

    Nothing rounded is normalised away in this network, and three bits more are as fast; ReLU6 keeps values in range.
    """

    stem: Stem
    layers: tuple[tuple[tuple[FastMBConv, ...], NormLayer], ...]  # of each its blocks, and where its statistics go
    cell: Classifier  # of a larger image: every cell has a logit
    patch: Classifier  # of a patch: the mean over its cells
    widths: tuple[int, ...]
    dtype: torch.dtype
    describe: Describe | None

    @classmethod
    def of(cls, discriminator: Discriminator, dtype: torch.dtype, describe: Describe | None = None) -> Self:
        """On the device of the discriminator; `describe` says what else is wanted of the maps."""
        dtype = torch.float16 if dtype == torch.bfloat16 else dtype
        architecture, head = discriminator.architecture, discriminator.head
        assert isinstance(head, nn.Conv2d)
        widths, layers = architecture.hidden, []
        for number, layer in enumerate(discriminator.blocks):
            assert isinstance(layer, InvertedLayer)
            blocks = tuple(FastMBConv.of(each, dtype) for each in layer.blocks if isinstance(each, MBConv))
            begin = 2 * sum(widths[:number])
            layers.append((blocks, NormLayer.for_statistics(widths[number], begin, head.weight.device)))
        first = discriminator.blocks[0].get_submodule("stem")
        assert isinstance(first, SameConv2d)
        weight, side = head.weight.detach().view(-1, 1), 2 * architecture.cells
        cell = Classifier.of(weight, head.bias, 1, dtype)
        patch = Classifier.of(weight.expand(-1, side**2) / side**2, head.bias, side, dtype)
        return cls(Stem.of(first), tuple(layers), cell, patch, widths, dtype, describe)

    @property
    def channels(self) -> int:
        return sum(self.widths)

    @property
    def pooled(self) -> slice:
        """Where among the statistics the means of the last map are."""
        last = self.widths[-1]
        return slice(2 * self.channels - 2 * last, 2 * self.channels - last)

    def classified(self, layout: PatchLayout) -> int:
        """Side of the map before the last, which is classified: each layer halves a map, and leaves an odd row out."""
        return int(layout.patch >> (len(self.layers) - 1))

    def classifier(self, layout: PatchLayout) -> Classifier:
        return self.patch if self.classified(layout) == self.patch.cells else self.cell

    def width(self, layout: PatchLayout) -> int:
        """Numbers in a row of the output: the statistics of an image, then its logits."""
        logits = layout.patches * (self.classified(layout) - self.classifier(layout).cells + 1) ** 2
        return int(2 * self.channels + logits)

    def run(self, images: Tensor, layout: PatchLayout, stages: Stages) -> tuple[Tensor, ...]:
        """(B, size, size, 3) in uint8 to (B, width) in float32, and what `describe` makes of the maps."""
        images = images.contiguous()  # the kernels rely on it
        out = torch.empty(len(images), self.width(layout), device=images.device)
        x = stages.stem(images, layout, self.stem, self.dtype)
        maps = []
        for number, (blocks, norm) in enumerate(self.layers, start=1):
            for block in blocks:
                x = run_block(block, x, stages)
            pixels = x.numel() // x.shape[3] // len(images)
            stages.statistics(stages.sums(x, len(images)), x, norm, out, pixels=pixels)
            if number == len(self.layers) - 1:
                stages.classify(x, None, self.classifier(layout), out, first=2 * self.channels)
            if self.describe is not None:  # otherwise their memory is free for what follows
                maps.append(x.permute(0, 3, 1, 2))
        return (out,) if self.describe is None else (out, self.describe(maps))


def run_block(block: FastMBConv, x: Tensor, stages: Stages) -> Tensor:
    """(B, rows, columns, C) to (B, rows / stride, columns / stride, C')."""
    inner = x if block.expand is None or block.at_once is not None else stages.expand(x, block.expand)
    return stages.filter_project(inner, block, x if block.residual else None)
