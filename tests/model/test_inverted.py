"""An inverted residual discriminator: its layers, how it begins, and its copy for scoring."""

from copy import deepcopy
from dataclasses import replace
from itertools import accumulate
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from discopatch.bench.networks.efficientnet import EfficientNetLite0, EfficientNetLite1
from discopatch.encoders import DiscriminatorEncoder, FeatureExtractor, Kind
from discopatch.images.tensors import to_unit
from discopatch.model import Architecture, Networks
from discopatch.model.config import LITE
from discopatch.model.layers import FARTHEST, SMALLEST_VARIANCE, SameConv2d, ScoringConv2d
from discopatch.training.teachers import BackboneTeacher, begin_as_teacher
from tests.bench.networks.samples import sample_pixels, small_efficientnet
from tests.samples import TINY_EMBEDDED, TINY_INVERTED, camera_pixels, inverted_weights

ALL: tuple[Kind, ...] = ("logits", "statistics", "pooled", "places")


@torch.no_grad()
@pytest.mark.parametrize("name", ["efficientnet-lite0", "efficientnet-lite1"])
def test_it_begins_with_the_layers_of_the_efficientnet_of_its_depths(name: str) -> None:
    """On crops of photos its maps are those of the teacher, apart from the padding, which is black or grey."""
    kind = EfficientNetLite1 if name.endswith("1") else EfficientNetLite0
    teacher, architecture = small_efficientnet(kind), replace(TINY_INVERTED, hidden=LITE, depths=kind.depths)
    teachers = {name: BackboneTeacher(name, teacher, "")}
    discriminator = Networks.from_seed(architecture, 0).discriminator.eval()
    assert begin_as_teacher(discriminator, teachers).keys() == {"beginning"}
    crops = torch.from_numpy(sample_pixels("cat", "coffee")[:, 16:144, 16:144].copy())
    found = discriminator(to_unit(crops).permute(0, 3, 1, 2), 1).features
    x = nn.functional.relu6(teacher.stem(teacher.normalise(crops)))
    expected = []
    for block in teacher.blocks:
        x = block(x)
        expected.append(x)
    ends = list(accumulate(kind.depths))
    for own, end in zip(found, [*ends[:3], ends[4], ends[6]], strict=True):
        spread = expected[end - 1].std()
        torch.testing.assert_close(own / spread, expected[end - 1] / spread, rtol=0, atol=0.05)
    for other in (replace(TINY_INVERTED, depths=kind.depths), replace(architecture, depths=(1,) * 7)):
        network = Networks.from_seed(other, 0).discriminator
        before = deepcopy(network.state_dict())
        assert begin_as_teacher(network, teachers).keys() == teachers.keys()
        torch.testing.assert_close(network.state_dict(), before, rtol=0, atol=0)


@torch.no_grad()
def test_the_statistics_are_those_of_each_layers_output_then_the_embedding_and_cells_have_logits() -> None:
    network = inverted_weights(TINY_EMBEDDED).discriminator
    assert network.embed is not None
    network.embed.centre.fill_(0.3)
    network.embed.scale.fill_(0.05)  # some statistics are farther than the limit
    images = torch.rand(2, 3, 64, 64, generator=torch.Generator().manual_seed(3)) * 2 - 1
    found = network(images, 1, statistics=True)
    maps = [(4, 32, 32), (6, 16, 16), (8, 8, 8), (14, 4, 4), (20, 2, 2)]
    assert [tuple(each.shape[1:]) for each in found.features] == maps
    assert found.logits.shape == (2, 4, 4)
    for own, statistics in zip(found.features, found.layer_statistics, strict=True):
        values = own.numpy().astype(float)
        expected = np.concatenate((values.mean((2, 3)), np.log(values.var((2, 3)) + SMALLEST_VARIANCE)), 1)
        np.testing.assert_allclose(statistics, expected, rtol=1e-3, atol=1e-4)
    assert network(images[..., :32, :32]).logits.shape == (2,)
    weights, statistics = network.embed.state_dict(), (torch.cat(found.layer_statistics, 1) - 0.3) / 0.05
    hidden = statistics.clamp(-FARTHEST, FARTHEST) @ weights["first.weight"].T + weights["first.bias"]
    embedding = hidden.clamp(min=0) @ weights["second.weight"].T + weights["second.bias"]
    embedding /= embedding.square().mean(1, keepdim=True).sqrt()
    torch.testing.assert_close(found.statistics, torch.cat([*found.layer_statistics, embedding], 1), rtol=0, atol=1e-3)


def assert_near_in_spreads(found: Any, expected: Any, *, within: float = 1e-5) -> None:
    """Differences in units of the spread of the same feature over images."""
    found, expected = (np.asarray(each, np.float64) for each in (found, expected))
    differences = (found - expected) / expected.std(0, keepdims=True).clip(1e-3 * expected.std())
    assert np.sqrt(np.mean(differences**2)) < within
    assert np.abs(differences).max() < 10 * within


@torch.no_grad()
@pytest.mark.parametrize("architecture", [TINY_INVERTED, TINY_EMBEDDED])
@pytest.mark.parametrize("patches", ["dense", 3])
def test_the_copy_for_scoring_has_the_features_of_the_network_itself(patches: Any, architecture: Architecture) -> None:
    weights, pixels = inverted_weights(architecture), camera_pixels(12)
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
    for place in range(3):
        alone = encoder.extract_pixels(pixels[place : place + 1])
        assert all(map(np.array_equal, alone, found.select(slice(place, place + 1)))), "whatever its neighbours"


@torch.no_grad()
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("groups", "kernel", "stride"), [(6, 3, 1), (6, 3, 2), (6, 5, 2), (1, 3, 2)])
def test_a_convolution_by_onednn_is_that_of_torch(groups: int, kernel: int, stride: int, dtype: torch.dtype) -> None:
    conv = SameConv2d(6, 12, kernel, stride, groups=groups).to(dtype)
    plain, active = ScoringConv2d(conv), ScoringConv2d(conv, activate=True)
    for count, side in ((1, 4), (3, 40), (1, 4)):  # the kernel is kept for one shape at a time
        x = torch.randn(count, 6, side, side, dtype=dtype, generator=torch.Generator().manual_seed(0))
        torch.testing.assert_close(plain(x), conv(x), rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(active(20 * x), conv(20 * x).clamp(0, 6), rtol=1e-5, atol=1e-4)
        torch.testing.assert_close(deepcopy(plain)(x), plain(x))
