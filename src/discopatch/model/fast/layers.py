"""The discriminator's parameters, laid out as the fast pass wants them."""

from dataclasses import dataclass
from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from discopatch.model.blocks import Block
from discopatch.model.fused import ALIGNED, TAPS
from discopatch.model.patchnorm import PatchNorm2d

WINDOW = 3 * TAPS
CONSTANT = WINDOW  # the first column of a window that is no input; it holds a 1, so that sums are among the moments
LEVELS = 255  # a pixel k enters as the odd integer 2 k - 255: exact in bfloat16, and 0 stays the padding


@dataclass(frozen=True, eq=False)
class Norm:
    """A normalisation, and the bias before it: it would be taken out again, so only the reported mean gets it."""

    conv_bias: Tensor
    weight: Tensor
    bias: Tensor
    eps: float
    first: int  # where the layer's statistics begin among those of the image

    @classmethod
    def of(cls, block: Block, first: int) -> Self:
        """In float32, where the block lies."""
        norm, conv_bias = block.norm, block.conv.bias
        assert isinstance(norm, PatchNorm2d)
        known = torch.zeros_like(norm.bias) if conv_bias is None else conv_bias
        return cls(known.detach().float(), norm.weight.detach().float(), norm.bias.detach().float(), norm.eps, first)


@dataclass(frozen=True, eq=False)
class First:
    """The layer that sees pixels: a matrix product of windows of 27 integers."""

    kernel: Tensor  # (32, C) in float32, for integers: divided by 255
    forms: Tensor  # (32 x 32, 2 x C) in float64: moments of windows -> sums of outputs, and of their squares
    norm: Norm

    @classmethod
    def of(cls, block: Block) -> Self:
        """With rows in the order of a window: tap by tap its three colours, then zeros."""
        weight = block.conv.weight.detach().double().permute(2, 3, 1, 0).flatten(0, 2) / LEVELS
        kernel = F.pad(weight, (0, 0, 0, ALIGNED - WINDOW))
        return cls(kernel.float().contiguous(), forms_of(kernel), Norm.of(block, 0))


@dataclass(frozen=True, eq=False)
class Middle:
    """A layer that sees features."""

    kernel: Tensor  # (C', C, 3, 3), channels_last, in the precision of the pass
    norm: Norm

    @classmethod
    def of(cls, block: Block, first: int, dtype: torch.dtype) -> Self:
        """In the precision of the pass."""
        kernel = block.conv.weight.detach().to(dtype).contiguous(memory_format=torch.channels_last)
        return cls(kernel, Norm.of(block, first))


@dataclass(frozen=True, eq=False)
class Judge:
    """The last layer: what each pixel of a feature map adds to the logits of the patches that it is part of."""

    weight: Tensor  # (C, cells x cells) in float32
    halves: tuple[Tensor, Tensor]  # (C, taps), the number of taps rounded up to what the matrix units take
    bias: Tensor  # (1,)
    cells: int

    @classmethod
    def of(cls, head: nn.Linear, cells: int) -> Self:
        """From the flat layer."""
        weight = head.weight.detach().float().view(-1, cells * cells).contiguous()
        taps = max(16, power_of_two(cells * cells))
        padded = F.pad(weight, (0, taps - cells * cells))
        return cls(weight, in_halves(padded), head.bias.detach().float().contiguous(), cells)


def in_halves(values: Tensor) -> tuple[Tensor, Tensor]:
    """Two bfloat16 numbers whose sum has the digits of both."""
    high = values.to(torch.bfloat16)
    return high.contiguous(), (values - high.float()).to(torch.bfloat16).contiguous()


def forms_of(kernel: Tensor) -> Tensor:
    """With a channel's numbers w, its sum over windows is w . (their sum), that of squares w . (their products) w."""
    sums = torch.zeros(ALIGNED, *kernel.shape, dtype=kernel.dtype, device=kernel.device)
    sums[CONSTANT] = kernel
    products = kernel[:, None] * kernel[None]
    return torch.cat((sums, products), dim=2).flatten(0, 1).contiguous()


def power_of_two(number: int) -> int:
    """The least that is no smaller."""
    return 1 << (number - 1).bit_length()
