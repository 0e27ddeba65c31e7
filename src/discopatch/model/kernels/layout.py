"""Parameters of a discriminator in the layout of the fast pass, and the pass itself, stage by stage.

`Kernels` of `launch.py` computes the stages. Feature maps are (images x patches, rows, columns, C).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from discopatch.errors import ParameterError
from discopatch.model.discriminator import Discriminator
from discopatch.model.kernels.fused import ALIGNED, TAPS
from discopatch.model.layers import Block, InvertedLayer, MBConv, PatchNorm2d, SameConv2d

if TYPE_CHECKING:
    from discopatch.model.kernels.launch import Kernels

Describe = Callable[[list[Tensor]], Tensor]  # maps of all layers, (B, C, H, W) each -> something of each image

WINDOW = 3 * TAPS
CONSTANT = WINDOW  # column of a window that holds a 1, so that sums are among the moments
LEVELS = 255  # the first plain layer takes a pixel k as the odd integer 2 k - 255: exact in bfloat16, padded with 0
PIXEL_SCALE = 256  # the inverted stem takes it as (2 k - 255) / 256, which is exact in half precision
FEW = 16  # input channels up to which an expansion is computed again for each tap rather than written and read


@dataclass(frozen=True, eq=False)
class PatchLayout:
    """Patches of one size at the same corners of every image; a whole image is one patch of its own size."""

    corners: Tensor  # (patches, 2), int32
    patch: int  # side of a patch
    size: int  # side of an image

    @classmethod
    def at(cls, corners: Tensor | None, *, patch: int, size: int, device: torch.device) -> Self:
        """Patches at these corners (patches, 2), or the whole image."""
        if corners is None:
            return cls(torch.zeros(1, 2, dtype=torch.int32, device=device), size, size)
        return cls(corners.to(device, torch.int32).contiguous(), patch, size)

    @property
    def patches(self) -> int:
        return len(self.corners)

    def side(self, layers: int) -> int:
        """Side of a patch's feature map after so many layers: each halves it and rounds up."""
        side = self.patch
        for _ in range(layers):
            side = (side + 1) // 2
        return side

    def pixels(self, layers: int) -> int:
        """Pixels of all feature maps of an image after so many layers."""
        return self.patches * self.side(layers) ** 2


class Affine(NamedTuple):
    """Normalisation with known statistics: scale * x + shift, (images, C) each."""

    scale: Tensor
    shift: Tensor


@dataclass(frozen=True, eq=False)
class NormLayer:
    """Normalisation, and the bias before it, which only the reported mean contains: the normalisation subtracts it."""

    conv_bias: Tensor
    weight: Tensor
    bias: Tensor
    eps: float
    first: int  # index of the layer's first statistic among those of the image

    @classmethod
    def of(cls, block: Block, first: int) -> Self:
        norm, conv_bias = block.norm, block.conv.bias
        assert isinstance(norm, PatchNorm2d)
        assert conv_bias is not None
        known, weight, bias = (each.detach().float() for each in (conv_bias, norm.weight, norm.bias))
        return cls(known, weight, bias, norm.eps, first)

    @classmethod
    def for_statistics(cls, channels: int, first: int, device: torch.device) -> Self:
        """Layer of which only the statistics are used."""
        zeros = torch.zeros(channels, device=device)
        return cls(zeros, torch.ones_like(zeros), zeros, 1e-5, first)


@dataclass(frozen=True, eq=False)
class FirstLayer:
    """Layer over pixels as a matrix product of windows of 27 integers: tap by tap their three colours."""

    kernel: Tensor  # (32, C) in float32, for integers: divided by 255
    forms: Tensor  # (32 x 32, 2 x C) in float64: moments of windows -> sums of outputs, and of their squares
    norm: NormLayer

    @classmethod
    def of(cls, block: Block) -> Self:
        weight = block.conv.weight.detach().double().permute(2, 3, 1, 0).flatten(0, 2) / LEVELS
        kernel = F.pad(weight, (0, 0, 0, ALIGNED - WINDOW))
        return cls(kernel.float().contiguous(), moment_forms(kernel), NormLayer.of(block, 0))


@dataclass(frozen=True, eq=False)
class ConvLayer:
    """Layer over features."""

    kernel: Tensor  # (C', C, 3, 3), channels_last, in the precision of the pass
    norm: NormLayer

    @classmethod
    def of(cls, block: Block, first: int, dtype: torch.dtype) -> Self:
        kernel = block.conv.weight.detach().to(dtype).contiguous(memory_format=torch.channels_last)
        return cls(kernel, NormLayer.of(block, first))


@dataclass(frozen=True, eq=False)
class Classifier:
    """Last layer: the contribution of each pixel of a feature map to the logits of the patches that contain it."""

    weight: Tensor  # (C, cells x cells) in float32
    halves: tuple[Tensor, Tensor]  # (C, taps) in half precision; taps are padded to the size of the matrix units
    bias: Tensor  # (1,)
    cells: int

    @classmethod
    def of(cls, weight: Tensor, bias: Tensor | None, cells: int, dtype: torch.dtype = torch.bfloat16) -> Self:
        """From weights (C, cells x cells)."""
        assert bias is not None
        weight = weight.detach().float().contiguous()
        padded = F.pad(weight, (0, max(16, power_of_two(cells * cells)) - cells * cells))
        return cls(weight, split_digits(padded, dtype), bias.detach().float().contiguous(), cells)


@dataclass(frozen=True, eq=False)
class FastPlain:
    """Plain discriminator with PatchNorm in the layout of one precision."""

    first: FirstLayer
    others: tuple[ConvLayer, ...]
    classifier: Classifier
    channels: int  # of all layers together
    dtype: torch.dtype
    describe: Describe | None = None  # a plain network gives logits and statistics only

    @classmethod
    def of(cls, discriminator: Discriminator, dtype: torch.dtype) -> Self:
        """On the device of the discriminator."""
        architecture, head = discriminator.architecture, discriminator.head
        assert isinstance(head, nn.Linear)
        if architecture.normalisation != "patch":
            raise ParameterError(
                f"the fast pass normalises by image, and this discriminator has the normalisation "
                f"{architecture.normalisation!r}: use precision='float32'"
            )
        first, *others = (block for block in discriminator.blocks if isinstance(block, Block))
        starts = [2 * sum(architecture.hidden[:number]) for number in range(1, len(architecture.hidden))]
        layers = tuple(ConvLayer.of(block, start, dtype) for block, start in zip(others, starts, strict=True))
        cells = architecture.cells
        classifier = Classifier.of(head.weight.view(-1, cells * cells), head.bias, cells)
        return cls(FirstLayer.of(first), layers, classifier, sum(architecture.hidden), dtype)

    def run(self, images: Tensor, layout: PatchLayout, stages: "Kernels") -> tuple[Tensor]:
        """(B, size, size, 3) in uint8 to (B, statistics and logits) in float32."""
        images = images.contiguous()  # the kernels rely on it
        logits = layout.patches * (layout.side(1 + len(self.others)) - self.classifier.cells + 1) ** 2
        out = torch.empty(len(images), 2 * self.channels + logits, device=images.device)
        sums = (stages.moments(images, layout).flatten(1) @ self.first.forms).view(len(images), 1, 2, -1)
        affine = stages.statistics(sums, None, self.first.norm, out, pixels=layout.pixels(1))
        x = stages.first(images, layout, self.first, affine, self.dtype)
        for number, layer in enumerate(self.others):
            x = convolve(stages.activate(x, affine) if number else x, layer.kernel)
            affine = stages.statistics(stages.sums(x, len(images)), x, layer.norm, out, pixels=pixels_of(x, out))
        # The only layer of a network with one is normalised already.
        stages.classify(x, affine if self.others else None, self.classifier, out, first=2 * self.channels)
        return (out,)


@dataclass(frozen=True, eq=False)
class Stem:
    """Inverted network's convolution over pixels as a matrix product of windows of 27 numbers."""

    kernel: Tensor  # (32, C) in float32, for pixels as (2 k - 255) / 256
    bias: Tensor  # (C,) in float32

    @classmethod
    def of(cls, conv: SameConv2d) -> Self:
        weight = conv.weight.detach().double().permute(2, 3, 1, 0).flatten(0, 2) * (PIXEL_SCALE / (PIXEL_SCALE - 1))
        kernel = F.pad(weight, (0, 0, 0, ALIGNED - WINDOW))
        return cls(kernel.float().contiguous(), bias_of(conv))


@dataclass(frozen=True, eq=False)
class Pointwise:
    """Convolution of 1 x 1 as a matrix."""

    weight: Tensor  # (C, C') in the precision of the pass
    bias: Tensor  # (C',) in float32

    @classmethod
    def of(cls, conv: SameConv2d, dtype: torch.dtype) -> Self:
        return cls(conv.weight.detach()[:, :, 0, 0].T.to(dtype).contiguous(), bias_of(conv))


@dataclass(frozen=True, eq=False)
class Depthwise:
    """Convolution of every channel by itself."""

    weight: Tensor  # (taps x taps, C) in float32
    bias: Tensor  # (C,) in float32
    taps: int  # along each axis
    stride: int
    before: int  # rows above, and columns to the left, that padding adds

    @classmethod
    def of(cls, conv: SameConv2d) -> Self:
        weight = conv.weight.detach().float().flatten(1).T.contiguous()
        return cls(weight, bias_of(conv), conv.kernel_size[0], conv.stride[0], conv.margins[0])


@dataclass(frozen=True, eq=False)
class FastMBConv:
    """Inverted residual block in the layout of the fast pass."""

    expand: Pointwise | None
    filter: Depthwise
    project: Pointwise
    residual: bool

    @classmethod
    def of(cls, block: MBConv, dtype: torch.dtype) -> Self:
        expand = None if block.expand is None else Pointwise.of(block.expand, dtype)
        return cls(expand, Depthwise.of(block.filter), Pointwise.of(block.project, dtype), block.residual)

    @property
    def inner(self) -> int:
        """Number of filtered channels."""
        return self.filter.weight.shape[1]

    @property
    def at_once(self) -> Pointwise | None:
        """The expansion, if it is computed on the way into the filter and never written."""
        return self.expand if self.expand is not None and len(self.expand.weight) <= FEW else None

    def out_shape(self, x: Tensor) -> tuple[int, ...]:
        """Shape of the output for an input (B, rows, columns, C), expanded or not."""
        return len(x), *(side // self.filter.stride for side in x.shape[1:3]), self.project.weight.shape[1]

    def run(self, x: Tensor, stages: "Kernels") -> Tensor:
        """(B, rows, columns, C) to (B, rows / stride, columns / stride, C')."""
        inner = x if self.expand is None or self.at_once is not None else stages.expand(x, self.expand)
        return stages.filter_project(inner, self, x if self.residual else None)


@dataclass(frozen=True, eq=False)
class FastInverted:
    """Inverted discriminator in the layout of the fast pass, in float16 instead of bfloat16.

    No normalisation removes rounding errors from this network, and three more bits cost nothing; ReLU6 keeps values in
    range.
    """

    stem: Stem
    layers: tuple[tuple[tuple[FastMBConv, ...], NormLayer], ...]  # blocks of each layer, and its statistics
    cell: Classifier  # of a larger image: every cell has a logit
    patch: Classifier  # of a patch: the mean over its cells
    channels: int  # of all layers together
    dtype: torch.dtype
    describe: Describe | None

    @classmethod
    def of(cls, discriminator: Discriminator, dtype: torch.dtype, describe: Describe | None = None) -> Self:
        """On the device of the discriminator; `describe` computes a further result from the maps."""
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
        return cls(Stem.of(first), tuple(layers), cell, patch, sum(widths), dtype, describe)

    @property
    def pooled(self) -> slice:
        """Indices of the means of the last map among the statistics."""
        begin, width = self.layers[-1][1].first, len(self.layers[-1][1].bias)
        return slice(begin, begin + width)

    def run(self, images: Tensor, layout: PatchLayout, stages: "Kernels") -> tuple[Tensor, ...]:
        """(B, size, size, 3) in uint8 to (B, statistics and logits) in float32, and the result of `describe`."""
        images = images.contiguous()  # the kernels rely on it
        # The map before the last is classified. Each layer halves a map and leaves an odd row out.
        side = layout.patch >> (len(self.layers) - 1)
        classifier = self.patch if side == self.patch.cells else self.cell
        logits = layout.patches * (side - classifier.cells + 1) ** 2
        out = torch.empty(len(images), 2 * self.channels + logits, device=images.device)
        x = stages.stem(images, layout, self.stem, self.dtype)
        maps = []
        for number, (blocks, norm) in enumerate(self.layers, start=1):
            for block in blocks:
                x = block.run(x, stages)
            stages.statistics(stages.sums(x, len(images)), x, norm, out, pixels=pixels_of(x, out))
            if number == len(self.layers) - 1:
                stages.classify(x, None, classifier, out, first=2 * self.channels)
            if self.describe is not None:  # otherwise the memory of the map is free for the next layers
                maps.append(x.permute(0, 3, 1, 2))
        return (out,) if self.describe is None else (out, self.describe(maps))


def pixels_of(x: Tensor, out: Tensor) -> int:
    """Pixels of a feature map that belong to each image."""
    return x.numel() // x.shape[3] // len(out)


def convolve(x: Tensor, kernel: Tensor) -> Tensor:
    """Convolution of stride 2 with zeros around, without bias, on (B, rows, columns, C)."""
    return F.conv2d(x.permute(0, 3, 1, 2), kernel, None, 2, 1).permute(0, 2, 3, 1).contiguous()


def bias_of(conv: SameConv2d) -> Tensor:
    """(C,) in float32."""
    assert conv.bias is not None
    return conv.bias.detach().float().contiguous()


def split_digits(values: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Two tensors of lower precision whose sum has the digits of both."""
    high = values.to(dtype)
    return high.contiguous(), (values - high.float()).to(dtype).contiguous()


def moment_forms(kernel: Tensor) -> Tensor:
    """Linear forms of a channel's weights w: w . (sum of windows), and w . (sum of their products) w."""
    sums = torch.zeros(ALIGNED, *kernel.shape, dtype=kernel.dtype, device=kernel.device)
    sums[CONSTANT] = kernel
    products = kernel[:, None] * kernel[None]
    return torch.cat((sums, products), dim=2).flatten(0, 1).contiguous()


def power_of_two(number: int) -> int:
    """Smallest power of two that is not smaller."""
    return 1 << (number - 1).bit_length()
