"""A convolution that multiplies in 8 bits and adds up in 32."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

LARGEST = 127  # of a kernel's integers, alike on both sides of zero
STEPS = 255  # of an activation


class IntegerConv(nn.Module):
    """In the place of a halving convolution.

    Each channel of the kernels has a scale of its own, which is applied to the sums: nothing is rounded to 8 bits
    between the convolution and its statistics.
    """

    kernel: Tensor
    step: Tensor
    zero: Tensor
    scale: Tensor
    bias: Tensor

    def __init__(self, conv: nn.Conv2d, *, lowest: float, highest: float) -> None:
        """Activations below `lowest` and above `highest` are clipped."""
        super().__init__()
        assert conv.bias is not None
        step, weight = (highest - lowest) / STEPS, conv.weight.detach()
        per_channel = weight.abs().amax((1, 2, 3), keepdim=True).clamp(min=1e-12) / LARGEST
        self.register_buffer("kernel", (weight / per_channel).round().to(torch.int8))
        self.register_buffer("step", torch.tensor(step))
        self.register_buffer("zero", torch.tensor(round(-lowest / step), dtype=torch.uint8))
        self.register_buffer("scale", (per_channel * step).view(-1, 1, 1))
        self.register_buffer("bias", conv.bias.detach().clone().view(-1, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, H, W) -> (B, C', H / 2, W / 2)."""
        sums: Tensor = convolve_integers(x, self.kernel, self.step, self.zero)
        return sums.float() * self.scale + self.bias


@torch.library.custom_op("discopatch::convolve_integers", mutates_args=())
def convolve_integers(x: Tensor, kernel: Tensor, step: Tensor, zero: Tensor) -> Tensor:
    """Activations in steps of 8 bits, convolved with a kernel of 8 bits: the sums, in int32.

    What the exported graph does in integers is done in float32 here, which holds them all up to 2**24.
    """
    steps = ((x / step).round() + zero).clamp(0, STEPS) - zero
    return F.conv2d(steps, kernel.float(), stride=2, padding=1).round().int()


@convolve_integers.register_fake
def _(x: Tensor, kernel: Tensor, step: Tensor, zero: Tensor) -> Tensor:
    height, width = x.shape[2:]
    return x.new_empty((x.shape[0], kernel.shape[0], (height + 1) // 2, (width + 1) // 2), dtype=torch.int32)


OPERATOR = torch.ops.discopatch.convolve_integers.default
