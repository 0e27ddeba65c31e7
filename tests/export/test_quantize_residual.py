"""A residual network in 8 bits is nearly the same, and on average quite the same."""

from dataclasses import replace
from typing import TypeVar

import pytest
import torch
from discopatch.export.quantize_residual import balance, input_ranges, mean_outputs, quantize_residual
from torch import Tensor, nn

from discopatch.errors import ExportError
from discopatch.export.graph import DetectorGraph
from discopatch.export.metadata import SCORE
from discopatch.export.quantize import IntegerConv2d
from discopatch.model.config import Normalisation
from discopatch.model.folded import fold
from discopatch.model.residual import NormalisedConv2d, ResidualBlock
from tests.export.samples import camera_pixels
from tests.samples import TINY_RESIDUAL, new_detector, one_camera, residual_weights

M = TypeVar("M", bound=nn.Module)


def residual_graph(normalisation: Normalisation = "batch") -> DetectorGraph:
    weights = residual_weights(replace(TINY_RESIDUAL, normalisation=normalisation))
    return DetectorGraph(new_detector(weights).fit(one_camera(60), workers=1))


def layers_of(graph: DetectorGraph, kind: type[M]) -> list[M]:
    return [module for module in graph.image.discriminator.modules() if isinstance(module, kind)]


def pixels_of(seed: int) -> Tensor:
    return torch.from_numpy(camera_pixels(8, seed=seed))


@pytest.fixture(scope="module")
def quantized() -> DetectorGraph:
    graph = residual_graph()
    quantize_residual(graph.image, graph.regions, pixels_of(1))
    return graph


def test_all_convolutions_but_the_stem_are_in_8_bits(quantized: DetectorGraph) -> None:
    network = quantized.image.discriminator
    assert isinstance(network.blocks[0].conv, nn.Conv2d)
    assert all(isinstance(layer.conv, IntegerConv2d) for layer in layers_of(quantized, NormalisedConv2d))
    assert quantized.regions.discriminator is network


@torch.no_grad()
def test_folding_and_balancing_change_nothing_but_the_ranges() -> None:
    graph, pixels = residual_graph(), pixels_of(2)
    before = graph.image.output(pixels)
    for layer in layers_of(graph, NormalisedConv2d):
        fold(layer)
    blocks = layers_of(graph, ResidualBlock)
    seconds = [block.second for block in blocks]
    for block, (_, highest) in zip(blocks, input_ranges([graph.image], seconds, pixels), strict=True):
        balance(block, highest)
    after = graph.image.output(pixels)
    torch.testing.assert_close(after.logits, before.logits, rtol=0, atol=1e-4)
    torch.testing.assert_close(after.statistics, before.statistics, rtol=0, atol=1e-3)
    for (_, highest), second in zip(input_ranges([graph.image], seconds, pixels), seconds, strict=True):
        kernels = second.conv.weight.square().mean((0, 2, 3)).sqrt()
        torch.testing.assert_close(highest, kernels, rtol=1e-3, atol=1e-4)


@torch.no_grad()
@pytest.mark.parametrize(
    ("part", "seed", "tolerance"), [("image", 1, 1e-4), ("regions", 1, 1e-4), ("image", 2, 0.2), ("regions", 2, 0.2)]
)
def test_mean_statistics_stay(quantized: DetectorGraph, part: str, seed: int, tolerance: float) -> None:
    """On the images that it was tuned with, and nearly so on others: the last maps have four cells."""
    exact, rounded, pixels = getattr(residual_graph(), part), getattr(quantized, part), pixels_of(seed)
    found = torch.cat([rounded(image)["statistics"] for image in pixels.split(1)]).mean(0)
    torch.testing.assert_close(found, mean_outputs(exact, pixels)[1], rtol=0, atol=tolerance)


@torch.no_grad()
def test_scores_of_single_images_are_close(quantized: DetectorGraph) -> None:
    exact, pixels = residual_graph(), pixels_of(3)
    one, other = exact(pixels)[SCORE], quantized(pixels)[SCORE]
    assert (one - other).abs().max() < 0.5 * exact.calibration_scores.std()
    assert not torch.equal(one, other)


def test_layers_that_normalise_each_image_by_itself_cannot_be_folded() -> None:
    graph = residual_graph("patch")
    with pytest.raises(ExportError, match="residual networks with batch normalisation, and this one has patch"):
        quantize_residual(graph.image, graph.regions, pixels_of(1))
