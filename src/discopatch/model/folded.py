"""A residual discriminator for scoring: batch normalisations are part of convolutions, which a CPU computes faster."""

from copy import deepcopy

import torch
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
                if isinstance(conv, SameConv2d):
                    setattr(parent, name, ScoringConv2d(conv))
        return copy
    if architecture.kind != "residual" or architecture.normalisation != "batch":
        return discriminator
    copy = channels_last(deepcopy(discriminator).eval())
    for layer in [module for module in copy.modules() if isinstance(module, NormalisedConv2d)]:
        fold(layer)
        layer.conv = ScoringConv2d(layer.conv)  # type: ignore[assignment]  # in its place
    return copy


class ScoringConv2d(nn.Module):
    """A convolution that oneDNN computes on a CPU, where there is one, whatever the size of its input.

    Of one small map torch itself takes another way, which is several times slower when channels come last.
    """

    def __init__(self, conv: nn.Conv2d) -> None:
        super().__init__()
        self.conv = conv

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, H, W) -> (B, C', H / stride, W / stride)."""
        conv, padding = self.conv, self.conv.padding
        assert isinstance(padding, tuple)
        if x.is_cpu and x.dtype == conv.weight.dtype == torch.float32 and torch.backends.mkldnn.is_available():
            x = conv.padded(x) if isinstance(conv, SameConv2d) else x
            return torch.mkldnn_convolution(x, conv.weight, conv.bias, padding, conv.stride, (1, 1), conv.groups)
        found: Tensor = conv(x)
        return found
