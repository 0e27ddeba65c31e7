"""A residual discriminator in 8 bits: all of its convolutions but the stem, which reads pixels and costs little."""

from collections.abc import Callable, Sequence
from typing import TypeVar

import torch
from torch import Tensor, nn

from discopatch.encoders.discriminator import FeatureExtractor
from discopatch.errors import ExportError
from discopatch.export.quantize import IntegerConv2d, balance_kernel, channel_range, outputs_one_by_one, widest
from discopatch.model.folded import fold
from discopatch.model.residual import NormalisedConv2d, ResidualBlock

T = TypeVar("T")
Range = tuple[Tensor, Tensor]  # the lowest and the highest input of each channel, two (C,)


@torch.no_grad()
def quantize_residual(image: FeatureExtractor, regions: FeatureExtractor, pixels: Tensor) -> None:
    """Replaces, in place, the convolutions of all stages of the discriminator that both extractors share.

    Normal images (B, size, size, 3) in uint8 show which activations occur, over images and regions. What rounding does
    to the statistics on average is taken off them again, of images and of regions each.
    """
    network = image.discriminator
    if network.architecture.normalisation != "batch":
        raise ExportError(
            f"8 bits are for residual networks with batch normalisation, and this one has "
            f"{network.architecture.normalisation}: leave out int8"
        )
    extractors = (image, regions)
    expected = [mean_outputs(each, pixels) for each in extractors]
    layers = [module for module in network.modules() if isinstance(module, NormalisedConv2d)]
    for layer in layers:
        fold(layer)
    blocks = [module for module in network.modules() if isinstance(module, ResidualBlock)]
    ranges = input_ranges(extractors, [block.second for block in blocks], pixels)
    for block, (_, highest) in zip(blocks, ranges, strict=True):
        balance(block, highest)
    for layer, (lowest, highest) in zip(layers, input_ranges(extractors, layers, pixels), strict=True):
        low, high = min(0.0, float(lowest.min())), float(highest.max())
        layer.conv = IntegerConv2d(layer.conv, lowest=low, highest=high)  # type: ignore[assignment]  # in its place
    take_off_shifts(extractors, expected, pixels)


def take_off_shifts(
    extractors: Sequence[FeatureExtractor], expected: Sequence[tuple[Tensor, Tensor]], pixels: Tensor
) -> None:
    """Gives statistics, and the logit of the first extractor, the averages that they had before rounding."""
    for extractor, (logit, statistics) in zip(extractors, expected, strict=True):
        found = mean_outputs(extractor, pixels)
        extractor.statistics_shift = statistics - found[1]
        if extractor is extractors[0]:
            bias = extractor.discriminator.head.bias
            assert bias is not None
            bias.add_(logit - found[0])


def mean_outputs(extractor: FeatureExtractor, pixels: Tensor) -> tuple[Tensor, Tensor]:
    """Averages over images: the logit, and the statistics (2 x channels,)."""
    found = [(each.logits.mean(), each.statistics.mean(0)) for each in outputs_one_by_one(extractor, pixels)]
    logits, statistics = zip(*found, strict=True)
    return torch.stack(logits).mean(), torch.stack(statistics).mean(0)


def balance(block: ResidualBlock, highest: Tensor) -> None:
    """Divides what the second convolution reads by (C,) and multiplies its kernels by the same.

    A LeakyReLU lets a positive factor through, so that it goes into the first convolution and costs nothing.
    """
    first, factor = block.first.conv, balance_kernel(block.second.conv, highest)
    first.weight.div_(factor[:, None, None, None])
    assert first.bias is not None
    first.bias.div_(factor)


def input_ranges(extractors: Sequence[FeatureExtractor], layers: Sequence[nn.Module], pixels: Tensor) -> list[Range]:
    """What each of the layers reads, of the images and of the regions."""
    return [widest(each) for each in measure_inputs(extractors, layers, pixels, channel_range)]


def measure_inputs(
    extractors: Sequence[FeatureExtractor], layers: Sequence[nn.Module], pixels: Tensor, measure: Callable[[Tensor], T]
) -> list[list[T]]:
    """The measure of what each of the layers reads (B, C, H, W), image by image."""
    found: dict[nn.Module, list[T]] = {layer: [] for layer in layers}
    hooks = [
        layer.register_forward_pre_hook(lambda module, inputs: found[module].append(measure(inputs[0])))
        for layer in layers
    ]
    for extractor in extractors:
        for _ in outputs_one_by_one(extractor, pixels):
            pass
    for hook in hooks:
        hook.remove()
    return list(found.values())
