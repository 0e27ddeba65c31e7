"""Layers of all networks: the paper's block, PatchNorm2d, and the inverted residual blocks of EfficientNet-Lite.

The inverted layers are those of EfficientNet-Lite (Tan and Le, 2019; Lite: no squeeze-and-excitation, ReLU6
throughout), whose BatchNorm is part of its convolutions: a network that begins with its weights needs none.
"""

import platform
from collections.abc import Callable, Sequence
from math import gcd
from typing import Any, NamedTuple, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from discopatch.model.config import Normalisation

M = TypeVar("M", bound=nn.Module)

SLOPE = 0.01  # of the LeakyReLU
SMALLEST_VARIANCE = 1e-6  # below this a channel is flat, and the logarithm only measures rounding
EPS = 1e-5  # added to the variances of a PatchNorm2d
FARTHEST = 10.0  # standard deviations of a statistic; flat channels are farther
PACKS = platform.machine().lower() in ("x86_64", "amd64")  # kernels in oneDNN's order were run on these alone
BATCHNORM_BUFFERS = ("running_mean", "running_var", "num_batches_tracked")


class Standardised(NamedTuple):
    """Activations minus the mean of their group, and the group's statistics, in float32 or wider."""

    centred: Tensor  # (groups, group, C, H, W)
    mean: Tensor  # (groups, 1, C, 1, 1)
    variance: Tensor  # (groups, 1, C, 1, 1), biased

    @property
    def statistics(self) -> Tensor:
        """(groups, 2 x C): the means, then the log-variances."""
        return torch.cat((self.mean.flatten(1), (self.variance.flatten(1) + SMALLEST_VARIANCE).log()), 1)


def standardise(x: Tensor, group: int | None = None) -> Standardised:
    """Statistics of every channel over each group of patches; without `group` all of x (B, C, H, W) is one group.

    Computed in float32 or wider: half precision would lose the small differences between patches. Neither activations
    in channels_last memory nor those of exported graphs, which keep channels first, are transposed.
    """
    size = x.shape[0]  # len(x) would fix the batch size of an exported graph
    grouped = x.unflatten(0, (-1, size if group is None else group)).to(torch.promote_types(x.dtype, torch.float32))
    mean = grouped.mean((1, 3, 4), keepdim=True)
    centred = grouped - mean
    # Two plain means: torch.var_mean takes several times as long on a CPU.
    return Standardised(centred, mean, (centred * centred).mean((1, 3, 4), keepdim=True))


class PatchNorm2d(nn.Module):
    """BatchNorm whose batch is one image's patches: normalises each group by its own mean and biased variance.

    An image's patches are consecutive in the batch, (images * group, C, H, W), so that its result does not depend on
    other images. Without a group size the whole batch is one group, as in `nn.BatchNorm2d` in training mode.
    """

    def __init__(self, channels: int, *, eps: float = EPS) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))

    def forward(self, x: Tensor, group: int | None = None) -> Tensor:
        """Normalised (B, C, H, W)."""
        return self.normalise(standardise(x, group)).to(x.dtype)

    def normalise(self, x: Standardised) -> Tensor:
        """(B, C, H, W) on the scale of each group."""
        scale = self.weight[:, None, None] * torch.rsqrt(x.variance + self.eps)
        return (x.centred * scale + self.bias[:, None, None]).flatten(0, 1)


NORMALISATIONS: dict[Normalisation, Callable[[int], nn.Module]] = {
    "patch": PatchNorm2d,
    "batch": nn.BatchNorm2d,
    "group": lambda channels: nn.GroupNorm(gcd(32, channels), channels),
    "instance": lambda channels: nn.InstanceNorm2d(channels, affine=True),
}


def halving(inputs: int, outputs: int) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, kernel_size=3, stride=2, padding=1)


def doubling(inputs: int, outputs: int) -> nn.ConvTranspose2d:
    return nn.ConvTranspose2d(inputs, outputs, kernel_size=3, stride=2, padding=1, output_padding=1)


def channels_last(network: M) -> M:
    """The network with its kernels in the memory order of the patches, so that nothing is transposed."""
    return network.to(memory_format=torch.channels_last)  # type: ignore[call-overload,no-any-return]  # untyped in torch


class BlockOutput(NamedTuple):
    """Activations of one layer (B, C, H, W), and on request its statistics (groups, 2 x C)."""

    features: Tensor
    statistics: Tensor | None = None


class Block(nn.Module):
    """Convolution, normalisation, LeakyReLU.

    `fused` is the same block in fewer passes over memory, for training on a GPU: see `discopatch.model.kernels`.
    """

    def __init__(self, conv: nn.Conv2d | nn.ConvTranspose2d, norm: nn.Module) -> None:
        super().__init__()
        self.conv, self.norm = conv, norm
        self.fused: Any = None

    def forward(self, x: Tensor, group: int | None = None, *, statistics: bool = False) -> BlockOutput:
        """Features, and the statistics before the normalisation, which have gradients and are never fused.

        `group` is the group size of a PatchNorm2d.
        """
        if self.fused is not None and self.training and not statistics:
            return BlockOutput(self.fused(self.conv, self.norm, x, group))
        x = self.conv(x)
        if not isinstance(self.norm, PatchNorm2d):
            found = standardise(x, group).statistics if statistics else None
            return BlockOutput(F.leaky_relu(self.norm(x), SLOPE), found)
        standard = standardise(x, group)
        normal = self.norm.normalise(standard).to(x.dtype)
        return BlockOutput(F.leaky_relu(normal, SLOPE), standard.statistics if statistics else None)


class Repeated(NamedTuple):
    """Consecutive inverted residual blocks of one kind; only the first has the stride."""

    blocks: int
    kernel: int
    stride: int
    expansion: int
    channels: int


def layer_plan(hidden: Sequence[int], depths: Sequence[int]) -> list[tuple[Repeated, ...]]:
    """Blocks of each layer, in proportion to EfficientNet-Lite; a stem of stride 2 precedes the first."""
    first, second, third, fourth, fifth = hidden
    return [
        (Repeated(depths[0], 3, 1, 1, first),),
        (Repeated(depths[1], 3, 2, 6, second),),
        (Repeated(depths[2], 5, 2, 6, third),),
        (Repeated(depths[3], 3, 2, 6, fourth * 5 // 7), Repeated(depths[4], 5, 1, 6, fourth)),
        (Repeated(depths[5], 5, 2, 6, fifth * 3 // 5), Repeated(depths[6], 3, 1, 6, fifth)),
    ]


class SameConv2d(nn.Conv2d):
    """Convolution with TensorFlow's padding SAME for maps of even sides.

    With stride 2 it pads more below and to the right than above and to the left.
    """

    def __init__(self, in_channels: int, out_channels: int, kernel: int, stride: int = 1, *, groups: int = 1) -> None:
        missing = kernel - stride
        before, after = missing // 2, missing - missing // 2
        super().__init__(in_channels, out_channels, kernel, stride, padding=before if stride == 1 else 0, groups=groups)
        self.margins = before, after  # padding along each axis

    def forward(self, x: Tensor) -> Tensor:
        """(B, in_channels, H, W) -> (B, out_channels, H / stride, W / stride)."""
        return super().forward(x if self.stride == (1, 1) else F.pad(x, self.margins * 2))


class MBConv(nn.Module):
    """Inverted residual block: 1 x 1 to more channels, a filter of each channel, 1 x 1 to few; plus the input."""

    def __init__(self, in_channels: int, out_channels: int, *, kernel: int, stride: int, expansion: int) -> None:
        super().__init__()
        inner = in_channels * expansion
        self.expand = SameConv2d(in_channels, inner, 1) if expansion > 1 else None
        self.filter = SameConv2d(inner, inner, kernel, stride, groups=inner)
        self.project = SameConv2d(inner, out_channels, 1)
        self.activate = relu6
        self.residual = stride == 1 and in_channels == out_channels

    def forward(self, x: Tensor) -> Tensor:
        """(B, in_channels, H, W) -> (B, out_channels, H / stride, W / stride)."""
        y: Tensor = x if self.expand is None else self.activate(self.expand(x))
        y = self.project(self.activate(self.filter(y)))
        return y.add_(x) if self.residual else y


class InvertedLayer(nn.Module):
    """Inverted residual blocks that together halve height and width; the first layer has a stem, which does so."""

    def __init__(self, inputs: int, plan: Sequence[Repeated], *, stem: bool = False) -> None:
        """`inputs` are the channels before the first block; `stem` makes them from pixels."""
        super().__init__()
        self.stem = SameConv2d(3, inputs, 3, 2) if stem else None
        self.activate: Callable[[Tensor], Tensor] = relu6  # after the stem
        self.blocks = mbconvs(inputs, plan)

    def forward(self, x: Tensor, group: int | None = None, *, statistics: bool = False) -> BlockOutput:
        """Output of the last block (B, C, H, W), and on request its statistics over each group."""
        x = self.blocks(x if self.stem is None else self.activate(self.stem(x)))
        return BlockOutput(x, standardise(x, group).statistics if statistics else None)


def mbconvs(channels: int, plan: Sequence[Repeated]) -> nn.Sequential:
    """Blocks of a plan; the first has `channels` input channels."""
    found = nn.Sequential()
    for blocks, kernel, stride, expansion, out_channels in plan:
        for number in range(blocks):
            first = stride if number == 0 else 1
            found.append(MBConv(channels, out_channels, kernel=kernel, stride=first, expansion=expansion))
            channels = out_channels
    return found


class Embedding(nn.Module):
    """How an image was degraded, from its statistics: two linear layers to a vector whose length is one per value.

    Buffers: the centre and scale of the statistics.
    """

    centre: Tensor
    scale: Tensor

    def __init__(self, statistics: int, outputs: int) -> None:
        super().__init__()
        self.register_buffer("centre", torch.zeros(statistics))
        self.register_buffer("scale", torch.ones(statistics))
        self.first, self.second = nn.Linear(statistics, 4 * outputs), nn.Linear(4 * outputs, outputs)

    def forward(self, statistics: Tensor) -> Tensor:
        """(B, statistics) -> (B, outputs)."""
        standard = ((statistics - self.centre) / self.scale).clamp(-FARTHEST, FARTHEST)
        x: Tensor = self.second(F.relu(self.first(standard)))
        return x * torch.rsqrt((x * x).mean(1, keepdim=True) + EPS)


def relu6(x: Tensor) -> Tensor:
    return F.relu6(x, inplace=True)


def as_it_is(x: Tensor) -> Tensor:
    return x


class ScoringLinear(nn.Module):
    """Linear layer whose last digits on a CPU do not depend on the number of threads, unlike those of `F.linear`."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.weight, self.bias = linear.weight, linear.bias

    def forward(self, x: Tensor) -> Tensor:
        """(B, C) -> (B, C')."""
        return (x[:, None] * self.weight).sum(2) + self.bias if x.is_cpu else F.linear(x, self.weight, self.bias)


class ScoringConv2d(nn.Module):
    """Convolution that oneDNN computes on a CPU, whatever the size of its input.

    For one small map torch itself chooses another algorithm, which is several times slower in channels_last memory and
    whose last digits depend on the number of threads. Where the convolution pads one side more, its kernel gets a first
    row and column of zeros and all sides are padded alike, by oneDNN: a padded copy of the input takes longer to make
    than the convolution takes. On x86 the kernel is kept in oneDNN's order for the last shape of input.

    activate: whether ReLU6 is part of it.
    """

    def __init__(self, conv: nn.Conv2d, *, activate: bool = False) -> None:
        super().__init__()
        self.weight, self.bias, self.stride, self.groups = conv.weight, conv.bias, conv.stride, conv.groups
        self.padding, self.activate = conv.padding, activate
        self._packed: tuple[Sequence[int], Any] = ((), None)
        if isinstance(conv, SameConv2d) and conv.stride != (1, 1):
            padded = F.pad(conv.weight, (1, 0, 1, 0))
            self.weight = nn.Parameter(padded.contiguous(memory_format=torch.channels_last))
            self.padding = (conv.margins[0] + 1,) * 2

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_packed": ((), None)}  # which cannot be copied

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, H, W) -> (B, C', H / stride, W / stride)."""
        by_onednn = x.is_cpu and x.dtype == self.weight.dtype == torch.float32 and torch.backends.mkldnn.is_available()
        options: Any = self.padding, self.stride, (1, 1), self.groups
        if by_onednn and PACKS:
            shape, packed = self._packed
            if shape != x.shape:
                packed = torch.ops.mkldnn._reorder_convolution_weight(self.weight.detach(), *options, x.shape)
                self._packed = x.shape, packed
            after = ("hardtanh", [0.0, 6.0], "") if self.activate else ("none", [], "")
            found: Tensor = torch.ops.mkldnn._convolution_pointwise(x, packed, self.bias, *options, *after)
            return found
        if by_onednn:
            y = torch.mkldnn_convolution(x, self.weight, self.bias, *options)
        else:
            y = F.conv2d(x, self.weight, self.bias, self.stride, self.padding, groups=self.groups)
        return relu6(y) if self.activate else y
