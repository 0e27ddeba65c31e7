"""One step is the paper's two updates."""

import copy
from collections.abc import Sequence

import pytest
import torch
import torch.nn.functional as F

from discopatch.model import Networks
from discopatch.training import TrainingConfig
from discopatch.training.step import Losses, Noise, adversarial_step, fake_loss, kl_divergence, real_loss
from discopatch.training.teachers import AuxiliaryDiscriminator
from tests.training.tiny import ARCHITECTURE, tiny_config


@pytest.fixture
def networks() -> Networks:
    return Networks.from_seed(ARCHITECTURE, seed=3)


@pytest.fixture
def real() -> torch.Tensor:
    return torch.rand(8, 3, 16, 16, generator=torch.Generator().manual_seed(1)) * 2 - 1


@pytest.fixture
def noise() -> Noise:
    return Noise.draw(8, ARCHITECTURE.latent, torch.Generator().manual_seed(2))


def adams(networks: Networks) -> list[torch.optim.Adam]:
    return [torch.optim.Adam(network.parameters(), lr=1e-3) for network in (networks.vae, networks.discriminator)]


def plain_step(
    networks: Networks, optimisers: Sequence[torch.optim.Optimizer], real, noise, config: TrainingConfig | None = None
) -> Losses:
    auxiliary = AuxiliaryDiscriminator(networks.discriminator, tiny_config(), {})
    return adversarial_step(networks.vae, auxiliary, optimisers, real, noise, config or tiny_config())


def weights(network: torch.nn.Module) -> list[torch.Tensor]:
    return [parameter.detach().clone() for parameter in network.parameters()]


@pytest.mark.parametrize("grouping", ["batch", "image"])
def test_one_step_is_the_vae_update_and_then_the_discriminator_update_on_detached_fakes(
    networks, real, noise, grouping
) -> None:
    config = tiny_config(grouping=grouping)
    group = 4 if grouping == "image" else None
    reference = copy.deepcopy(networks)
    for_vae, for_discriminator = adams(reference)
    vae, discriminator = reference.vae, reference.discriminator

    fake = vae(real, noise.latent, noise.prior)
    fakes = (fake.reconstructed, fake.generated)
    probability = [torch.sigmoid(discriminator(each, group).logits) for each in fakes]
    vae_loss = (
        ((fake.reconstructed - real) ** 2).mean()
        + 1e-4 * (-0.5 * (1 + fake.log_variance - fake.mean**2 - fake.log_variance.exp()).sum(1)).mean()
        + 1e-3 * F.binary_cross_entropy(probability[0], torch.ones(8))
        + 1e-3 * F.binary_cross_entropy(probability[1], torch.ones(8))
    )
    vae_loss.backward()
    for_vae.step()
    for_discriminator.zero_grad()
    on_real = F.binary_cross_entropy(torch.sigmoid(discriminator(real, group).logits), torch.ones(8))
    on_fake = [
        F.binary_cross_entropy(torch.sigmoid(discriminator(each.detach(), group).logits), torch.zeros(8))
        for each in fakes
    ]
    discriminator_loss = (on_real + 0.5 * on_fake[0] + 0.5 * on_fake[1]) / 2
    discriminator_loss.backward()
    for_discriminator.step()

    losses = plain_step(networks, adams(networks), real, noise, config)

    assert losses.vae.item() == pytest.approx(vae_loss.item(), rel=1e-5)
    assert losses.discriminator.item() == pytest.approx(discriminator_loss.item(), rel=1e-5)
    for ours, theirs in ((networks.vae, vae), (networks.discriminator, discriminator)):
        for (name, one), other in zip(ours.named_parameters(), theirs.parameters(), strict=True):
            # A bias before a normalisation has no gradient but rounding noise, which Adam blows up to full steps.
            if not name.endswith("conv.bias"):
                torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def test_each_update_leaves_the_other_network_untouched(networks, real, noise) -> None:
    for moving, resting in (("vae", "discriminator"), ("discriminator", "vae")):
        before = weights(getattr(networks, resting))
        optimiser = torch.optim.Adam(getattr(networks, moving).parameters(), lr=1e-2)
        moved = weights(getattr(networks, moving))
        plain_step(networks, [optimiser], real, noise)
        assert all(map(torch.equal, before, weights(getattr(networks, resting))))
        assert not all(map(torch.equal, moved, weights(getattr(networks, moving))))


def test_the_gradient_of_one_network_holds_nothing_of_the_others_loss(networks, real, noise) -> None:
    still = [torch.optim.SGD(network.parameters(), lr=0.0) for network in (networks.vae, networks.discriminator)]
    plain_step(networks, still, real, noise)
    parameters = list(networks.discriminator.parameters())
    together = [parameter.grad.clone() for parameter in parameters if parameter.grad is not None]
    heavy = tiny_config(weight_reconstructed=10.0, weight_generated=10.0, weight_kl=10.0)
    plain_step(networks, still, real, noise, heavy)
    again = [parameter.grad for parameter in parameters if parameter.grad is not None]
    assert len(together) == len(parameters)
    assert all(map(torch.equal, together, again))


def test_each_batch_passes_the_discriminator_once_for_both_updates(networks, real, noise) -> None:
    passed = []
    networks.discriminator.register_forward_hook(lambda module, inputs, output: passed.append(len(inputs[0])))
    plain_step(networks, adams(networks), real, noise)
    assert passed == [8, 8, 8]


def test_losses_on_logits_are_the_cross_entropies_and_do_not_saturate() -> None:
    logits = torch.tensor([-3.0, 0.0, 2.0])
    p = torch.sigmoid(logits)
    assert real_loss(logits).item() == pytest.approx(-p.log().mean().item(), rel=1e-6)
    assert fake_loss(logits).item() == pytest.approx(-(1 - p).log().mean().item(), rel=1e-6)
    assert real_loss(torch.tensor([-500.0])).item() == 500.0


def test_kl_divergence_is_torchs_summed_over_the_latent() -> None:
    mean, log_variance = torch.randn(5, 7), torch.randn(5, 7)
    posterior = torch.distributions.Normal(mean, (0.5 * log_variance).exp())
    expected = torch.distributions.kl_divergence(posterior, torch.distributions.Normal(0.0, 1.0)).sum(1).mean()
    assert kl_divergence(mean, log_variance).item() == pytest.approx(expected.item(), rel=1e-5)
    assert kl_divergence(torch.zeros(2, 3), torch.zeros(2, 3)).item() == 0.0
