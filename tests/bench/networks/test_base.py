"""A backbone extracts what it was asked for, of each image from itself alone; rank 1 is that of the SVD."""

import numpy as np
import pytest
import torch

from discopatch.bench.networks.base import EXTREMES, LOCAL, STATISTICS, ClassifierBackbone, perturb, reduce_places
from discopatch.bench.networks.resnet50 import weight_without_rank_one

from .samples import sample_pixels, small_efficientnet, small_resnet


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


def test_a_perturbed_image_moves_where_the_largest_logit_hardly_depends_on_it(backbone: ClassifierBackbone) -> None:
    network = backbone.network
    x = network.prepare(torch.from_numpy(sample_pixels("cat")))
    step = 0.5 * 0.226 * 255 / (1 if backbone.name == "resnet50" else 128)
    moved = (perturb(network, x) - x) / step
    leaf = x.clone().requires_grad_()
    network.head(network.layers(leaf)[1]).max().backward()
    assert leaf.grad is not None
    gradient = leaf.grad.flatten()
    least = gradient.abs().argsort(stable=True)[: int(0.05 * len(gradient))]
    expected = torch.zeros_like(gradient)
    expected[least] = gradient[least].sign()
    assert ((moved.flatten() - expected).abs() > 0.01).float().mean() < 1e-4  # equal gradients at the limit
    assert expected.any() or backbone.name == "resnet50"  # whose small copy does not use a tenth of the pixels


def test_extremes_are_those_of_what_goes_into_each_activation(backbone: ClassifierBackbone) -> None:
    network = backbone.network
    found = backbone.extract(sample_pixels("cat"), [EXTREMES])[EXTREMES]
    inputs = {"resnet50": 49, "efficientnet-lite0": 33}  # convolutions that an activation follows
    assert found.shape == (1, 2 * inputs[backbone.name])
    with torch.inference_mode():
        first = network.stem(network.prepare(torch.from_numpy(sample_pixels("cat"))))  # type: ignore[operator]
    np.testing.assert_allclose(found[0, :2], [first.max(), -first.min()], rtol=1e-4)
    together = backbone.extract(sample_pixels("cat"), backbone.kinds)  # of which some pass a part of the network again
    assert np.array_equal(together[EXTREMES], found)


def test_stored_places_are_means_over_blocks_and_few_features_stay() -> None:
    places = torch.randn(2, 32, 48, 6, generator=torch.Generator().manual_seed(0))
    found = reduce_places(places)
    assert (found.dtype, found.shape) == (torch.float16, (2, 16, 16, 6))
    expected = places.numpy().reshape(2, 16, 2, 16, 3, 6).mean((2, 4))
    np.testing.assert_allclose(found.numpy(), expected, atol=2e-3)
    assert reduce_places(places[:, :9, :7]).shape == (2, 9, 7, 6)
    assert reduce_places(torch.full((1, 1, 1, 6), 1e9)).isfinite().all()


def test_a_channel_that_batchnorm_has_switched_off_stays_off() -> None:
    weight, factor = torch.randn((6, 5, 1, 1), generator=torch.Generator().manual_seed(0)), torch.ones(6)
    factor[2] = weight[2] = 0
    found = weight_without_rank_one(weight, factor)
    assert torch.isfinite(found).all()
    assert not found[2].any()
