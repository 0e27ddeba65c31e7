"""A residual discriminator laid out for the fast pass: folded, with one kernel between its convolutions."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor, nn

from discopatch.errors import ParameterError
from discopatch.model.config import Architecture
from discopatch.model.discriminator import Discriminator
from discopatch.model.fast.network import Classifier, FirstLayer, NormLayer, PatchLayout, Stages, convolve
from discopatch.model.folded import fold_for_scoring
from discopatch.model.layers import Block
from discopatch.model.residual import NormalisedConv2d, ResidualBlock, Stage

Describe = Callable[[list[Tensor]], Tensor]  # the maps of all layers, (B, C, H, W) each -> something of each image


@dataclass(frozen=True, eq=False)
class FastBlock:
    """A residual block: kernels (C', C, k, k), channels_last, in the precision of the pass, and biases in float32."""

    first: Tensor
    first_bias: Tensor
    second: Tensor
    shortcut: Tensor | None
    bias: Tensor  # that of the second convolution and that of the shortcut together
    stride: int

    @classmethod
    def of(cls, block: ResidualBlock, dtype: torch.dtype) -> Self:
        """From a block that is folded."""
        (first, first_bias), (second, bias) = parameters(block.first, dtype), parameters(block.second, dtype)
        shortcut = None
        if block.shortcut is not None:
            shortcut, other_bias = parameters(block.shortcut, dtype)
            bias = bias + other_bias
        return cls(first, first_bias, second, shortcut, bias, 1 if shortcut is None else 2)

    def run(self, x: Tensor, stages: Stages) -> Tensor:
        """(B, rows, columns, C) to (B, rows / stride, columns / stride, C')."""
        inner = stages.add_activate(convolve(x, self.first, stride=self.stride), self.first_bias, None)
        other = x if self.shortcut is None else convolve(x, self.shortcut, stride=self.stride)
        return stages.add_activate(convolve(inner, self.second, stride=1), self.bias, other)


@dataclass(frozen=True, eq=False)
class FastResidual:
    """A residual discriminator whose normalisation is that of batches, laid out for one precision."""

    first: FirstLayer
    others: tuple[tuple[tuple[FastBlock, ...], NormLayer], ...]  # of each stage its blocks, and where its statistics go
    cell: Classifier  # of a larger image: every cell has a logit
    patch: Classifier  # of a patch: the mean over its cells
    widths: tuple[int, ...]
    dtype: torch.dtype
    describe: Describe | None

    @classmethod
    def of(cls, discriminator: Discriminator, dtype: torch.dtype, describe: Describe | None = None) -> Self:
        """On the device of the discriminator; `describe` says what else is wanted of the maps."""
        architecture, head = discriminator.architecture, discriminator.head
        if not cls.takes(architecture) or not isinstance(head, nn.Conv2d):
            raise ParameterError(
                "the fast pass of residual networks is for batch normalisation and a stem of 3 x 3: "
                "use precision='float32'"
            )
        stem, *stages = fold_for_scoring(discriminator).blocks
        assert isinstance(stem, Block)
        widths, others = architecture.hidden, []
        for number, stage in enumerate(stages, start=1):
            assert isinstance(stage, Stage)
            blocks = tuple(FastBlock.of(each, dtype) for each in stage.blocks if isinstance(each, ResidualBlock))
            begin = 2 * sum(widths[:number])
            others.append((blocks, NormLayer.for_statistics(widths[number], begin, head.weight.device)))
        weight, side = head.weight.detach().view(-1, 1), 2 * architecture.cells
        cell = Classifier.of(weight, head.bias, 1)
        patch = Classifier.of(weight.expand(-1, side**2) / side**2, head.bias, side)
        return cls(FirstLayer.of(stem), tuple(others), cell, patch, widths, dtype, describe)

    @staticmethod
    def takes(architecture: Architecture) -> bool:
        """Whether there is a fast pass of such a network."""
        return (architecture.kind, architecture.normalisation, architecture.stem) == ("residual", "batch", 3)

    @property
    def channels(self) -> int:
        return sum(self.widths)

    @property
    def pooled(self) -> slice:
        """Where among the statistics the means of the last map are."""
        last = self.widths[-1]
        return slice(2 * self.channels - 2 * last, 2 * self.channels - last)

    def classifier(self, layout: PatchLayout) -> Classifier:
        return self.patch if layout.side(len(self.others)) == self.patch.cells else self.cell

    def width(self, layout: PatchLayout) -> int:
        """Numbers in a row of the output: the statistics of an image, then its logits."""
        logits = layout.patches * (layout.side(len(self.others)) - self.classifier(layout).cells + 1) ** 2
        return int(2 * self.channels + logits)

    def run(self, images: Tensor, layout: PatchLayout, stages: Stages) -> tuple[Tensor, ...]:
        """(B, size, size, 3) in uint8 to (B, width) in float32, and what `describe` makes of the maps."""
        images = images.contiguous()  # the kernels rely on it
        out = torch.empty(len(images), self.width(layout), device=images.device)
        x = self.first.run(images, layout, stages, out, self.dtype)
        maps = [] if self.describe is None else [x.permute(0, 3, 1, 2)]
        for number, (blocks, norm) in enumerate(self.others, start=2):
            for block in blocks:
                x = block.run(x, stages)
            pixels = x.numel() // x.shape[3] // len(images)
            stages.statistics(stages.sums(x, len(images)), x, norm, out, pixels=pixels)
            if number == len(self.others):  # the map before the last
                stages.classify(x, None, self.classifier(layout), out, first=2 * self.channels)
            if self.describe is not None:  # otherwise their memory is free for what follows
                maps.append(x.permute(0, 3, 1, 2))
        return (out,) if self.describe is None else (out, self.describe(maps))


def parameters(layer: NormalisedConv2d, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """The kernel and the bias of a folded layer."""
    conv = layer.get_submodule("conv.conv")
    assert isinstance(conv, nn.Conv2d)
    assert conv.bias is not None
    kernel = conv.weight.detach().to(dtype).contiguous(memory_format=torch.channels_last)
    return kernel, conv.bias.detach().float()
