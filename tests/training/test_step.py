"""One step is the paper's two updates; objectives of degraded images and of teachers are their formulas."""

import copy
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from discopatch.model import Networks
from discopatch.training import TrainingConfig
from discopatch.training.batches import Batch, draw_batches
from discopatch.training.step import Losses, Noise, adversarial_step, embedded, fake_loss, further_losses, real_loss
from discopatch.training.teachers import AuxiliaryDiscriminator, AuxiliaryOutput
from tests.training.tiny import ARCHITECTURE, crop_config, embedded_config, seeded, squares, tiny_config

SHAPES = {  # of made-up outputs of teachers; the finer map has another grid than the student's
    "discriminator/statistics": (5,),
    "resnet50/map8": (3, 12, 12),
    "resnet50/map16": (4, 3, 3),
    "resnet50/pooled": (6,),
}
TEACHER = {"teachers": {"resnet50": "0123456789abcdef"}}


@pytest.fixture
def networks() -> Networks:
    return Networks.from_seed(ARCHITECTURE, seed=3)


@pytest.fixture
def real() -> torch.Tensor:
    return torch.rand(8, 3, 16, 16, generator=seeded(1)) * 2 - 1


@pytest.fixture
def noise() -> Noise:
    return Noise.draw(8, ARCHITECTURE.latent, seeded(2))


def adams(networks: Networks) -> list[torch.optim.Adam]:
    return [torch.optim.Adam(network.parameters(), lr=1e-3) for network in (networks.vae, networks.discriminator)]


def plain_step(
    networks: Networks, optimisers: Sequence[torch.optim.Optimizer], real, noise, config: TrainingConfig | None = None
) -> Losses:
    auxiliary = AuxiliaryDiscriminator(networks.discriminator, tiny_config(), {})
    return adversarial_step(networks.vae, auxiliary, optimisers, real, noise, config or tiny_config())


def weights(network: torch.nn.Module) -> list[Tensor]:
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


def test_losses_on_logits_are_the_cross_entropies_and_do_not_saturate() -> None:
    logits = torch.tensor([-3.0, 0.0, 2.0])
    p = torch.sigmoid(logits)
    assert real_loss(logits).item() == pytest.approx(-p.log().mean().item(), rel=1e-6)
    assert fake_loss(logits).item() == pytest.approx(-(1 - p).log().mean().item(), rel=1e-6)
    assert real_loss(torch.tensor([-500.0])).item() == 500.0


# Objectives that are not in the paper


def drawn(**changes: Any) -> Batch:
    (batch,) = draw_batches(squares(), seeded(), 2, crop_config(**changes))
    return batch


def taught(batch: Batch) -> Batch:
    targets = {name: torch.randn(len(batch.images), *shape, generator=seeded(7)) for name, shape in SHAPES.items()}
    return batch._replace(targets=targets)


def inverted(config: TrainingConfig, targets: dict[str, Any] = {}) -> AuxiliaryDiscriminator:  # noqa: B006
    channels = {name: shape[0] for name, shape in targets.items()}
    return AuxiliaryDiscriminator(Networks.from_seed(config.architecture, seed=1).discriminator, config, channels)


@pytest.fixture
def auxiliary(networks: Networks) -> AuxiliaryDiscriminator:
    return AuxiliaryDiscriminator(networks.discriminator, tiny_config(weight_degraded=1.0, weight_classified=0.5), {})


@pytest.fixture
def pair() -> list[Batch]:
    """Six images, and their degraded copies."""
    images = torch.randint(0, 256, (6, 32, 32, 3), generator=seeded(4), dtype=torch.uint8)
    return draw_batches(images, seeded(5), 7, tiny_config())


def total(losses: dict[str, Tensor]) -> Tensor:
    return losses["degraded"] + losses["classified"] + losses["embedded"] + losses["distilled"]


@torch.no_grad()
def test_the_losses_of_crops_are_the_cross_entropies_of_every_cell_and_of_the_classes() -> None:
    student, batch = inverted(crop_config()), drawn(cut_mix=0.5)
    output = student(batch.images, 1, auxiliary=True)
    assert isinstance(batch.real, Tensor)
    cells = batch.real.unfold(2, 16, 16).unfold(3, 16, 16).mean((4, 5))[:, 0]
    chance = torch.sigmoid(output.logits)
    told_apart = -(cells * chance.log() + (1 - cells) * (1 - chance).log()).mean()
    classified = -(batch.classes * output.classes.log_softmax(1)).sum(1).mean()
    losses = further_losses(student, [batch], crop_config(weight_degraded=2.0))
    assert losses["degraded"].item() == pytest.approx(2.0 * told_apart.item(), rel=1e-4)
    assert losses["classified"].item() == pytest.approx(0.5 * classified.item(), rel=1e-4)
    assert losses["embedded"].item() == losses["distilled"].item() == 0


def contrastive_loss(embedding: Any, recipes: Any) -> float:
    """Supervised contrastive learning by its formula, image by image."""
    directions = embedding / np.linalg.norm(embedding, axis=1, keepdims=True)
    weights, places, losses = np.exp(directions @ directions.T / 0.1), np.flatnonzero(recipes >= 0), []
    for one in places:
        others = places[places != one]
        alike = others[recipes[others] == recipes[one]]
        losses += [-np.log(weights[one, alike] / weights[one, others].sum()).mean()] if len(alike) else []
    return float(np.mean(losses))


def test_the_loss_of_embeddings_is_that_of_supervised_contrastive_learning() -> None:
    def loss(embedding: Tensor, recipes: list[int]) -> Tensor:
        batch = drawn()._replace(recipes=torch.tensor(recipes))
        output = AuxiliaryOutput(torch.zeros(len(recipes)), embedding=embedding)
        return embedded(output, batch, embedded_config(weight_embedded=2.0))

    embedding, recipes = torch.randn(9, 6, generator=seeded()), [0, 3, 0, -1, 4, 3, 0, -1, 5]
    expected = contrastive_loss(embedding.numpy(), np.array(recipes))
    assert loss(embedding, recipes).item() == pytest.approx(2 * expected, rel=1e-4)
    pairs = torch.eye(4).repeat(2, 1)
    assert loss(pairs, [1, 2, 3, 4, 1, 2, 3, 4]).item() < 0.01
    assert loss(pairs, [1, 1, 2, 2, 3, 3, 4, 4]).item() > 10
    assert loss(pairs, [-1] * 8).item() == 0


@torch.no_grad()
@pytest.mark.parametrize("classified", [0.0, 0.5])
def test_images_are_real_everywhere_degraded_ones_fake_everywhere_and_both_are_classified(
    auxiliary, pair, classified
) -> None:
    config = tiny_config(weight_degraded=2.0, weight_classified=classified)
    discriminator, classifier = auxiliary.discriminator, auxiliary.classifier
    expected = 0.0
    for batch, label in zip(pair, (1.0, 0.0), strict=True):
        outputs = [discriminator(image[None], 1) for image in batch.images]
        probabilities = torch.sigmoid(torch.cat([output.logits for output in outputs]))
        assert probabilities.shape == (6, 5, 5), "32 pixels are 8 cells, a patch is 4"
        expected += 2.0 * 0.5 * F.binary_cross_entropy(probabilities, torch.full_like(probabilities, label)).item()
        features = torch.cat([output.features[-1] for output in outputs]).mean((2, 3))
        chances = torch.softmax(classifier(features), dim=1)
        expected += classified * 0.5 * -(batch.classes * chances.log()).sum(1).mean().item()
    losses = further_losses(auxiliary, pair, config)
    assert total(losses).item() == pytest.approx(expected, rel=1e-5)


@torch.no_grad()
def test_the_distance_to_the_teachers_is_weighted_by_kind_and_maps_are_brought_to_their_grid() -> None:
    config = embedded_config(weight_distilled=2.0, weight_maps=3.0, weight_pooled=0.5, **TEACHER)
    student, batch = inverted(config, SHAPES), taught(drawn())
    output, layers, targets = student.discriminator(batch.images, 1, statistics=True), student.predictors, batch.targets
    assert targets is not None
    fine, coarse, last = output.features[2:]
    predicted = {
        "discriminator/statistics": (1.0, layers["discriminator/statistics"](torch.cat(output.layer_statistics, 1))),
        "resnet50/map8": (3.0, F.interpolate(layers["resnet50/map8"](fine), (12, 12), mode="bilinear")),
        "resnet50/map16": (3.0, layers["resnet50/map16"](coarse)),
        "resnet50/pooled": (0.5, layers["resnet50/pooled"](last.mean((2, 3)))),
    }
    distances = {name: weight * F.smooth_l1_loss(each, targets[name]) for name, (weight, each) in predicted.items()}
    expected = torch.stack(list(distances.values())).sum().item()
    losses = further_losses(student, [batch], config)
    assert losses["distilled"].item() == pytest.approx(2.0 * expected, rel=1e-4)


def test_one_step_reaches_every_part_of_the_network_and_of_the_predictions() -> None:
    config = embedded_config(weight_distilled=1.0, vae=False, **TEACHER)
    student, batch = inverted(config, SHAPES), taught(drawn(cut_mix=0.5))
    before = {name: value.clone() for name, value in student.named_parameters()}
    optimiser = torch.optim.SGD(student.parameters(), lr=0.1)
    adversarial_step(None, student, [optimiser], None, None, config, further=[batch])
    for name, value in student.named_parameters():
        assert not torch.equal(value, before[name]), name


def test_degraded_images_add_to_the_discriminators_loss_and_to_nothing_else(
    networks, auxiliary, pair, real, noise
) -> None:
    config = tiny_config(weight_degraded=1.0, weight_classified=0.5)
    with torch.no_grad():
        alone = total(further_losses(auxiliary, pair, config)).item()
    runs = []
    batches: list[list[Batch]] = [[], pair]
    for further in batches:
        these = copy.deepcopy((networks.vae, auxiliary))
        optimisers = [torch.optim.SGD(network.parameters(), lr=0.1) for network in these]
        runs.append((adversarial_step(*these, optimisers, real, noise, config, further=further), *these))
    (without, vae, one), (with_it, other_vae, other) = runs
    assert without.degraded.item() == 0
    assert with_it.degraded.item() == pytest.approx(alone, rel=1e-6)
    assert with_it.discriminator.item() == pytest.approx(without.discriminator.item() + alone, rel=1e-6)
    assert (with_it.vae, with_it.reconstruction, with_it.kl) == (without.vae, without.reconstruction, without.kl)
    assert all(map(torch.equal, weights(vae), weights(other_vae)))
    assert not all(map(torch.equal, weights(one.discriminator), weights(other.discriminator)))
    assert all(map(torch.equal, weights(one.classifier), weights(auxiliary.classifier)))
    assert not any(map(torch.equal, weights(other.classifier), weights(auxiliary.classifier)))


def test_without_a_vae_the_degraded_images_are_all_there_is(auxiliary, pair) -> None:
    config = tiny_config(weight_degraded=1.0, weight_classified=0.5, vae=False)
    reference = copy.deepcopy(auxiliary)
    loss = total(further_losses(reference, pair, config))
    loss.backward()
    torch.optim.SGD(reference.parameters(), lr=0.1).step()
    optimiser = torch.optim.SGD(auxiliary.parameters(), lr=0.1)
    losses = adversarial_step(None, auxiliary, [optimiser], None, None, config, further=pair)
    assert losses.discriminator.item() == losses.degraded.item() == loss.item()
    assert [losses.vae, losses.reconstruction, losses.kl, losses.fool_reconstructed, losses.fool_generated] == [0] * 5
    assert all(map(torch.equal, weights(auxiliary), weights(reference)))
