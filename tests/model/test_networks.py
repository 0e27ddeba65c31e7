"""The paper's networks: parameters, shapes, logits, features and statistics of every layer."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from discopatch.errors import ParameterError
from discopatch.model import VAE, Architecture, Discriminator, Networks, Normalisation
from discopatch.model.layers import SMALLEST_VARIANCE, Block
from discopatch.training import PRESETS
from tests.model.samples import a_discriminator, normal, patches_of
from tests.samples import TINY, TINY_INVERTED

NORMALISATIONS: tuple[Normalisation, ...] = ("patch", "batch", "group", "instance")


def n_parameters(make: Any, architecture: Architecture) -> int:
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in make(architecture).parameters())


def test_the_paper_preset_has_the_papers_parameters() -> None:
    architecture = PRESETS["paper"].architecture
    assert n_parameters(Discriminator, architecture) == 6_218_753
    assert n_parameters(VAE, architecture) == 62_899_587
    # The printed 69,240,517 is no model of the appendix: it has 128 pixels, five layers, and a second, idle head.
    printed = Architecture(patch_size=128, hidden=(64, 128, 256, 512, 1024), latent=1024)
    assert n_parameters(Discriminator, printed) + n_parameters(VAE, printed) + printed.flat + 1 == 69_240_517


@pytest.mark.parametrize("kind", NORMALISATIONS)
def test_statistics_are_those_of_the_convolutions_before_their_normalisation(kind: Normalisation) -> None:
    network, x = a_discriminator(replace(TINY, normalisation=kind)).eval(), patches_of(8)
    output = network(x, 4, statistics=True)
    assert torch.equal(output.logits, network(x, 4).logits)
    assert output.logits.shape == (8,)
    assert [tuple(each.shape) for each in output.features] == [(8, 8, 16, 16), (8, 16, 8, 8)]
    inputs = (x, *output.features)
    parts = []
    for number, block in enumerate(network.blocks):
        assert isinstance(block, Block)
        outputs = F.conv2d(inputs[number], block.conv.weight, block.conv.bias, stride=2, padding=1)
        values = outputs.detach().double().numpy().reshape(2, 4, *outputs.shape[1:])
        mean, variance = values.mean((1, 3, 4)), values.var((1, 3, 4))
        parts += [mean, np.log(variance + SMALLEST_VARIANCE)]
    np.testing.assert_allclose(output.statistics.detach(), np.concatenate(parts, axis=1), rtol=1e-4, atol=1e-4)
    output.statistics.sum().backward()
    first = network.blocks[0].get_parameter("conv.weight").grad
    assert first is not None
    assert first.any()


@torch.no_grad()
def test_an_image_beside_another_keeps_its_logits() -> None:
    network = a_discriminator().eval()
    image, neighbour, other = patches_of(4, seed=1), patches_of(4, seed=2), patches_of(4, seed=3) * 0.1
    beside = network(torch.cat([image, neighbour]), 4).logits[:4]
    assert torch.equal(beside, network(torch.cat([image, other]), 4).logits[:4])
    assert torch.equal(beside, network.train()(torch.cat([image, other]), 4).logits[:4])
    torch.testing.assert_close(beside, network(image, 4).logits, rtol=1e-5, atol=1e-6)
    assert not torch.allclose(beside, network(torch.cat([image, neighbour])).logits[:4], atol=1e-4)


def test_the_vae_draws_its_latent_around_the_mean_and_stays_within_the_range_of_pixels() -> None:
    vae, real, noise = Networks.from_seed(TINY, 0).vae.eval(), patches_of(6), normal(6, 8)
    with torch.no_grad():
        vae.to_pixels.weight.mul_(1000)
    fake = vae(real, noise, normal(6, 8, seed=1))
    assert fake.reconstructed.shape == fake.generated.shape == (6, 3, 32, 32)
    latent = fake.mean + noise * fake.log_variance.exp().sqrt()
    torch.testing.assert_close(fake.reconstructed, vae.decode(latent), rtol=1e-4, atol=1e-3)
    torch.testing.assert_close(fake.generated, vae.decode(normal(6, 8, seed=1)), rtol=1e-4, atol=1e-3)
    assert 0.99 < fake.generated.abs().max() <= 1


def test_the_same_seed_makes_the_same_networks_and_leaves_the_random_state_alone() -> None:
    before = torch.get_rng_state()
    first, again, other = (
        torch.cat([each.flatten() for each in (*made.vae.parameters(), *made.discriminator.parameters())])
        for made in (Networks.from_seed(TINY, seed) for seed in (5, 5, 6))
    )
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


@pytest.mark.parametrize(
    ("architecture", "changes", "named"),
    [
        (TINY, {"normalisation": "layer"}, "normalisation"),
        (TINY, {"normalisation": "none"}, "normalisation"),
        (TINY, {"patch_size": 34}, "patch_size"),
        (TINY, {"hidden": ()}, "hidden"),
        (TINY_INVERTED, {"hidden": (4, 6, 8, 14)}, "hidden"),
        (TINY_INVERTED, {"normalisation": "batch"}, "normalisation"),
        (TINY_INVERTED, {"depths": (1, 2, 2, 3, 3, 4)}, "depths"),
        (TINY_INVERTED, {"embedding": -1}, "embedding"),
    ],
)
def test_an_impossible_architecture_is_refused(architecture: Architecture, changes: Any, named: str) -> None:
    with pytest.raises(ParameterError, match=named):
        replace(architecture, **changes)
