"""A backbone extracts what it was asked for, of each image from itself alone; rank 1 is that of the SVD."""

import numpy as np
import pytest
import torch
from torch import nn

from discopatch.bench.networks.base import (
    LOCAL,
    STATISTICS,
    ClassifierBackbone,
    fold_batchnorm,
    projection,
    reduce_places,
    remove_rank_one,
)
from discopatch.bench.networks.resnet50 import weight_without_rank_one

from .samples import by_full_svd, sample_pixels, small_efficientnet, small_resnet


@pytest.fixture(scope="module", params=["resnet50", "efficientnet-lite0"])
def backbone(request: pytest.FixtureRequest) -> ClassifierBackbone:
    network = small_resnet() if request.param == "resnet50" else small_efficientnet()
    return ClassifierBackbone(request.param, network)


def test_the_sizes_of_layers_are_those_of_the_statistics(backbone: ClassifierBackbone) -> None:
    """As published: conv2_x to conv4_x double their channels; blocks 1, 4 and 8 have 24, 40 and 112."""
    first = backbone.layer_sizes[0]
    expected = {"resnet50": (first, 2 * first, 4 * first), "efficientnet-lite0": (48, 80, 224)}
    assert backbone.layer_sizes == expected[backbone.name]
    assert sum(backbone.layer_sizes) == backbone.extract(sample_pixels("cat"), [STATISTICS])[STATISTICS].shape[1]


def test_neighbours_never_change_features(backbone: ClassifierBackbone) -> None:
    pixels = sample_pixels()
    together = backbone.extract(pixels, backbone.kinds)
    turned = backbone.extract(pixels[::-1], backbone.kinds)
    for place in range(len(pixels)):
        alone = backbone.extract(pixels[place : place + 1], backbone.kinds)
        for kind in backbone.kinds:
            assert np.array_equal(alone[kind][0], together[kind][place]), kind
            assert np.array_equal(turned[kind][::-1][place], together[kind][place]), kind


def test_batches_as_on_a_gpu_agree_to_rounding(backbone: ClassifierBackbone, monkeypatch: pytest.MonkeyPatch) -> None:
    alone = backbone.extract(sample_pixels(), backbone.kinds)
    monkeypatch.setattr(backbone, "batch_size", 64)
    for kind, values in backbone.extract(sample_pixels(), backbone.kinds).items():
        rounding = 2e-3 if kind == LOCAL else 2e-4
        np.testing.assert_allclose(values, alone[kind], atol=rounding, rtol=rounding)


def test_stored_places_are_means_over_blocks_and_few_features_stay() -> None:
    places = torch.randn(2, 32, 48, 6, generator=torch.Generator().manual_seed(0))
    found = reduce_places(places)
    assert (found.dtype, found.shape) == (torch.float16, (2, 16, 16, 6))
    expected = places.numpy().reshape(2, 16, 2, 16, 3, 6).mean((2, 4))
    np.testing.assert_allclose(found.numpy(), expected, atol=2e-3)
    assert reduce_places(places[:, :9, :7]).shape == (2, 9, 7, 6)
    assert reduce_places(torch.full((1, 1, 1, 6), 1e9)).isfinite().all()


def test_a_projection_keeps_distances_and_is_always_the_same() -> None:
    values = torch.randn(1, 5, 8, 1024, generator=torch.Generator().manual_seed(0))
    before, after = torch.pdist(values.flatten(0, 2)), torch.pdist(reduce_places(values).flatten(0, 2).float())
    assert float((after / before).std() / (after / before).mean()) < 0.09
    found = projection(1024, 128, torch.device("cpu"))
    projection.cache_clear()
    assert torch.equal(projection(1024, 128, torch.device("cpu")), found)


@pytest.mark.parametrize("shape", [(3, 64, 7, 7), (2, 20, 14, 14), (1, 49, 7, 7), (1, 5, 1, 1)])
def test_rank_one_is_removed_as_by_a_full_svd(shape: tuple[int, ...]) -> None:
    maps = torch.rand(shape, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(remove_rank_one(maps), by_full_svd(maps.double()).float(), atol=1e-6, rtol=1e-5)


def test_a_channel_that_batchnorm_has_switched_off_stays_off() -> None:
    weight, factor = torch.randn((6, 5, 1, 1), generator=torch.Generator().manual_seed(0)), torch.ones(6)
    factor[2] = weight[2] = 0
    found = weight_without_rank_one(weight, factor)
    assert torch.isfinite(found).all()
    assert not found[2].any()


@pytest.mark.parametrize(("with_bias", "groups"), [(True, 1), (False, 6)])
@torch.inference_mode()
def test_a_folded_convolution_does_what_convolution_and_batchnorm_did(with_bias: bool, groups: int) -> None:
    torch.manual_seed(0)
    convolution = nn.Conv2d(6, 12, 3, groups=groups, bias=with_bias)
    norm = nn.BatchNorm2d(12, eps=1e-3).eval()
    for parameter in (norm.weight, norm.bias, norm.running_mean, norm.running_var):
        assert parameter is not None
        parameter.uniform_(0.1, 2)
    norm.running_var[0] = 0  # type: ignore[index]  # a channel that never changed
    bias = convolution.bias.numpy() if convolution.bias is not None else None
    parts = (norm.weight, norm.bias, norm.running_mean, norm.running_var)
    weight, shift = fold_batchnorm(convolution.weight.numpy(), bias, *(each.numpy() for each in parts))  # type: ignore[union-attr]
    x = torch.randn(2, 6, 9, 9)
    folded = nn.functional.conv2d(x, weight, shift, groups=groups)
    torch.testing.assert_close(folded, norm(convolution(x)), atol=1e-4, rtol=1e-5)
