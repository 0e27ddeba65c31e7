"""The critic judges as its discriminator does; what it learns besides is left behind when that is saved."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from discopatch.defects import DEFECTS
from discopatch.images import Transform
from discopatch.model import PRESETS, Discriminator, Pair
from discopatch.model.weights import Weights
from discopatch.training.critic import Critic
from discopatch.training.loop import critic_of
from tests.training.tiny import ARCHITECTURE, tiny_recipe


@pytest.fixture
def discriminator() -> Discriminator:
    return Pair.from_seed(ARCHITECTURE, seed=3).discriminator


def pictures(count: int = 8, size: int = 16) -> torch.Tensor:
    return torch.rand(count, 3, size, size, generator=torch.Generator().manual_seed(1)) * 2 - 1


def count(network: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in network.parameters())


@pytest.mark.parametrize(("size", "patches"), [(16, None), (16, 4), (64, 1)])
def test_its_logits_are_the_discriminators(discriminator, size: int, patches: int | None) -> None:
    logits, names, statistics = Critic(discriminator, defects=5, taught=3)(pictures(size=size), patches)
    assert torch.equal(logits, discriminator(pictures(size=size), patches))
    assert names is None
    assert statistics is None


def test_where_names_are_asked_for_there_is_one_for_no_defect_and_one_for_each(discriminator) -> None:
    critic = Critic(discriminator, defects=5)
    logits, names, _ = critic(pictures(size=64), 1, whole=True)
    assert torch.equal(logits, discriminator(pictures(size=64), 1))
    assert names is not None
    assert names.shape == (8, 6)
    assert critic.names is not None
    features = discriminator.features(pictures(size=64), 1)
    expected = features.flatten(2).mean(2) @ critic.names.weight.T + critic.names.bias
    torch.testing.assert_close(names, expected, rtol=1e-5, atol=1e-6)


def test_a_critic_without_defects_knows_no_names_and_has_nothing_of_its_own(discriminator) -> None:
    critic = Critic(discriminator)
    assert critic(pictures(), whole=True).names is None
    assert count(critic) == count(discriminator)


def test_the_papers_discriminator_has_its_6_218_753_parameters_inside_any_critic() -> None:
    with torch.device("meta"):
        critic = Critic(Discriminator(PRESETS["natural"].architecture), defects=len(DEFECTS))
    assert count(critic.discriminator) == 6_218_753
    assert count(critic) == 6_218_753 + (1024 + 1) * (1 + len(DEFECTS))


def test_what_is_saved_is_the_discriminator_alone(discriminator, tmp_path: Path) -> None:
    critic = Critic(discriminator, defects=5)
    Weights(critic.discriminator, Transform(size=64)).save(tmp_path / "file")
    saved = load_file(tmp_path / "file")
    assert saved.keys() == Discriminator(ARCHITECTURE).state_dict().keys()
    assert sum(tensor.numel() for tensor in saved.values()) == count(discriminator)


@pytest.mark.parametrize(
    ("weights", "named"),
    [
        ({}, False),
        ({"weight_spoiled": 1.0}, False),
        ({"weight_named": 0.5}, False),
        ({"weight_spoiled": 1.0, "weight_named": 0.5}, True),
    ],
)
def test_names_are_learnt_only_where_the_recipe_gives_them_weight(discriminator, weights, named: bool) -> None:
    critic = critic_of(discriminator, tiny_recipe(**weights))
    assert critic.discriminator is discriminator
    assert (critic.names is not None) == named
    if critic.names is not None:
        assert critic.names.out_features == 1 + len(DEFECTS)


def test_the_seed_decides_the_layer_of_names_and_the_global_random_state_stays(discriminator) -> None:
    before = torch.get_rng_state()
    layers = [
        critic_of(discriminator, tiny_recipe(weight_spoiled=1.0, weight_named=0.5, seed=seed)).names
        for seed in (1, 1, 2)
    ]
    one, again, other = (layer.weight for layer in layers if layer is not None)
    assert torch.equal(one, again)
    assert not torch.equal(one, other)
    assert torch.equal(torch.get_rng_state(), before)
