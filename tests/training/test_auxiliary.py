"""The logits are the discriminator's own; the auxiliary layers are not saved with it."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from discopatch.corruptions.degradations import DEGRADATIONS
from discopatch.images import Transform
from discopatch.model import Discriminator, Networks, Weights
from discopatch.training import get_preset
from discopatch.training.auxiliary import AuxiliaryDiscriminator
from tests.training.tiny import ARCHITECTURE, tiny_config

STATISTICS = "discriminator/statistics"


@pytest.fixture
def discriminator() -> Discriminator:
    return Networks.from_seed(ARCHITECTURE, seed=3).discriminator


def random_images(size: int = 16) -> torch.Tensor:
    return torch.rand(8, 3, size, size, generator=torch.Generator().manual_seed(1)) * 2 - 1


def n_parameters(network: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in network.parameters())


@pytest.mark.parametrize(("size", "group"), [(16, None), (16, 4), (64, 1)])
def test_its_logits_are_the_discriminators(discriminator, size: int, group: int | None) -> None:
    auxiliary = AuxiliaryDiscriminator(discriminator, degradations=5, targets={STATISTICS: 3})
    logits, classes, predictions, _ = auxiliary(random_images(size), group)
    assert torch.equal(logits, discriminator(random_images(size), group).logits)
    assert classes is None
    assert predictions is None


def test_there_is_one_class_for_no_degradation_and_one_for_each(discriminator) -> None:
    auxiliary = AuxiliaryDiscriminator(discriminator, degradations=5)
    logits, classes, *_ = auxiliary(random_images(64), 1, auxiliary=True)
    expected = discriminator(random_images(64), 1)
    assert torch.equal(logits, expected.logits)
    assert classes.shape == (8, 6)
    layer = auxiliary.classifier
    assert layer is not None
    by_hand = expected.features[-1].flatten(2).mean(2) @ layer.weight.T + layer.bias
    torch.testing.assert_close(classes, by_hand, rtol=1e-5, atol=1e-6)


def test_the_predicted_statistics_are_linear_in_its_own_and_their_gradient_reaches_the_first_layer(
    discriminator,
) -> None:
    auxiliary = AuxiliaryDiscriminator(discriminator, targets={STATISTICS: 3})
    logits, _, predictions, _ = auxiliary(random_images(64), 1, auxiliary=True)
    statistics = predictions[STATISTICS]
    expected = discriminator(random_images(64), 1, statistics=True)
    torch.testing.assert_close(logits, expected.logits)
    layer = auxiliary.predictors[STATISTICS]
    assert isinstance(layer, torch.nn.Linear)
    torch.testing.assert_close(statistics, expected.statistics @ layer.weight.T + layer.bias, rtol=1e-4, atol=1e-5)
    statistics.sum().backward()
    first = next(discriminator.parameters())
    assert first.grad is not None
    assert first.grad.abs().sum() > 0


def test_without_degradations_there_is_no_classifier_and_no_further_parameter(discriminator) -> None:
    auxiliary = AuxiliaryDiscriminator(discriminator)
    assert auxiliary(random_images(), auxiliary=True).classes is None
    assert n_parameters(auxiliary) == n_parameters(discriminator)


def test_the_papers_discriminator_keeps_its_6_218_753_parameters() -> None:
    with torch.device("meta"):
        architecture = get_preset("natural").architecture
        auxiliary = AuxiliaryDiscriminator(Discriminator(architecture), degradations=len(DEGRADATIONS))
    assert n_parameters(auxiliary.discriminator) == 6_218_753
    assert n_parameters(auxiliary) == 6_218_753 + (1024 + 1) * (1 + len(DEGRADATIONS))


def test_what_is_saved_is_the_discriminator_alone(discriminator, tmp_path: Path) -> None:
    auxiliary = AuxiliaryDiscriminator(discriminator, degradations=5)
    Weights(auxiliary.discriminator, Transform(size=64)).save(tmp_path / "file")
    saved = load_file(tmp_path / "file")
    assert saved.keys() == Discriminator(ARCHITECTURE).state_dict().keys()
    assert sum(tensor.numel() for tensor in saved.values()) == n_parameters(discriminator)


@pytest.mark.parametrize(
    ("weights", "classified"),
    [
        ({}, False),
        ({"weight_degraded": 1.0}, False),
        ({"weight_classified": 0.5}, False),
        ({"weight_degraded": 1.0, "weight_classified": 0.5}, True),
    ],
)
def test_degradations_are_classified_only_where_the_config_gives_that_weight(
    discriminator, weights, classified: bool
) -> None:
    auxiliary = AuxiliaryDiscriminator.from_config(discriminator, tiny_config(**weights))
    assert auxiliary.discriminator is discriminator
    assert (auxiliary.classifier is not None) == classified
    if auxiliary.classifier is not None:
        assert auxiliary.classifier.out_features == 1 + len(DEGRADATIONS)


def test_the_seed_decides_the_classifier_and_the_global_random_state_stays(discriminator) -> None:
    before = torch.get_rng_state()
    configs = (tiny_config(weight_degraded=1.0, weight_classified=0.5, seed=seed) for seed in (1, 1, 2))
    layers = [AuxiliaryDiscriminator.from_config(discriminator, config).classifier for config in configs]
    one, again, other = (layer.weight for layer in layers if layer is not None)
    assert torch.equal(one, again)
    assert not torch.equal(one, other)
    assert torch.equal(torch.get_rng_state(), before)
