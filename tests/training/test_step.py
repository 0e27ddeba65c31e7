import copy

import pytest
import torch
import torch.nn.functional as F

from discopatch.model import Pair
from discopatch.training.critic import Critic
from discopatch.training.step import Noise, adversarial_step, called_fake, called_real, kl_divergence
from tests.training.tiny import ARCHITECTURE, tiny_recipe


@pytest.fixture
def pair() -> Pair:
    return Pair.from_seed(ARCHITECTURE, seed=3)


@pytest.fixture
def real() -> torch.Tensor:
    return torch.rand(8, 3, 16, 16, generator=torch.Generator().manual_seed(1)) * 2 - 1


@pytest.fixture
def noise() -> Noise:
    return Noise.draw(8, ARCHITECTURE.latent, torch.Generator().manual_seed(2))


def adams(pair: Pair) -> list[torch.optim.Adam]:
    return [torch.optim.Adam(network.parameters(), lr=1e-3) for network in (pair.vae, pair.discriminator)]


def weights(network: torch.nn.Module) -> list[torch.Tensor]:
    return [parameter.detach().clone() for parameter in network.parameters()]


@pytest.mark.parametrize("grouping", ["batch", "image"])
def test_one_step_is_the_vae_update_and_then_the_discriminator_update_on_detached_forgeries(
    pair, real, noise, grouping
) -> None:
    recipe = tiny_recipe(grouping=grouping)
    group = 4 if grouping == "image" else None
    reference = copy.deepcopy(pair)
    for_vae, for_discriminator = adams(reference)
    vae, judge = reference.vae, reference.discriminator

    forged = vae(real, noise.latent, noise.prior)
    probability = [torch.sigmoid(judge(forgery, group)) for forgery in (forged.reconstructed, forged.generated)]
    vae_loss = (
        ((forged.reconstructed - real) ** 2).mean()
        + 1e-4 * (-0.5 * (1 + forged.log_variance - forged.mean**2 - forged.log_variance.exp()).sum(1)).mean()
        + 1e-3 * F.binary_cross_entropy(probability[0], torch.ones(8))
        + 1e-3 * F.binary_cross_entropy(probability[1], torch.ones(8))
    )
    vae_loss.backward()
    for_vae.step()
    for_discriminator.zero_grad()
    on_real = F.binary_cross_entropy(torch.sigmoid(judge(real, group)), torch.ones(8))
    on_forged = [
        F.binary_cross_entropy(torch.sigmoid(judge(forgery.detach(), group)), torch.zeros(8))
        for forgery in (forged.reconstructed, forged.generated)
    ]
    discriminator_loss = (on_real + 0.5 * on_forged[0] + 0.5 * on_forged[1]) / 2
    discriminator_loss.backward()
    for_discriminator.step()

    losses = adversarial_step(pair.vae, Critic(pair.discriminator), adams(pair), real, noise, recipe)

    assert losses.vae.item() == pytest.approx(vae_loss.item(), rel=1e-5)
    assert losses.discriminator.item() == pytest.approx(discriminator_loss.item(), rel=1e-5)
    for ours, theirs in ((pair.vae, vae), (pair.discriminator, judge)):
        for (name, one), other in zip(ours.named_parameters(), theirs.parameters(), strict=True):
            # A bias before a normalisation has no gradient but rounding noise, which Adam blows up to full steps.
            if not name.endswith("conv.bias"):
                torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def test_each_update_leaves_the_other_network_untouched(pair, real, noise) -> None:
    for moving, resting in (("vae", "discriminator"), ("discriminator", "vae")):
        before = weights(getattr(pair, resting))
        optimiser = torch.optim.Adam(getattr(pair, moving).parameters(), lr=1e-2)
        moved = weights(getattr(pair, moving))
        adversarial_step(pair.vae, Critic(pair.discriminator), [optimiser], real, noise, tiny_recipe())
        assert all(map(torch.equal, before, weights(getattr(pair, resting))))
        assert not all(map(torch.equal, moved, weights(getattr(pair, moving))))


def test_the_gradient_of_one_network_holds_nothing_of_the_others_loss(pair, real, noise) -> None:
    still = [torch.optim.SGD(network.parameters(), lr=0.0) for network in (pair.vae, pair.discriminator)]
    adversarial_step(pair.vae, Critic(pair.discriminator), still, real, noise, tiny_recipe())
    together = [parameter.grad.clone() for parameter in pair.discriminator.parameters() if parameter.grad is not None]
    heavy = tiny_recipe(weight_reconstructed=10.0, weight_generated=10.0, weight_kl=10.0)
    adversarial_step(pair.vae, Critic(pair.discriminator), still, real, noise, heavy)
    again = [parameter.grad for parameter in pair.discriminator.parameters() if parameter.grad is not None]
    assert len(together) == len(list(pair.discriminator.parameters()))
    assert all(map(torch.equal, together, again))


def test_the_discriminator_judges_each_batch_once_for_both_updates(pair, real, noise) -> None:
    judged = []
    critic = Critic(pair.discriminator)
    critic.register_forward_hook(lambda module, inputs, output: judged.append(len(inputs[0])))
    adversarial_step(pair.vae, critic, adams(pair), real, noise, tiny_recipe())
    assert judged == [8, 8, 8]


def test_losses_on_logits_are_the_cross_entropies_and_do_not_saturate() -> None:
    logits = torch.tensor([-3.0, 0.0, 2.0])
    p = torch.sigmoid(logits)
    assert called_real(logits).item() == pytest.approx(-p.log().mean().item(), rel=1e-6)
    assert called_fake(logits).item() == pytest.approx(-(1 - p).log().mean().item(), rel=1e-6)
    assert called_real(torch.tensor([-500.0])).item() == 500.0


def test_kl_divergence_is_torchs_summed_over_the_latent() -> None:
    mean, log_variance = torch.randn(5, 7), torch.randn(5, 7)
    posterior = torch.distributions.Normal(mean, (0.5 * log_variance).exp())
    expected = torch.distributions.kl_divergence(posterior, torch.distributions.Normal(0.0, 1.0)).sum(1).mean()
    assert kl_divergence(mean, log_variance).item() == pytest.approx(expected.item(), rel=1e-5)
    assert kl_divergence(torch.zeros(2, 3), torch.zeros(2, 3)).item() == 0.0
