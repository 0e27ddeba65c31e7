"""The discriminator: patches in, one logit each; what it saw on the way is there for the asking."""

from dataclasses import replace
from typing import get_args

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from discopatch.model import Architecture, Discriminator, Normalisation, PatchNorm2d
from discopatch.model.blocks import Block

from .samples import TINY, a_discriminator, patches_of

NORMALISATIONS: tuple[Normalisation, ...] = get_args(Normalisation)


def with_normalisation(kind: Normalisation) -> Architecture:
    return replace(TINY, normalisation=kind)


@pytest.mark.parametrize("kind", NORMALISATIONS)
def test_every_normalisation_gives_one_finite_logit_a_patch(kind: Normalisation) -> None:
    network = a_discriminator(with_normalisation(kind))
    for mode in (True, False):
        logits = network.train(mode)(patches_of(8), 4)
        assert logits.shape == (8,)
        assert logits.isfinite().all()
        logits.sum().backward()
    assert all(parameter.grad is not None for parameter in network.parameters())


@pytest.mark.parametrize("kind", NORMALISATIONS)
@pytest.mark.parametrize("patches", [None, 4])
def test_inspection_has_the_logits_of_forward(kind: Normalisation, patches: int | None) -> None:
    network = a_discriminator(with_normalisation(kind)).eval()
    x = patches_of(8)
    assert torch.equal(network.inspect(x, patches).logits, network(x, patches))


def test_inspection_has_the_documented_shapes() -> None:
    inspection = a_discriminator().eval().inspect(patches_of(8), 4)
    assert inspection.logits.shape == (8,)
    assert [tuple(map_.shape) for map_ in inspection.features] == [(8, 8, 16, 16), (8, 16, 8, 8)]
    assert [tuple(mean.shape) for mean in inspection.means] == [(2, 8), (2, 16)]
    assert [tuple(variance.shape) for variance in inspection.variances] == [(2, 8), (2, 16)]


def test_inspected_statistics_are_those_of_the_convolutions() -> None:
    network, x = a_discriminator().eval(), patches_of(8)
    inspection = network.inspect(x, 4)
    inputs = (x, *inspection.features)
    for number, block in enumerate(network.blocks):
        assert isinstance(block, Block)
        outputs = F.conv2d(inputs[number], block.conv.weight, block.conv.bias, stride=2, padding=1)
        for image in range(2):
            values = outputs[4 * image : 4 * image + 4].detach().double().numpy()
            mean, variance = inspection.means[number][image], inspection.variances[number][image]
            np.testing.assert_allclose(mean.detach().numpy(), values.mean((0, 2, 3)), rtol=1e-4, atol=1e-6)
            np.testing.assert_allclose(variance.detach().numpy(), values.var((0, 2, 3)), rtol=1e-4, atol=1e-7)


def test_inspected_features_lead_to_the_logits() -> None:
    network = a_discriminator().eval()
    inspection = network.inspect(patches_of(8), 4)
    flat = inspection.features[-1].flatten(1)
    expected = flat @ network.head.weight[0] + network.head.bias[0]
    torch.testing.assert_close(inspection.logits, expected, rtol=1e-5, atol=1e-6)


@torch.no_grad()
def test_a_map_of_one_patch_and_a_larger_map_are_judged_by_the_same_head() -> None:
    network = a_discriminator().eval()
    patch = network.features(patches_of(8), 4)
    as_a_map = F.conv2d(patch, network.head.weight.view(1, 16, 8, 8), network.head.bias)
    assert network.judge(patch).shape == (8,)
    torch.testing.assert_close(network.judge(patch), as_a_map[:, 0, 0, 0], rtol=1e-5, atol=1e-6)


@torch.no_grad()
@pytest.mark.parametrize(("height", "width"), [(8, 9), (9, 8), (12, 12), (20, 9)])
def test_a_larger_map_is_judged_at_every_place_where_a_patch_fits(height: int, width: int) -> None:
    network = a_discriminator().eval()
    features = torch.randn(2, 16, height, width, generator=torch.Generator().manual_seed(0))
    logits = network.judge(features)
    assert logits.shape == (2, height - 7, width - 7)
    for top in range(height - 7):
        for left in range(width - 7):
            alone = network.judge(features[:, :, top : top + 8, left : left + 8])
            torch.testing.assert_close(logits[:, top, left], alone, rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_a_larger_picture_gives_a_map_of_logits() -> None:
    network = a_discriminator().eval()
    pictures = patches_of(8).reshape(2, 2, 2, 3, 32, 32).permute(0, 3, 1, 4, 2, 5).reshape(2, 3, 64, 64)
    logits = network(pictures, 1)
    assert logits.shape == (2, 9, 9)
    inspection = network.inspect(pictures, 1)
    assert torch.equal(inspection.logits, logits)
    torch.testing.assert_close(network(pictures[1:], 1), logits[1:], rtol=1e-4, atol=1e-5)


def test_nothing_hooks_into_the_network() -> None:
    network = a_discriminator()
    network.inspect(patches_of(8), 4)
    for module in network.modules():
        assert not module._forward_hooks
        assert not module._forward_pre_hooks
        assert not module._backward_hooks


@torch.no_grad()
def test_an_image_beside_another_keeps_its_logits() -> None:
    network = a_discriminator().eval()
    image, neighbour, other = patches_of(4, seed=1), patches_of(4, seed=2), patches_of(4, seed=3) * 0.1
    beside = network(torch.cat([image, neighbour]), 4)
    assert torch.equal(beside[:4], network(torch.cat([image, other]), 4)[:4])
    torch.testing.assert_close(beside[:4], network(image, 4), rtol=1e-5, atol=1e-6)
    assert not torch.allclose(beside[:4], network(torch.cat([image, neighbour]))[:4], atol=1e-4), "one group for all"


@torch.no_grad()
def test_patchnorm_makes_no_difference_between_training_and_evaluation() -> None:
    network, x = a_discriminator(), patches_of(8)
    assert torch.equal(network.train()(x, 4), network.eval()(x, 4))


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


def test_a_real_patch_is_no_sigmoid_away_from_its_logit() -> None:
    """Logits are not squeezed into (0, 1)."""
    network = a_discriminator().eval()
    with torch.no_grad():
        network.head.weight.mul_(1000)
    logits = network(patches_of(8), 4)
    assert logits.min() < 0
    assert logits.max() > 1
