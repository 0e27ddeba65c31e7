"""A folded residual network gives what the network itself gives, which stays as it was."""

from copy import deepcopy
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from discopatch.encoders import DiscriminatorEncoder, FeatureExtractor, Kind
from discopatch.export.graph import DetectorGraph
from discopatch.images import Pixels
from discopatch.images.tensors import to_unit
from discopatch.model.folded import ScoringConv2d, fold_for_scoring, without_margins
from discopatch.model.inverted import SameConv2d
from discopatch.model.residual import NormalisedConv2d
from tests.samples import TINY_RESIDUAL, inverted_weights, new_detector, one_camera, residual_weights, tiny_weights

ALL: tuple[Kind, ...] = ("logits", "statistics", "pooled", "places")


def camera_pixels(count: int) -> Pixels:
    return np.stack([image.pixels for image in one_camera(count)])


def assert_near_in_spreads(found: Any, expected: Any, *, within: float = 1e-5) -> None:
    """Differences in units of how much the same feature differs from image to image: all, and the worst."""
    found, expected = (np.asarray(each, np.float64) for each in (found, expected))
    spread = expected.std(0, keepdims=True).clip(1e-3 * expected.std())
    differences = (found - expected) / spread
    assert np.sqrt(np.mean(differences**2)) < within
    assert np.abs(differences).max() < 10 * within


@torch.no_grad()
@pytest.mark.parametrize("blocks", [1, 2, None])
@pytest.mark.parametrize("patches", ["dense", 3])
def test_images_and_regions_have_the_features_of_the_network_itself(patches: Any, blocks: int | None) -> None:
    """Of residual networks of so many blocks, and of an inverted one."""
    weights = inverted_weights() if blocks is None else residual_weights(replace(TINY_RESIDUAL, blocks=blocks))
    pixels = camera_pixels(12)
    encoder = DiscriminatorEncoder(weights, patches=patches, kinds=ALL)
    plain = FeatureExtractor(
        weights.discriminator, pixel_range="symmetric", corners=encoder.extractor.corners, group=encoder.extractor.group
    )
    plain.kinds = encoder.kinds
    expected, found = plain(torch.from_numpy(pixels)), encoder.extract_pixels(pixels)
    for kind in ("logits", "statistics", "pooled"):
        assert_near_in_spreads(getattr(found, kind), expected[kind])
    if patches == "dense":
        assert_near_in_spreads(found.places, expected["places"], within=0.005)  # in float16
    regions, exact = encoder.extract_regions(pixels[0], 9), encoder.region_extractor(9)
    exact.discriminator = weights.discriminator
    expected = exact(torch.from_numpy(pixels[:1]))
    assert_near_in_spreads(regions.logits, expected["logits"])
    assert_near_in_spreads(regions.statistics, expected["statistics"])


@torch.no_grad()
def test_no_normalisation_is_left_but_that_of_the_stem_and_the_network_itself_keeps_all() -> None:
    network = residual_weights().discriminator
    before, x = deepcopy(network.state_dict()), to_unit(torch.from_numpy(camera_pixels(2))).permute(0, 3, 1, 2)
    logits = network(x, 1).logits
    folded = fold_for_scoring(network)
    assert [name for name, each in folded.named_modules() if isinstance(each, nn.BatchNorm2d)] == ["blocks.0.norm"]
    for parameter in folded.parameters():
        parameter.zero_()
    assert all(
        isinstance(each.norm, nn.BatchNorm2d) for each in network.modules() if isinstance(each, NormalisedConv2d)
    )
    torch.testing.assert_close(network.state_dict(), before, rtol=0, atol=0)
    assert torch.equal(network(x, 1).logits, logits)


@torch.no_grad()
def test_a_stem_whose_scale_is_zero_keeps_its_statistics() -> None:
    network = residual_weights().discriminator
    network.get_parameter("blocks.0.norm.weight")[0] = 0
    x = to_unit(torch.from_numpy(camera_pixels(2))).permute(0, 3, 1, 2)
    expected, found = (each(x, 1, statistics=True).statistics[:, :8] for each in (network, fold_for_scoring(network)))
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)
    assert found[:, 4].exp().min() > 0.001, "the variance of the first channel"


@pytest.mark.parametrize("normalisation", ["patch", "group", "instance"])
def test_layers_that_normalise_each_image_by_itself_pass_as_they_are(normalisation: Any) -> None:
    network = residual_weights(replace(TINY_RESIDUAL, normalisation=normalisation)).discriminator
    assert fold_for_scoring(network) is network


@torch.no_grad()
def test_an_inverted_network_itself_keeps_its_convolutions() -> None:
    network = inverted_weights().discriminator
    before, folded = deepcopy(network.state_dict()), fold_for_scoring(network)
    convolutions = [each for each in network.modules() if isinstance(each, nn.Conv2d)]
    assert sum(isinstance(each, ScoringConv2d) for each in folded.modules()) == len(convolutions) > 0
    for parameter in folded.parameters():
        parameter.zero_()
    torch.testing.assert_close(network.state_dict(), before, rtol=0, atol=0)


@torch.no_grad()
@pytest.mark.parametrize(("kernel", "stride"), [(3, 1), (3, 2), (5, 2)])
def test_a_filter_of_single_channels_by_onednn_is_that_of_torch(kernel: int, stride: int) -> None:
    conv = SameConv2d(6, 6, kernel, stride, groups=6)
    x = torch.randn(2, 6, 12, 12, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(ScoringConv2d(without_margins(conv))(x), conv(x), rtol=1e-5, atol=1e-5)


def test_a_plain_network_passes_as_it_is() -> None:
    network = tiny_weights().discriminator
    assert fold_for_scoring(network) is network


@torch.no_grad()
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("count", "side", "kernel", "stride"), [(1, 4, 3, 1), (1, 7, 3, 2), (1, 8, 1, 2), (3, 40, 3, 1)]
)
def test_a_convolution_by_onednn_is_that_of_torch(
    count: int, side: int, kernel: int, stride: int, dtype: torch.dtype
) -> None:
    conv = nn.Conv2d(6, 10, kernel, stride, padding=kernel // 2, dtype=dtype)
    x = torch.randn(count, 6, side, side, dtype=dtype, generator=torch.Generator().manual_seed(0))
    expected = F.conv2d(x, conv.weight, conv.bias, stride, kernel // 2)
    for order in (torch.contiguous_format, torch.channels_last):
        found = ScoringConv2d(conv.to(memory_format=order))(x.to(memory_format=order))  # type: ignore[call-overload]
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def test_exports_are_made_from_the_network_itself() -> None:
    weights = residual_weights()
    detector = new_detector(weights).fit(one_camera(60), workers=1)
    graph = DetectorGraph(detector)
    assert graph.image.discriminator is graph.regions.discriminator
    torch.testing.assert_close(
        graph.image.discriminator.state_dict(), weights.discriminator.state_dict(), rtol=0, atol=0
    )
    assert graph.image.discriminator is not weights.discriminator
