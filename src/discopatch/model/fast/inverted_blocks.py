"""Parameters of inverted residual networks laid out for the fast pass: the stem, and blocks of three convolutions."""

from dataclasses import dataclass
from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor

from discopatch.model.fast.fused import ALIGNED, TAPS
from discopatch.model.inverted import MBConv, SameConv2d

PIXEL_SCALE = 256  # a pixel k enters as (2 k - 255) / 256, which is exact in half precision
FEW = 16  # input channels up to which an expansion is computed again for each tap rather than written and read


@dataclass(frozen=True, eq=False)
class Stem:
    """The convolution over pixels as a matrix product of windows of 27 numbers, tap by tap their three colours."""

    kernel: Tensor  # (32, C) in float32, for pixels as (2 k - 255) / 256
    bias: Tensor  # (C,) in float32

    @classmethod
    def of(cls, conv: SameConv2d) -> Self:
        weight = conv.weight.detach().double().permute(2, 3, 1, 0).flatten(0, 2) * (PIXEL_SCALE / (PIXEL_SCALE - 1))
        kernel = F.pad(weight, (0, 0, 0, ALIGNED - 3 * TAPS))
        return cls(kernel.float().contiguous(), bias_of(conv))


@dataclass(frozen=True, eq=False)
class Pointwise:
    """A convolution of 1 x 1 as a matrix."""

    weight: Tensor  # (C, C') in the precision of the pass
    bias: Tensor  # (C',) in float32

    @classmethod
    def of(cls, conv: SameConv2d, dtype: torch.dtype) -> Self:
        return cls(conv.weight.detach()[:, :, 0, 0].T.to(dtype).contiguous(), bias_of(conv))


@dataclass(frozen=True, eq=False)
class Depthwise:
    """A convolution of every channel by itself."""

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
    """More channels by a 1 x 1, each filtered by itself, back to few; plus the input, where shapes allow."""

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
        """How many channels are filtered."""
        return self.filter.weight.shape[1]

    @property
    def at_once(self) -> Pointwise | None:
        """The expansion, where it is computed on the way into the filter and never written."""
        return self.expand if self.expand is not None and len(self.expand.weight) <= FEW else None

    def out_shape(self, x: Tensor) -> tuple[int, ...]:
        """Of an input (B, rows, columns, C), or one that is expanded already."""
        return len(x), *(side // self.filter.stride for side in x.shape[1:3]), self.project.weight.shape[1]


def bias_of(conv: SameConv2d) -> Tensor:
    """(C,) in float32."""
    assert conv.bias is not None
    return conv.bias.detach().float().contiguous()
