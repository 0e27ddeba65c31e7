"""The discriminator's parameters laid out for the fast pass, and the pass itself, stage by stage."""

from dataclasses import dataclass
from typing import NamedTuple, Protocol, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from discopatch.errors import ParameterError
from discopatch.model.discriminator import Discriminator
from discopatch.model.fast.fused import ALIGNED, TAPS
from discopatch.model.fast.inverted_blocks import FastMBConv, Pointwise, Stem
from discopatch.model.layers import Block, PatchNorm2d

WINDOW = 3 * TAPS
CONSTANT = WINDOW  # the first column of a window that is no input; it holds a 1, so that sums are among the moments
LEVELS = 255  # a pixel k enters as the odd integer 2 k - 255: exact in bfloat16, and 0 stays the padding


@dataclass(frozen=True, eq=False)
class PatchLayout:
    """Patches of one size at the same corners of every image; a whole image is one patch of its own size."""

    corners: Tensor  # (patches, 2), int32
    patch: int  # side of a patch
    size: int  # side of an image

    @classmethod
    def at(cls, corners: Tensor | None, *, patch: int, size: int, device: torch.device) -> Self:
        """Patches at these corners (patches, 2); without any, the whole image."""
        if corners is None:
            return cls(torch.zeros(1, 2, dtype=torch.int32, device=device), size, size)
        return cls(corners.to(device, torch.int32).contiguous(), patch, size)

    @property
    def patches(self) -> int:
        return len(self.corners)

    def side(self, layers: int) -> int:
        """Side of a patch's feature map after so many layers: each halves it, and rounds up."""
        side = self.patch
        for _ in range(layers):
            side = (side + 1) // 2
        return side

    def pixels(self, layers: int) -> int:
        """Pixels of all feature maps of an image after so many layers."""
        return self.patches * self.side(layers) ** 2


class Affine(NamedTuple):
    """A normalisation whose statistics are known: scale * x + shift, (images, C) each."""

    scale: Tensor
    shift: Tensor

    @classmethod
    def of(cls, norm: nn.BatchNorm2d) -> Self:
        """Of an evaluated one, whose statistics are those of training: (1, C) each, the same for all images."""
        mean, variance = norm.running_mean, norm.running_var
        assert mean is not None
        assert variance is not None
        scale = norm.weight.detach().double() * torch.rsqrt(variance.double() + norm.eps)
        shift = norm.bias.detach().double() - mean.double() * scale
        return cls(scale.float()[None], shift.float()[None])

    def expand(self, images: int) -> "Affine":
        """The same for so many images, (images, C) each."""
        return Affine(*(each.expand(images, -1).contiguous() for each in self))


@dataclass(frozen=True, eq=False)
class NormLayer:
    """A normalisation, and the bias before it, which it would subtract again: only the reported mean gets it."""

    conv_bias: Tensor
    weight: Tensor
    bias: Tensor
    eps: float
    first: int  # where the layer's statistics begin among those of the image

    @classmethod
    def of(cls, block: Block, first: int) -> Self:
        norm, conv_bias = block.norm, block.conv.bias
        assert isinstance(norm, PatchNorm2d)
        known = torch.zeros_like(norm.bias) if conv_bias is None else conv_bias
        return cls(known.detach().float(), norm.weight.detach().float(), norm.bias.detach().float(), norm.eps, first)

    @classmethod
    def for_statistics(cls, channels: int, first: int, device: torch.device) -> Self:
        """One of a layer of which nothing but the statistics is wanted."""
        nothing = torch.zeros(channels, device=device)
        return cls(nothing, torch.ones_like(nothing), nothing, 1e-5, first)


@dataclass(frozen=True, eq=False)
class FirstLayer:
    """The layer over pixels as a matrix product of windows of 27 integers, tap by tap their three colours."""

    kernel: Tensor  # (32, C) in float32, for integers: divided by 255
    forms: Tensor  # (32 x 32, 2 x C) in float64: moments of windows -> sums of outputs, and of their squares
    norm: NormLayer
    affine: Affine | None = None  # of a batch normalisation, which does not depend on the image

    @classmethod
    def of(cls, block: Block) -> Self:
        weight = block.conv.weight.detach().double().permute(2, 3, 1, 0).flatten(0, 2) / LEVELS
        kernel = F.pad(weight, (0, 0, 0, ALIGNED - WINDOW))
        parts = kernel.float().contiguous(), moment_forms(kernel)
        if isinstance(block.norm, nn.BatchNorm2d):
            norm = NormLayer.for_statistics(weight.shape[1], 0, weight.device)
            return cls(*parts, norm, Affine.of(block.norm))
        return cls(*parts, NormLayer.of(block, 0))

    def run(self, images: Tensor, layout: PatchLayout, stages: "Stages", out: Tensor, dtype: torch.dtype) -> Tensor:
        """The layer's features, activated; its statistics are written to `out`."""
        sums = (stages.moments(images, layout).flatten(1) @ self.forms).view(len(images), 1, 2, -1)
        affine = stages.statistics(sums, None, self.norm, out, pixels=layout.pixels(1))
        affine = affine if self.affine is None else self.affine.expand(len(images))
        return stages.first(images, layout, self, affine, dtype)


@dataclass(frozen=True, eq=False)
class ConvLayer:
    """A layer over features."""

    kernel: Tensor  # (C', C, 3, 3), channels_last, in the precision of the pass
    norm: NormLayer

    @classmethod
    def of(cls, block: Block, first: int, dtype: torch.dtype) -> Self:
        kernel = block.conv.weight.detach().to(dtype).contiguous(memory_format=torch.channels_last)
        return cls(kernel, NormLayer.of(block, first))


@dataclass(frozen=True, eq=False)
class Classifier:
    """The last layer: what each pixel of a feature map adds to the logits of the patches that it is part of."""

    weight: Tensor  # (C, cells x cells) in float32
    halves: tuple[
        Tensor, Tensor
    ]  # (C, taps) in the precision of the pass, the number of taps rounded up to what the matrix units take
    bias: Tensor  # (1,)
    cells: int

    @classmethod
    def of(cls, weight: Tensor, bias: Tensor | None, cells: int, dtype: torch.dtype = torch.bfloat16) -> Self:
        """From weights (C, cells x cells)."""
        assert bias is not None
        weight = weight.detach().float().contiguous()
        taps = max(16, power_of_two(cells * cells))
        padded = F.pad(weight, (0, taps - cells * cells))
        return cls(weight, split_digits(padded, dtype), bias.detach().float().contiguous(), cells)


class Stages(Protocol):
    """The stages of the pass. Feature maps are (images x patches, rows, columns, C); `out` has a row for each image."""

    def moments(self, images: Tensor, layout: PatchLayout) -> Tensor:
        """(images, 32, 32) in float64: sums over all windows of the products of their numbers."""

    def first(
        self, images: Tensor, layout: PatchLayout, layer: FirstLayer, affine: Affine, dtype: torch.dtype
    ) -> Tensor:
        """The first layer's features, activated."""

    def sums(self, x: Tensor, images: int) -> Tensor:
        """(images, parts, 2, C): sums over pixels and of their squares, both less the image's first pixel."""

    def statistics(self, sums: Tensor, x: Tensor | None, norm: NormLayer, out: Tensor, *, pixels: int) -> Affine:
        """Writes the statistics to `out`; the normalisation is returned. `x` is what the sums are of, if any."""

    def activate(self, x: Tensor, affine: Affine) -> Tensor:
        """The features, normalised and through the LeakyReLU; `x` may be overwritten."""

    def add_activate(self, x: Tensor, bias: Tensor, other: Tensor | None) -> Tensor:
        """LeakyReLU of the features plus a bias (C,) and another map, if there is one; `x` may be overwritten."""

    def classify(self, x: Tensor, affine: Affine | None, classifier: Classifier, out: Tensor, *, first: int) -> None:
        """Writes the logits of the last feature map to `out`; it is normalised on the way unless it already is."""

    def stem(self, images: Tensor, layout: PatchLayout, layer: Stem, dtype: torch.dtype) -> Tensor:
        """An inverted network's first features, through ReLU6; no row or column of zeros comes before the pixels."""

    def expand(self, x: Tensor, layer: Pointwise) -> Tensor:
        """ReLU6 of the layer of these features."""

    def filter_project(self, x: Tensor, block: FastMBConv, other: Tensor | None) -> Tensor:
        """What a block makes of its expanded input, or of its input if it expands at once; plus `other`, if any."""


@dataclass(frozen=True, eq=False)
class FastNetwork:
    """A discriminator whose normalisation is PatchNorm, laid out for one precision."""

    first: FirstLayer
    others: tuple[ConvLayer, ...]
    classifier: Classifier
    channels: int  # of all layers together
    dtype: torch.dtype

    @classmethod
    def of(cls, discriminator: Discriminator, dtype: torch.dtype) -> Self:
        """On the device of the discriminator."""
        architecture = discriminator.architecture
        if not isinstance(discriminator.head, nn.Linear):
            raise ParameterError("these are layers of plain networks, and this discriminator is residual")
        if architecture.normalisation != "patch":
            raise ParameterError(
                f"the fast pass normalises by image, and this discriminator has the normalisation "
                f"{architecture.normalisation!r}: use precision='float32'"
            )
        first, *others = (block for block in discriminator.blocks if isinstance(block, Block))
        starts = [2 * sum(architecture.hidden[:number]) for number in range(1, len(architecture.hidden))]
        layers = tuple(ConvLayer.of(block, start, dtype) for block, start in zip(others, starts, strict=True))
        head, cells = discriminator.head, architecture.cells
        classifier = Classifier.of(head.weight.view(-1, cells * cells), head.bias, cells)
        return cls(FirstLayer.of(first), layers, classifier, sum(architecture.hidden), dtype)

    def width(self, layout: PatchLayout) -> int:
        """Numbers in a row of the output: the statistics of an image, then its logits."""
        logits = layout.patches * (layout.side(1 + len(self.others)) - self.classifier.cells + 1) ** 2
        return int(2 * self.channels + logits)

    def run(self, images: Tensor, layout: PatchLayout, stages: Stages) -> tuple[Tensor]:
        """(B, size, size, 3) in uint8 to (B, width) in float32."""
        images = images.contiguous()  # the kernels rely on it
        out = torch.empty(len(images), self.width(layout), device=images.device)
        x = self.first.run(images, layout, stages, out, self.dtype)
        affine: Affine | None = None
        for layer in self.others:
            x = convolve(x if affine is None else stages.activate(x, affine), layer.kernel, stride=2)
            sums = stages.sums(x, len(images))
            affine = stages.statistics(sums, x, layer.norm, out, pixels=x.numel() // x.shape[3] // len(images))
        stages.classify(x, affine, self.classifier, out, first=2 * self.channels)
        return (out,)


def convolve(x: Tensor, kernel: Tensor, *, stride: int) -> Tensor:
    """The convolution with zeros around, without bias, on (B, rows, columns, C)."""
    return F.conv2d(x.permute(0, 3, 1, 2), kernel, None, stride, kernel.shape[2] // 2).permute(0, 2, 3, 1).contiguous()


def split_digits(values: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Two tensors of a precision, usually half, whose sum has the digits of both."""
    high = values.to(dtype)
    return high.contiguous(), (values - high.float()).to(dtype).contiguous()


def moment_forms(kernel: Tensor) -> Tensor:
    """With a channel's numbers w, its sum over windows is w . (their sum), that of squares w . (their products) w."""
    sums = torch.zeros(ALIGNED, *kernel.shape, dtype=kernel.dtype, device=kernel.device)
    sums[CONSTANT] = kernel
    products = kernel[:, None] * kernel[None]
    return torch.cat((sums, products), dim=2).flatten(0, 1).contiguous()


def ceil_divide(whole: int, part: int) -> int:
    """How many parts of that size cover the whole."""
    return -(-whole // part)


def power_of_two(number: int) -> int:
    """The least power of two that is no smaller."""
    return 1 << (number - 1).bit_length()
