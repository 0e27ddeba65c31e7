"""A residual discriminator for scoring: batch normalisations are part of convolutions, which a CPU computes faster."""

from copy import deepcopy

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from discopatch.model.discriminator import Discriminator
from discopatch.model.inverted import SameConv2d
from discopatch.model.layers import channels_last
from discopatch.model.residual import NormalisedConv2d


def fold(layer: NormalisedConv2d) -> None:
    """Moves a batch normalisation, whose statistics are those of training, into the kernel and a bias before it."""
    assert isinstance(layer.norm, nn.BatchNorm2d)
    layer.conv, layer.norm = fuse_conv_bn_eval(layer.conv, layer.norm), nn.Identity()


@torch.no_grad()
def fold_for_scoring(discriminator: Discriminator) -> Discriminator:
    """A copy with all stages folded; the network itself where there is nothing to fold, as in plain ones.

    The stem keeps its normalisation: its statistics are those of the values before it. An inverted network has none,
    and a copy with other convolutions.
    """
    architecture = discriminator.architecture
    if architecture.kind == "inverted":
        copy = channels_last(deepcopy(discriminator).eval())
        for parent in list(copy.modules()):
            for name, conv in parent.named_children():
                if isinstance(conv, nn.Conv2d):
                    setattr(parent, name, ScoringConv2d(without_margins(conv)))
        return copy
    if architecture.kind != "residual" or architecture.normalisation != "batch":
        return discriminator
    copy = channels_last(deepcopy(discriminator).eval())
    for layer in [module for module in copy.modules() if isinstance(module, NormalisedConv2d)]:
        fold(layer)
        layer.conv = ScoringConv2d(layer.conv)  # type: ignore[assignment]  # in its place
    return copy


def without_margins(conv: nn.Conv2d) -> nn.Conv2d:
    """The same convolution with a first row and column of zeros in its kernel, where it pads one side more.

    All sides are then padded alike, which oneDNN does by itself: a padded copy of the input takes longer to make than
    the convolution does.
    """
    if not isinstance(conv, SameConv2d) or conv.stride == (1, 1):
        return conv
    before, _ = conv.margins
    wider = nn.Conv2d(
        conv.in_channels,
        conv.out_channels,
        conv.kernel_size[0] + 1,
        conv.stride[0],
        padding=before + 1,
        groups=conv.groups,
        device=conv.weight.device,
    )
    wider.weight = nn.Parameter(F.pad(conv.weight, (1, 0, 1, 0)).contiguous(memory_format=torch.channels_last))
    wider.bias = conv.bias
    return wider


class ScoringConv2d(nn.Module):
    """A convolution that oneDNN computes on a CPU, where there is one, whatever the size of its input.

    Of one small map torch itself takes another way, which is several times slower when channels come last, and whose
    last digits depend on the number of threads.
    """

    def __init__(self, conv: nn.Conv2d) -> None:
        super().__init__()
        self.conv = conv

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, H, W) -> (B, C', H / stride, W / stride)."""
        conv, padding = self.conv, self.conv.padding
        assert isinstance(padding, tuple)
        if x.is_cpu and x.dtype == conv.weight.dtype == torch.float32 and torch.backends.mkldnn.is_available():
            return torch.mkldnn_convolution(x, conv.weight, conv.bias, padding, conv.stride, (1, 1), conv.groups)
        found: Tensor = conv(x)
        return found
