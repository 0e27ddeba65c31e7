"""A residual discriminator does what a plain one does, within its bounds, and from each image alone."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from discopatch.bench.cost import multiplications
from discopatch.encoders import DiscriminatorEncoder
from discopatch.images import Transform
from discopatch.model import Networks, Weights
from discopatch.model.discriminator import SMALLEST_VARIANCE
from discopatch.model.residual import NormalisedConv2d, ResidualBlock, Stage
from discopatch.training import get_preset
from tests.model.samples import patches_of
from tests.samples import TINY_RESIDUAL, one_camera, residual_weights

PRESET = get_preset("residual").architecture
PATCHNORM = replace(TINY_RESIDUAL, normalisation="patch")


def images_of(count: int, side: int = 64) -> Tensor:
    return torch.rand(count, 3, side, side, generator=torch.Generator().manual_seed(3)) * 2 - 1


def test_the_network_of_the_preset_keeps_its_bounds_of_work_and_size(tmp_path: Path) -> None:
    discriminator = Networks.from_seed(PRESET, 0).discriminator
    assert sum(parameter.numel() for parameter in discriminator.parameters()) == 4_363_889
    assert multiplications(PRESET, size=256) == 872_718_336 <= 0.9e9
    assert PRESET.stride == 32
    assert PRESET.statistics == 2 * (32 + 40 + 80 + 160 + 320)
    Weights(discriminator, Transform()).save(tmp_path / "half", dtype=torch.float16)
    assert (tmp_path / "half").stat().st_size <= 13e6


def reference(block: ResidualBlock, x: Tensor) -> Tensor:
    """He et al.'s basic block from torch's own functions."""

    def convolved(part: NormalisedConv2d, given: Tensor) -> Tensor:
        conv, norm = part.conv, part.norm
        assert isinstance(norm, nn.BatchNorm2d)
        assert isinstance(conv.padding, tuple)
        given = F.conv2d(given, conv.weight, None, conv.stride, conv.padding)
        return F.batch_norm(given, norm.running_mean, norm.running_var, norm.weight, norm.bias, eps=1e-5)

    inner = convolved(block.second, F.leaky_relu(convolved(block.first, x), 0.01))
    return F.leaky_relu(inner + (x if block.shortcut is None else convolved(block.shortcut, x)), 0.01)


@torch.no_grad()
@pytest.mark.parametrize("blocks", [1, 3])
def test_a_stage_is_its_blocks_and_its_statistics_are_those_of_its_output(blocks: int) -> None:
    discriminator = residual_weights(replace(TINY_RESIDUAL, blocks=blocks)).discriminator
    stem, *stages = discriminator.blocks
    x = stem(images_of(2), 1).features
    for stage in stages:
        assert isinstance(stage, Stage)
        found = stage(x, 1, statistics=True)
        for block in stage.blocks:
            assert isinstance(block, ResidualBlock)
            x = reference(block, x)
        torch.testing.assert_close(found.features, x, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(found.mean, x.numpy().mean((2, 3)), rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(found.variance, x.numpy().var((2, 3)), rtol=1e-3, atol=1e-5)


@torch.no_grad()
def test_every_cell_of_the_map_before_the_last_has_a_logit_and_a_patch_their_mean() -> None:
    network = residual_weights().discriminator
    large, patch = network(images_of(2), 1, statistics=True), network(patches_of(5))
    assert [tuple(each.shape[1:]) for each in large.features] == [(4, 32, 32), (6, 16, 16), (8, 8, 8), (10, 4, 4)]
    assert large.logits.shape == (2, 8, 8)
    assert network.head.bias is not None
    expected = torch.einsum("bchw,c->bhw", large.features[-2], network.head.weight[0, :, 0, 0]) + network.head.bias
    torch.testing.assert_close(large.logits, expected, rtol=1e-4, atol=1e-5)
    assert patch.logits.shape == (5,)
    cells = torch.einsum("bchw,c->bhw", patch.features[-2], network.head.weight[0, :, 0, 0]) + network.head.bias
    torch.testing.assert_close(patch.logits, cells.mean((1, 2)), rtol=1e-4, atol=1e-5)
    assert large.statistics.shape == (2, TINY_RESIDUAL.statistics)


@torch.no_grad()
def test_the_statistics_of_the_stem_are_those_of_its_convolution() -> None:
    network = residual_weights(replace(TINY_RESIDUAL, stem=7)).discriminator
    values = F.conv2d(images_of(2), network.get_parameter("blocks.0.conv.weight"), stride=2, padding=3).numpy()
    expected = np.concatenate([values.mean((2, 3)), np.log(values.var((2, 3)) + SMALLEST_VARIANCE)], 1)
    found = network(images_of(2), 1, statistics=True).statistics[:, :8]
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-4)


@torch.no_grad()
@pytest.mark.parametrize("architecture", [TINY_RESIDUAL, PATCHNORM, replace(TINY_RESIDUAL, normalisation="group")])
@pytest.mark.parametrize("patches", ["dense", 4])
def test_an_images_features_do_not_depend_on_its_neighbours(architecture, patches) -> None:
    encoder = DiscriminatorEncoder(residual_weights(architecture), patches=patches)
    pixels = np.stack([image.pixels for image in one_camera(3)])
    together = encoder.extract_pixels(pixels)
    logits, statistics = encoder.extractor(torch.from_numpy(pixels)).values()
    np.testing.assert_allclose(logits, together.logits, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(statistics, together.statistics, rtol=1e-3, atol=1e-4)
    for place in range(3):
        alone = encoder.extract_pixels(pixels[place : place + 1])
        assert all(map(np.array_equal, alone, together.select(slice(place, place + 1))))


@pytest.mark.parametrize("architecture", [TINY_RESIDUAL, PATCHNORM])
def test_logits_and_statistics_reach_every_parameter(architecture) -> None:
    network = Networks.from_seed(architecture, 0).discriminator
    output = network(images_of(4), 1, statistics=True)
    (output.statistics.square().sum() + output.logits.square().sum()).backward()
    for name, parameter in network.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().sum() > 0, name


def test_weights_survive_their_file_with_the_same_digest(tmp_path: Path) -> None:
    weights = residual_weights(replace(TINY_RESIDUAL, blocks=2, stem=7))
    weights.save(tmp_path / "weights.safetensors")
    found = Weights.load(tmp_path / "weights.safetensors")
    assert found.digest == weights.digest
    assert found.discriminator.architecture == weights.discriminator.architecture
    assert not found.discriminator.training
    with torch.no_grad():
        assert torch.equal(found.discriminator(images_of(1), 1).logits, weights.discriminator(images_of(1), 1).logits)
