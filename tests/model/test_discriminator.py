"""The discriminator: patches in, one logit each, with the features and statistics of every layer."""

from dataclasses import replace
from typing import get_args

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from discopatch.errors import ParameterError
from discopatch.model import Architecture, Discriminator, Normalisation, PatchNorm2d
from discopatch.model.discriminator import SMALLEST_VARIANCE
from discopatch.model.layers import Block
from tests.model.samples import a_discriminator, patches_of
from tests.samples import TINY

NORMALISATIONS: tuple[Normalisation, ...] = tuple(each for each in get_args(Normalisation) if each != "none")


def with_normalisation(kind: Normalisation) -> Architecture:
    return replace(TINY, normalisation=kind)


@pytest.mark.parametrize("kind", NORMALISATIONS)
def test_every_normalisation_gives_one_finite_logit_a_patch(kind: Normalisation) -> None:
    network = a_discriminator(with_normalisation(kind))
    for mode in (True, False):
        logits = network.train(mode)(patches_of(8), 4).logits
        assert logits.shape == (8,)
        assert logits.isfinite().all()
        logits.sum().backward()
    assert all(parameter.grad is not None for parameter in network.parameters())


@pytest.mark.parametrize("kind", NORMALISATIONS)
@pytest.mark.parametrize("group", [None, 4])
def test_asking_for_statistics_changes_no_logit(kind: Normalisation, group: int | None) -> None:
    network = a_discriminator(with_normalisation(kind)).eval()
    x = patches_of(8)
    assert torch.equal(network(x, group, statistics=True).logits, network(x, group).logits)


@pytest.mark.parametrize("kind", NORMALISATIONS)
def test_the_output_has_the_documented_shapes(kind: Normalisation) -> None:
    output = a_discriminator(with_normalisation(kind)).eval()(patches_of(8), 4, statistics=True)
    assert output.logits.shape == (8,)
    assert [tuple(each.shape) for each in output.features] == [(8, 8, 16, 16), (8, 16, 8, 8)]
    assert [tuple(mean.shape) for mean in output.means] == [(2, 8), (2, 16)]
    assert [tuple(variance.shape) for variance in output.variances] == [(2, 8), (2, 16)]
    assert output.statistics.shape == (2, 2 * (8 + 16))


@pytest.mark.parametrize("kind", NORMALISATIONS)
def test_statistics_are_those_of_the_convolutions_before_their_normalisation(kind: Normalisation) -> None:
    network, x = a_discriminator(with_normalisation(kind)).eval(), patches_of(8)
    output = network(x, 4, statistics=True)
    inputs = (x, *output.features)
    parts = []
    for number, block in enumerate(network.blocks):
        assert isinstance(block, Block)
        outputs = F.conv2d(inputs[number], block.conv.weight, block.conv.bias, stride=2, padding=1)
        values = outputs.detach().double().numpy().reshape(2, 4, *outputs.shape[1:])
        mean, variance = values.mean((1, 3, 4)), values.var((1, 3, 4))
        np.testing.assert_allclose(output.means[number].detach().numpy(), mean, rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(output.variances[number].detach().numpy(), variance, rtol=1e-4, atol=1e-7)
        parts += [mean, np.log(variance + SMALLEST_VARIANCE)]
    expected = np.concatenate(parts, axis=1)
    np.testing.assert_allclose(output.statistics.detach().numpy(), expected, rtol=1e-4, atol=1e-4)


def test_statistics_have_gradients() -> None:
    network = a_discriminator()
    network(patches_of(8), 4, statistics=True).statistics.sum().backward()
    first = network.blocks[0]
    assert isinstance(first, Block)
    assert first.conv.weight.grad is not None
    assert first.conv.weight.grad.any()


def test_statistics_that_a_pass_did_not_keep_are_an_error() -> None:
    output = a_discriminator(with_normalisation("batch"))(patches_of(8))
    with pytest.raises(ParameterError, match="statistics=True"):
        _ = output.statistics


def test_the_last_features_lead_to_the_logits() -> None:
    network = a_discriminator().eval()
    output = network(patches_of(8), 4)
    flat = output.features[-1].flatten(1)
    assert network.head.bias is not None
    expected = flat @ network.head.weight[0] + network.head.bias[0]
    torch.testing.assert_close(output.logits, expected, rtol=1e-5, atol=1e-6)


@torch.no_grad()
def test_a_map_of_one_patch_and_a_larger_map_are_classified_by_the_same_head() -> None:
    network = a_discriminator().eval()
    patch = network(patches_of(8), 4).features[-1]
    as_a_map = F.conv2d(patch, network.head.weight.view(1, 16, 8, 8), network.head.bias)
    assert network.classify(patch).shape == (8,)
    torch.testing.assert_close(network.classify(patch), as_a_map[:, 0, 0, 0], rtol=1e-5, atol=1e-6)


@torch.no_grad()
@pytest.mark.parametrize(("height", "width"), [(8, 9), (9, 8), (12, 12), (20, 9)])
def test_a_larger_map_is_classified_at_every_place_where_a_patch_fits(height: int, width: int) -> None:
    network = a_discriminator().eval()
    features = torch.randn(2, 16, height, width, generator=torch.Generator().manual_seed(0))
    logits = network.classify(features)
    assert logits.shape == (2, height - 7, width - 7)
    for top in range(height - 7):
        for left in range(width - 7):
            alone = network.classify(features[:, :, top : top + 8, left : left + 8])
            torch.testing.assert_close(logits[:, top, left], alone, rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_a_larger_image_gives_a_map_of_logits() -> None:
    network = a_discriminator().eval()
    images = patches_of(8).reshape(2, 2, 2, 3, 32, 32).permute(0, 3, 1, 4, 2, 5).reshape(2, 3, 64, 64)
    logits = network(images, 1).logits
    assert logits.shape == (2, 9, 9)
    torch.testing.assert_close(network(images[1:], 1).logits, logits[1:], rtol=1e-4, atol=1e-5)


def test_nothing_hooks_into_the_network() -> None:
    network = a_discriminator()
    network(patches_of(8), 4, statistics=True)
    for module in network.modules():
        assert not module._forward_hooks
        assert not module._forward_pre_hooks
        assert not module._backward_hooks


@torch.no_grad()
def test_an_image_beside_another_keeps_its_logits() -> None:
    network = a_discriminator().eval()
    image, neighbour, other = patches_of(4, seed=1), patches_of(4, seed=2), patches_of(4, seed=3) * 0.1
    beside = network(torch.cat([image, neighbour]), 4).logits[:4]
    assert torch.equal(beside, network(torch.cat([image, other]), 4).logits[:4])
    torch.testing.assert_close(beside, network(image, 4).logits, rtol=1e-5, atol=1e-6)
    in_one_group = network(torch.cat([image, neighbour])).logits[:4]
    assert not torch.allclose(beside, in_one_group, atol=1e-4)


@torch.no_grad()
def test_patchnorm_makes_no_difference_between_training_and_evaluation() -> None:
    network, x = a_discriminator(), patches_of(8)
    assert torch.equal(network.train()(x, 4).logits, network.eval()(x, 4).logits)


def test_patchnorm_is_the_default() -> None:
    norms = [block.norm for block in Discriminator(TINY).blocks if isinstance(block, Block)]
    assert len(norms) == 2
    assert all(isinstance(norm, PatchNorm2d) for norm in norms)


@torch.no_grad()
def test_batch_normalisation_keeps_running_statistics_with_momentum_a_tenth() -> None:
    network, x = a_discriminator(with_normalisation("batch")).train(), patches_of(8)
    first = network.blocks[0]
    assert isinstance(first, Block)
    assert isinstance(first.norm, nn.BatchNorm2d)
    assert first.norm.momentum == 0.1
    network(x, 4)
    outputs = first.conv(x)
    assert first.norm.running_mean is not None
    assert first.norm.running_var is not None
    torch.testing.assert_close(first.norm.running_mean, 0.1 * outputs.mean((0, 2, 3)), rtol=1e-5, atol=1e-6)
    unbiased = outputs.var((0, 2, 3), unbiased=True)
    torch.testing.assert_close(first.norm.running_var, 0.9 + 0.1 * unbiased, rtol=1e-5, atol=1e-6)


def test_logits_are_not_squeezed_between_0_and_1() -> None:
    network = a_discriminator().eval()
    with torch.no_grad():
        network.head.weight.mul_(1000)
    logits = network(patches_of(8), 4).logits
    assert logits.min() < 0
    assert logits.max() > 1
