import copy

import pytest
import torch
import torch.nn.functional as F

from discopatch.model import Pair
from discopatch.training.critic import Critic
from discopatch.training.lesson import Lesson
from discopatch.training.step import (
    Noise,
    adversarial_step,
    called_fake,
    called_real,
    kl_divergence,
    lesson_loss,
    lesson_step,
)
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


@pytest.fixture
def lesson() -> Lesson:
    generator = torch.Generator().manual_seed(4)
    pictures = torch.rand(6, 3, 32, 32, generator=generator) * 2 - 1
    return Lesson.draw(pictures, generator, first=7)


@pytest.fixture
def critic(pair) -> Critic:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return Critic(pair.discriminator, defects=10)


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


@torch.no_grad()
@pytest.mark.parametrize("named", [0.0, 0.5])
def test_a_lesson_is_real_everywhere_against_spoiled_everywhere_and_names_for_both(critic, lesson, named) -> None:
    recipe = tiny_recipe(weight_spoiled=2.0, weight_named=named)
    judge, names = critic.discriminator, critic.names
    expected = 0.0
    for pictures, label, defects in (
        (lesson.pictures, 1.0, torch.zeros(6, dtype=torch.int64)),
        (lesson.spoiled, 0.0, torch.tensor([8, 9, 10, 1, 2, 3])),
    ):
        probabilities = torch.sigmoid(torch.cat([judge(picture[None], 1) for picture in pictures]))
        assert probabilities.shape == (6, 5, 5), "32 pixels are 8 cells, a patch is 4"
        expected += 2.0 * 0.5 * F.binary_cross_entropy(probabilities, torch.full_like(probabilities, label)).item()
        features = torch.cat([judge.features(picture[None], 1) for picture in pictures]).mean((2, 3))
        chances = torch.softmax(names(features), dim=1)
        expected += named * 0.5 * -chances[torch.arange(6), defects].log().mean().item()
    assert lesson_loss(critic, lesson, recipe).item() == pytest.approx(expected, rel=1e-5)


@torch.no_grad()
def test_a_critic_without_names_learns_the_rest_of_the_lesson(pair, critic, lesson) -> None:
    recipe = tiny_recipe(weight_spoiled=2.0)
    plain = lesson_loss(Critic(pair.discriminator), lesson, recipe)
    assert plain.item() == pytest.approx(lesson_loss(critic, lesson, recipe).item(), rel=1e-6)


def test_a_lesson_is_added_to_the_discriminators_loss_and_to_nothing_else(pair, critic, real, noise, lesson) -> None:
    recipe = tiny_recipe(weight_spoiled=1.0, weight_named=0.5)
    with torch.no_grad():
        alone = lesson_loss(critic, lesson, recipe).item()
    runs = {}
    for taught in (None, lesson):
        these = copy.deepcopy((pair.vae, critic))
        optimisers = [torch.optim.SGD(network.parameters(), lr=0.1) for network in these]
        losses = adversarial_step(*these, optimisers, real, noise, recipe, lesson=taught)
        runs[taught is not None] = (losses, *these)
    (without, vae, judge), (with_it, other_vae, other_judge) = runs[False], runs[True]
    assert without.spoiled.item() == 0
    assert with_it.spoiled.item() == pytest.approx(alone, rel=1e-6)
    assert with_it.discriminator.item() == pytest.approx(without.discriminator.item() + alone, rel=1e-6)
    assert [getattr(with_it, name) for name in ("vae", "reconstruction", "kl")] == [
        getattr(without, name) for name in ("vae", "reconstruction", "kl")
    ]
    assert all(map(torch.equal, weights(vae), weights(other_vae)))
    assert not all(map(torch.equal, weights(judge.discriminator), weights(other_judge.discriminator)))
    assert all(map(torch.equal, weights(judge.names), weights(critic.names)))
    assert not any(map(torch.equal, weights(other_judge.names), weights(critic.names)))


def test_without_a_vae_the_lesson_is_all_there_is(critic, lesson) -> None:
    recipe = tiny_recipe(weight_spoiled=1.0, weight_named=0.5, forgeries=False)
    reference = copy.deepcopy(critic)
    loss = lesson_loss(reference, lesson, recipe)
    loss.backward()
    torch.optim.SGD(reference.parameters(), lr=0.1).step()
    losses = lesson_step(critic, torch.optim.SGD(critic.parameters(), lr=0.1), lesson, recipe)
    assert losses.discriminator.item() == losses.spoiled.item() == loss.item()
    assert [losses.vae, losses.reconstruction, losses.kl, losses.fool_reconstructed, losses.fool_generated] == [0] * 5
    assert all(map(torch.equal, weights(critic), weights(reference)))
