"""Training passes for a GPU: the results of `layers.py` from far fewer passes over memory.

Most time goes into reading and writing activations between the convolutions, and into the two convolutions over pixels,
whose three channels leave the matrix units idle. A step of the paper takes 118 ms on an H200, where `torch.compile` of
both networks takes 219 ms and eager torch 447 ms. Here

- normalisation and LeakyReLU share their passes, two forward and two backward, and keep nothing but their input;
- the bias before a normalisation, which the normalisation takes out again, is not added to the activations;
- the first and the last convolution become one matrix product each, with a gather before or a sum after it.

Every pass over memory is a pure function: compiled into one kernel on a GPU, run as it is on a CPU. `fuse` installs the
passes in the networks.
"""

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from discopatch.model.layers import SLOPE, Block, PatchNorm2d
from discopatch.model.networks import VAE, Discriminator

T = TypeVar("T")
TAPS = 3 * 3
MAX_SHAPES = 64
ALIGNED = 32  # 27 = 9 taps x 3 colours, rounded up to what the matrix units take
COMPILER_OPTIONS: dict[str, str | int | bool | Callable[..., Any]] = {
    # By default the compiler stores any value that is made from many inputs: here that would be a whole activation.
    "realize_reads_threshold": 64,
    "realize_acc_reads_threshold": 64,
    "realize_opcount_threshold": 256,
    # Half a minute more to compile, once a machine, for the last tenth of the memory bandwidth.
    "coordinate_descent_tuning": True,
}


def fuse(vae: VAE, discriminator: Discriminator) -> None:
    """Installs these passes in both networks for training, in plain layers with PatchNorm or BatchNorm.

    A bias that a normalisation subtracts again has no gradient but rounding noise: it is no longer trained.
    """
    vae.fused_to_pixels = convolve_to_pixels
    for block in (each for network in (vae, discriminator) for each in network.modules()):
        if isinstance(block, Block) and isinstance(block.norm, PatchNorm2d | nn.BatchNorm2d):
            block.fused = fused_block
            block.conv.get_parameter("bias").requires_grad_(False)


def fused_block(conv: nn.Conv2d | nn.ConvTranspose2d, norm: nn.Module, x: Tensor, group: int | None) -> Tensor:
    """Convolution, normalisation by the batch's own statistics, LeakyReLU: (B, C, H, W) to (B, C', H', W')."""
    assert isinstance(norm, PatchNorm2d | nn.BatchNorm2d)
    if isinstance(conv, nn.ConvTranspose2d):
        x = F.conv_transpose2d(x, conv.weight, None, conv.stride, 1, conv.output_padding)
    elif conv.in_channels == 3:
        x = convolve_from_pixels(x, conv.weight)
    else:
        x = F.conv2d(x, conv.weight, None, conv.stride, conv.padding)
    group = group if group is not None and isinstance(norm, PatchNorm2d) else len(x)
    x, mean, variance = NormaliseActivate.apply(x, norm.weight, norm.bias, group, norm.eps)  # type: ignore[no-untyped-call]
    if isinstance(norm, nn.BatchNorm2d):  # the running mean contains the omitted bias
        count, momentum = x.numel() // x.shape[1], norm.momentum
        assert momentum is not None
        with torch.no_grad():
            norm.get_buffer("running_mean").lerp_(mean[0] + conv.get_parameter("bias"), momentum)
            norm.get_buffer("running_var").lerp_(variance[0] * (count / (count - 1)), momentum)
            norm.get_buffer("num_batches_tracked").add_(1)
    return x


def convolve_from_pixels(x: Tensor, weight: Tensor) -> Tensor:
    """The 3x3 convolution of stride 2 and padding 1 over three colours, without bias."""
    size, _, height, width = x.shape
    if torch.is_autocast_enabled(x.device.type):  # before the gather, which then moves fewer bytes
        x = x.to(torch.get_autocast_dtype(x.device.type))
    kernel = F.pad(weight.permute(2, 3, 1, 0).flatten(0, 2), (0, 0, 0, ALIGNED - 3 * TAPS))  # (32, C')
    flat: Tensor = compile_on_gpu(columns, x) @ kernel.to(x.dtype)
    return flat.view(size, height // 2, width // 2, -1).permute(0, 3, 1, 2)


def convolve_to_pixels(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """The 3x3 convolution of stride 1 and padding 1 to three colours."""
    kernel = F.pad(weight.permute(1, 2, 3, 0).flatten(1), (0, ALIGNED - 3 * TAPS))  # (C, 32)
    partial = x.permute(0, 2, 3, 1) @ kernel.to(x.dtype)
    pixels: Tensor = ShiftedSum.apply(partial)  # type: ignore[no-untyped-call]
    return pixels + bias[:, None, None]


def columns(x: Tensor) -> Tensor:
    """(B, 3, H, W) -> (B * H/2 * W/2, 32): each output pixel's nine inputs side by side, and zeros."""
    padded = F.pad(x.permute(0, 2, 3, 1), (0, 0, 1, 1, 1, 1))
    height, width = x.shape[2:]
    taps = [padded[:, i : i + height : 2, j : j + width : 2] for i in range(3) for j in range(3)]
    return F.pad(torch.cat(taps, dim=3), (0, ALIGNED - 3 * TAPS)).flatten(0, 2)


class ShiftedSum(torch.autograd.Function):
    """(B, H, W, 32), each pixel's terms for its nine neighbours, to (B, 3, H, W), the sum of the terms of each."""

    @staticmethod
    def forward(ctx: Any, partial: Tensor) -> Tensor:
        return compile_on_gpu(shifted_sum, partial)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        """Each term takes the gradient of the neighbour that it was added to: the same shifts, reversed."""
        return compile_on_gpu(shifted_copies, grad)


def shifted_sum(partial: Tensor) -> Tensor:
    """Tap (i, j) of a pixel's neighbour at (i - 1, j - 1), summed over the taps in float32."""
    height, width = partial.shape[1:3]
    padded = F.pad(partial, (0, 0, 1, 1, 1, 1))
    taps = [
        padded[:, i : i + height, j : j + width, 3 * (3 * i + j) : 3 * (3 * i + j) + 3].float()
        for i in range(3)
        for j in range(3)
    ]
    return sum(taps[1:], start=taps[0]).to(partial.dtype).permute(0, 3, 1, 2)


def shifted_copies(grad: Tensor) -> Tensor:
    """The transpose of `shifted_sum`."""
    height, width = grad.shape[2:]
    padded = F.pad(grad.permute(0, 2, 3, 1), (0, 0, 1, 1, 1, 1))
    taps = [padded[:, 2 - i : 2 - i + height, 2 - j : 2 - j + width] for i in range(3) for j in range(3)]
    return F.pad(torch.cat(taps, dim=3), (0, ALIGNED - 3 * TAPS))


class NormaliseActivate(torch.autograd.Function):
    """LeakyReLU of the normalised input; also the statistics, as values without gradient."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, group: int, eps: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        """(B, C, H, W) -> the same, and mean and variance as (groups, C)."""
        mean, variance = compile_on_gpu(statistics_in_one_pass, x, group)
        deviation = torch.rsqrt(variance + eps)
        ctx.save_for_backward(x, mean, deviation, weight, bias)
        ctx.mark_non_differentiable(mean, variance)
        return compile_on_gpu(normalise_activate, x, mean, deviation, weight, bias), mean, variance

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        """Two passes: the sums that every pixel's gradient needs, then the gradients."""
        sums = compile_on_gpu(gradient_sums, grad, *ctx.saved_tensors)
        grad_x = compile_on_gpu(gradient_of_input, grad, *sums, *ctx.saved_tensors) if ctx.needs_input_grad[0] else None
        grad_bias, grad_weight = (total.sum(0) for total in sums)
        return grad_x, grad_weight, grad_bias, None, None


def statistics_in_one_pass(x: Tensor, group: int) -> tuple[Tensor, Tensor]:
    """`standardise` from two plain sums; one pixel is subtracted first, or a large mean would cancel it."""
    flat = rows(x, len(x) // group)
    origin = flat[:, 0]
    shifted = flat - origin[:, None]
    pixels = flat.shape[1]
    offset, square = shifted.sum(1) / pixels, shifted.square().sum(1) / pixels
    return origin + offset, (square - offset.square()).clamp(min=0)


def normalise_activate(x: Tensor, mean: Tensor, deviation: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """LeakyReLU(weight * (x - mean) * deviation + bias), group by group."""
    scaled = (rows(x, len(mean)) - mean[:, None]) * (deviation * weight)[:, None] + bias
    return from_rows(torch.where(scaled > 0, scaled, SLOPE * scaled), x)


def gradient_sums(grad: Tensor, *saved: Tensor) -> tuple[Tensor, Tensor]:
    """Over each group's pixels, (groups, C): the sum of the gradient, and of gradient times normalised input."""
    normal, upstream = before_activation(grad, *saved)
    return upstream.sum(1), (upstream * normal).sum(1)


def gradient_of_input(grad: Tensor, grad_sum: Tensor, product_sum: Tensor, *saved: Tensor) -> Tensor:
    """The gradient, less its parts along the group's mean and variance."""
    x, _, deviation, weight, _ = saved
    normal, upstream = before_activation(grad, *saved)
    pixels = normal.shape[1]
    centred = upstream - (grad_sum / pixels)[:, None] - normal * (product_sum / pixels)[:, None]
    return from_rows(centred * (weight * deviation)[:, None], x)


def before_activation(
    grad: Tensor, x: Tensor, mean: Tensor, deviation: Tensor, weight: Tensor, bias: Tensor
) -> tuple[Tensor, Tensor]:
    """The normalised input, made again rather than kept, and the gradient as it leaves the LeakyReLU."""
    normal = (rows(x, len(mean)) - mean[:, None]) * deviation[:, None]
    upstream = rows(grad, len(mean))
    return normal, torch.where(normal * weight + bias > 0, upstream, SLOPE * upstream)


def rows(x: Tensor, groups: int) -> Tensor:
    """(B, C, H, W) -> (groups, pixels of a group, C) in float32: free in channels_last memory."""
    return x.permute(0, 2, 3, 1).reshape(groups, -1, x.shape[1]).float()


def from_rows(flat: Tensor, like: Tensor) -> Tensor:
    """The inverse of `rows`: (groups, pixels, C) to the shape and type of `like`."""
    size, channels, height, width = like.shape
    return flat.to(like.dtype).view(size, height, width, channels).permute(0, 3, 1, 2)


def compile_on_gpu(function: Callable[..., T], *args: Any) -> T:
    """The result of `function`, compiled where its first argument is on a GPU."""
    return compiled(function)(*args) if args[0].is_cuda else function(*args)


@functools.cache
def compiled(function: Callable[..., T]) -> Callable[..., T]:
    """The compiled function; it is compiled once for each shape of its arguments."""
    import torch._dynamo

    # Beyond its limit of 8 versions the compiler falls back to eager execution; two networks have more shapes.
    torch._dynamo.config.recompile_limit = max(MAX_SHAPES, torch._dynamo.config.recompile_limit)
    return torch.compile(function, dynamic=False, options=COMPILER_OPTIONS)
