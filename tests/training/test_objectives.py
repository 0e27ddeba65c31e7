"""The objectives of crops, of whole images with degraded copies, and of teachers, against formulas."""

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from discopatch.model import Networks
from discopatch.training.batches import Batch, draw_batches
from discopatch.training.step import Noise, adversarial_step, further_losses
from discopatch.training.teachers import AuxiliaryDiscriminator
from tests.samples import TINY_INVERTED
from tests.training.tiny import ARCHITECTURE, crop_config, seeded, squares, tiny_config

SHAPES = {  # of made-up outputs of teachers; the finer map has another grid than the student's
    "discriminator/statistics": (5,),
    "resnet50/map8": (3, 12, 12),
    "resnet50/map16": (4, 3, 3),
    "resnet50/pooled": (6,),
}
TEACHER = {"teachers": {"resnet50": "0123456789abcdef"}}


def drawn(**changes: Any) -> Batch:
    (batch,) = draw_batches(squares(), seeded(), 2, crop_config(**changes))
    return batch


def taught(batch: Batch) -> Batch:
    targets = {name: torch.randn(len(batch.images), *shape, generator=seeded(7)) for name, shape in SHAPES.items()}
    return batch._replace(targets=targets)


def inverted(targets: dict[str, Any] = {}) -> AuxiliaryDiscriminator:  # noqa: B006
    channels = {name: shape[0] for name, shape in targets.items()}
    return AuxiliaryDiscriminator(Networks.from_seed(TINY_INVERTED, seed=1).discriminator, crop_config(), channels)


@pytest.fixture
def networks() -> Networks:
    return Networks.from_seed(ARCHITECTURE, seed=3)


@pytest.fixture
def auxiliary(networks: Networks) -> AuxiliaryDiscriminator:
    return AuxiliaryDiscriminator(networks.discriminator, tiny_config(weight_degraded=1.0, weight_classified=0.5), {})


@pytest.fixture
def pair() -> list[Batch]:
    """Six images, and their degraded copies."""
    images = torch.randint(0, 256, (6, 32, 32, 3), generator=seeded(4), dtype=torch.uint8)
    return draw_batches(images, seeded(5), 7, tiny_config())


def total(losses: dict[str, Tensor]) -> Tensor:
    return losses["degraded"] + losses["classified"] + losses["distilled"]


def weights(network: torch.nn.Module) -> list[Tensor]:
    return [parameter.detach().clone() for parameter in network.parameters()]


@torch.no_grad()
def test_the_losses_of_crops_are_the_cross_entropies_of_every_cell_and_of_the_classes() -> None:
    student, batch = inverted(), drawn(cut_mix=0.5)
    output = student(batch.images, 1, auxiliary=True)
    assert isinstance(batch.real, Tensor)
    cells = batch.real.unfold(2, 16, 16).unfold(3, 16, 16).mean((4, 5))[:, 0]
    chance = torch.sigmoid(output.logits)
    told_apart = -(cells * chance.log() + (1 - cells) * (1 - chance).log()).mean()
    classified = -(batch.classes * output.classes.log_softmax(1)).sum(1).mean()
    losses = further_losses(student, [batch], crop_config(weight_degraded=2.0))
    assert losses["degraded"].item() == pytest.approx(2.0 * told_apart.item(), rel=1e-4)
    assert losses["classified"].item() == pytest.approx(0.5 * classified.item(), rel=1e-4)
    assert losses["distilled"].item() == 0


@torch.no_grad()
@pytest.mark.parametrize("classified", [0.0, 0.5])
def test_images_are_real_everywhere_degraded_ones_fake_everywhere_and_both_are_classified(
    auxiliary, pair, classified
) -> None:
    config = tiny_config(weight_degraded=2.0, weight_classified=classified)
    discriminator, classifier = auxiliary.discriminator, auxiliary.classifier
    expected = 0.0
    for batch, label, classes in zip(pair, (1.0, 0.0), ([0] * 6, [7, 8, 9, 10, 7, 8]), strict=True):
        outputs = [discriminator(image[None], 1) for image in batch.images]
        probabilities = torch.sigmoid(torch.cat([output.logits for output in outputs]))
        assert probabilities.shape == (6, 5, 5), "32 pixels are 8 cells, a patch is 4"
        expected += 2.0 * 0.5 * F.binary_cross_entropy(probabilities, torch.full_like(probabilities, label)).item()
        features = torch.cat([output.features[-1] for output in outputs]).mean((2, 3))
        chances = torch.softmax(classifier(features), dim=1)
        expected += classified * 0.5 * -chances[torch.arange(6), torch.tensor(classes)].log().mean().item()
    losses = further_losses(auxiliary, pair, config)
    assert total(losses).item() == pytest.approx(expected, rel=1e-5)


@torch.no_grad()
def test_the_distance_to_the_teachers_is_weighted_by_kind_and_maps_are_brought_to_their_grid() -> None:
    student, batch = inverted(SHAPES), taught(drawn())
    config = crop_config(weight_distilled=2.0, weight_maps=3.0, weight_pooled=0.5, **TEACHER)
    predicted, targets = student(batch.images, 1, auxiliary=True).predictions, batch.targets
    assert targets is not None
    assert predicted["resnet50/map8"].shape[2:] == (6, 6)
    predicted["resnet50/map8"] = F.interpolate(predicted["resnet50/map8"], (12, 12), mode="bilinear")
    kinds = zip(SHAPES, (1.0, 3.0, 3.0, 0.5), strict=True)
    expected = sum(weight * F.smooth_l1_loss(predicted[name], targets[name]).item() for name, weight in kinds)
    losses = further_losses(student, [batch], config)
    assert losses["distilled"].item() == pytest.approx(2.0 * expected, rel=1e-4)


def test_one_step_reaches_every_part_of_the_network_and_of_the_predictions() -> None:
    student, batch = inverted(SHAPES), taught(drawn(cut_mix=0.5))
    before = {name: value.clone() for name, value in student.named_parameters()}
    optimiser = torch.optim.SGD(student.parameters(), lr=0.1)
    config = crop_config(weight_distilled=1.0, vae=False, **TEACHER)
    adversarial_step(None, student, [optimiser], None, None, config, further=[batch])
    for name, value in student.named_parameters():
        assert not torch.equal(value, before[name]), name


def test_degraded_images_add_to_the_discriminators_loss_and_to_nothing_else(networks, auxiliary, pair) -> None:
    config = tiny_config(weight_degraded=1.0, weight_classified=0.5)
    real, noise = torch.rand(8, 3, 16, 16, generator=seeded(1)) * 2 - 1, Noise.draw(8, ARCHITECTURE.latent, seeded(2))
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
