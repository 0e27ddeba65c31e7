"""The VAE: one reconstruction of each patch, one generation from each draw, both in the range of pixels."""

import torch
from torch import nn

from discopatch.model import VAE, Discriminator, Pair
from discopatch.model.blocks import Block

from .samples import TINY, normal, patches_of


def a_vae() -> VAE:
    return Pair.from_seed(TINY, 0).vae


def test_a_forgery_has_the_shapes_of_its_patches() -> None:
    forged = a_vae()(patches_of(6), normal(6, 8), normal(6, 8, seed=1))
    assert forged.reconstructed.shape == forged.generated.shape == (6, 3, 32, 32)
    assert forged.mean.shape == forged.log_variance.shape == (6, 8)


def test_forgeries_stay_within_the_range_of_pixels() -> None:
    vae = a_vae()
    with torch.no_grad():
        vae.to_pixels.weight.mul_(1000)
    forged = vae(patches_of(6), normal(6, 8), normal(6, 8, seed=1))
    for patches in (forged.reconstructed, forged.generated):
        assert patches.abs().max() <= 1
        assert patches.min() < -0.99
        assert patches.max() > 0.99


def test_the_latent_is_drawn_around_its_mean() -> None:
    vae, real, noise = a_vae().eval(), patches_of(6), normal(6, 8)
    forged = vae(real, noise, normal(6, 8, seed=1))
    latent = forged.mean + noise * forged.log_variance.exp().sqrt()
    torch.testing.assert_close(forged.reconstructed, vae.decode(latent), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(forged.generated, vae.decode(normal(6, 8, seed=1)), rtol=1e-5, atol=1e-6)


def test_the_encoder_has_the_discriminators_body() -> None:
    def convolutions(blocks: nn.ModuleList) -> list[tuple[int, ...]]:
        return [tuple(block.conv.weight.shape) for block in blocks if isinstance(block, Block)]

    assert convolutions(VAE(TINY).encoder) == convolutions(Discriminator(TINY).blocks)


def test_the_decoder_mirrors_the_encoder() -> None:
    vae, x = a_vae(), patches_of(2)
    going_in = []
    for block in vae.encoder:
        x = block(x)
        going_in.append(tuple(x.shape))
    coming_out = [going_in[-1]]
    for block in vae.decoder:
        x = block(x)
        coming_out.append(tuple(x.shape))
    assert coming_out[:-1] == going_in[::-1]
    assert coming_out[-1] == (2, TINY.hidden[0], 32, 32)


def test_the_same_seed_makes_the_same_pair_and_leaves_the_random_state_alone() -> None:
    before = torch.get_rng_state()
    pairs = [Pair.from_seed(TINY, seed) for seed in (5, 5, 6)]
    assert torch.equal(torch.get_rng_state(), before)
    first, again, other = (
        torch.cat([p.flatten() for p in (*pair.vae.parameters(), *pair.discriminator.parameters())]) for pair in pairs
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
