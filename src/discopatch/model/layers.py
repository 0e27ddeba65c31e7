"""The one building block of all networks: convolution, normalisation, LeakyReLU; and PatchNorm2d."""

from math import gcd
from typing import Any, NamedTuple, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from discopatch.errors import ParameterError
from discopatch.model.config import Normalisation

M = TypeVar("M", bound=nn.Module)

SLOPE = 0.01  # of the LeakyReLU
BATCHNORM_BUFFERS = ("running_mean", "running_var", "num_batches_tracked")


class Standardised(NamedTuple):
    """Activations less the mean of their group, and that group's statistics, in float32 or wider."""

    centred: Tensor  # (groups, group, C, H, W)
    mean: Tensor  # (groups, 1, C, 1, 1)
    variance: Tensor  # (groups, 1, C, 1, 1), biased


def standardise(x: Tensor, group: int | None = None) -> Standardised:
    """Statistics of every channel over each group of patches; without `group` all of x (B, C, H, W) is one group.

    Written for activations in channels_last memory as well as for exported graphs that keep channels first: neither is
    transposed.
    """
    centred, mean = centre(x, group)
    # Two plain means: torch.var_mean takes several times as long on a CPU.
    return Standardised(centred, mean, (centred * centred).mean((1, 3, 4), keepdim=True))


def centre(x: Tensor, group: int | None) -> tuple[Tensor, Tensor]:
    """(B, C, H, W) -> (groups, group, C, H, W) less the mean of each group, and that mean, (groups, 1, C, 1, 1).

    Half precision would lose the small differences between patches that the method lives on.
    """
    size = x.shape[0]  # len(x) would fix the batch size of an exported graph
    group = size if group is None else group
    check_divides(size, group)
    grouped = x.unflatten(0, (-1, group)).to(torch.promote_types(x.dtype, torch.float32))
    mean = grouped.mean((1, 3, 4), keepdim=True)
    return grouped - mean, mean


def patch_statistics(x: Tensor, group: int | None = None) -> tuple[Tensor, Tensor]:
    """Mean and biased variance of every channel over each group of patches, two tensors (groups, C)."""
    centred, mean = centre(x, group)
    return mean.flatten(1), centred.square_().mean((1, 3, 4))  # in place: nothing else needs the centred values


def check_divides(size: int, group: int) -> None:
    """Raises ParameterError unless a batch of `size` patches is a whole number of groups."""
    if not torch.compiler.is_compiling() and size % group:
        raise ParameterError(f"{size} patches do not divide into groups of {group}: pass a multiple of {group}")


class PatchNorm2d(nn.Module):
    """BatchNorm whose batch is one image's patches: normalises each group by its own mean and biased variance.

    An image's patches stand together in the batch, (images * group, C, H, W), so that its result never depends on its
    neighbours. Without a group size the whole batch is one group: then this is `nn.BatchNorm2d` in training mode, and
    its state dict loads here (running statistics are left out, there are none to keep).
    """

    def __init__(self, channels: int, group: int | None = None, *, eps: float = 1e-5) -> None:
        super().__init__()
        self.channels, self.group, self.eps = channels, group, eps
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))

    def forward(self, x: Tensor, group: int | None = None) -> Tensor:
        """The normalised (B, C, H, W); `group` overrides the group size that the layer was made with."""
        return self.normalise(standardise(x, self.group if group is None else group)).to(x.dtype)

    def normalise(self, x: Standardised) -> Tensor:
        """(B, C, H, W) on the scale of each group, from statistics that are already known."""
        scale = self.weight[:, None, None] * torch.rsqrt(x.variance + self.eps)
        return (x.centred * scale + self.bias[:, None, None]).flatten(0, 1)

    def extra_repr(self) -> str:
        return f"{self.channels}, group={self.group or 'batch'}, eps={self.eps}"

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        for name in BATCHNORM_BUFFERS:
            state_dict.pop(prefix + name, None)
        super()._load_from_state_dict(state_dict, prefix, *rest)


def make_norm(kind: Normalisation, channels: int) -> nn.Module:
    """The normalisation layer of that kind; every kind but `patch` is torch's own."""
    match kind:
        case "patch":
            return PatchNorm2d(channels)
        case "batch":
            return nn.BatchNorm2d(channels)
        case "group":
            return nn.GroupNorm(gcd(32, channels), channels)
        case "instance":
            return nn.InstanceNorm2d(channels, affine=True)
        case "none":
            return nn.Identity()


def halving(inputs: int, outputs: int) -> nn.Conv2d:
    """A convolution that halves height and width."""
    return nn.Conv2d(inputs, outputs, kernel_size=3, stride=2, padding=1)


def doubling(inputs: int, outputs: int) -> nn.ConvTranspose2d:
    """A transposed convolution that doubles height and width."""
    return nn.ConvTranspose2d(inputs, outputs, kernel_size=3, stride=2, padding=1, output_padding=1)


def channels_last(network: M) -> M:
    """The network with its kernels in the memory order in which patches are cut, so that nothing is transposed."""
    return network.to(memory_format=torch.channels_last)  # type: ignore[call-overload,no-any-return]  # untyped in torch


class BlockOutput(NamedTuple):
    """Activations of one block, and on request the statistics before its normalisation."""

    features: Tensor  # (B, C, H, W)
    mean: Tensor | None = None  # (groups, C)
    variance: Tensor | None = None  # (groups, C), biased


class Block(nn.Module):
    """Convolution, normalisation, LeakyReLU.

    `fused` is the same block in fewer passes over memory, for training on a GPU: see `discopatch.model.fast`.
    """

    def __init__(self, conv: nn.Conv2d | nn.ConvTranspose2d, norm: nn.Module) -> None:
        super().__init__()
        self.conv, self.norm = conv, norm
        self.fused: Any = None

    def forward(self, x: Tensor, group: int | None = None, *, statistics: bool = False) -> BlockOutput:
        """`group` is the group size of a PatchNorm2d; statistics carry gradients, so they are never fused."""
        if self.fused is not None and self.training and not statistics:
            return BlockOutput(self.fused(self.conv, self.norm, x, group))
        x = self.conv(x)
        mean: Tensor | None = None
        variance: Tensor | None = None
        if isinstance(self.norm, PatchNorm2d):
            standard = standardise(x, self.norm.group if group is None else group)
            normal = self.norm.normalise(standard).to(x.dtype)
            mean, variance = standard.mean.flatten(1), standard.variance.flatten(1)
        else:
            normal = self.norm(x)
            if statistics:
                mean, variance = patch_statistics(x, group)
        return BlockOutput(F.leaky_relu(normal, SLOPE), mean, variance)
