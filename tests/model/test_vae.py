"""The VAE: one reconstruction of each patch, one generation from each draw, both in the range of pixels."""

import torch
from torch import nn

from discopatch.model import VAE, Discriminator, Networks
from discopatch.model.layers import Block
from tests.model.samples import normal, patches_of
from tests.samples import TINY


def a_vae() -> VAE:
    return Networks.from_seed(TINY, 0).vae


def test_the_output_has_the_shapes_of_its_patches() -> None:
    fake = a_vae()(patches_of(6), normal(6, 8), normal(6, 8, seed=1))
    assert fake.reconstructed.shape == fake.generated.shape == (6, 3, 32, 32)
    assert fake.mean.shape == fake.log_variance.shape == (6, 8)


def test_fakes_stay_within_the_range_of_pixels() -> None:
    vae = a_vae()
    with torch.no_grad():
        vae.to_pixels.weight.mul_(1000)
    fake = vae(patches_of(6), normal(6, 8), normal(6, 8, seed=1))
    for patches in (fake.reconstructed, fake.generated):
        assert patches.abs().max() <= 1
        assert patches.min() < -0.99
        assert patches.max() > 0.99


def test_the_latent_is_drawn_around_its_mean() -> None:
    vae, real, noise = a_vae().eval(), patches_of(6), normal(6, 8)
    fake = vae(real, noise, normal(6, 8, seed=1))
    latent = fake.mean + noise * fake.log_variance.exp().sqrt()
    torch.testing.assert_close(fake.reconstructed, vae.decode(latent), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(fake.generated, vae.decode(normal(6, 8, seed=1)), rtol=1e-5, atol=1e-6)


def test_the_encoder_has_the_discriminators_body() -> None:
    def convolutions(blocks: nn.ModuleList) -> list[tuple[int, ...]]:
        return [tuple(block.conv.weight.shape) for block in blocks if isinstance(block, Block)]

    assert convolutions(VAE(TINY).encoder) == convolutions(Discriminator(TINY).blocks)


def test_the_decoder_mirrors_the_encoder() -> None:
    vae, x = a_vae(), patches_of(2)
    entering = []
    for block in vae.encoder:
        x = block(x).features
        entering.append(tuple(x.shape))
    leaving = [entering[-1]]
    for block in vae.decoder:
        x = block(x).features
        leaving.append(tuple(x.shape))
    assert leaving[:-1] == entering[::-1]
    assert leaving[-1] == (2, TINY.hidden[0], 32, 32)


def test_the_same_seed_makes_the_same_networks_and_leaves_the_random_state_alone() -> None:
    before = torch.get_rng_state()
    made = [Networks.from_seed(TINY, seed) for seed in (5, 5, 6)]
    assert torch.equal(torch.get_rng_state(), before)
    first, again, other = (
        torch.cat([p.flatten() for p in (*networks.vae.parameters(), *networks.discriminator.parameters())])
        for networks in made
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
