"""The released weights lie inside the package, are what they say they are, and are never changed by use."""

from collections.abc import Callable
from dataclasses import replace
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open

from discopatch.bench.cost import multiplications
from discopatch.encoders import DiscriminatorEncoder
from discopatch.errors import WeightsError
from discopatch.images import Transform
from discopatch.pretrained import (
    DEFAULT_WEIGHTS,
    FIRST_WEIGHTS,
    PAPER_WEIGHTS,
    PRETRAINED,
    SMALL_WEIGHTS,
    load_pretrained,
    load_weights,
    model_card,
)
from discopatch.training import TrainingConfig, get_preset
from tests.samples import tiny_weights


def test_four_weights_are_released_the_default_ones_first() -> None:
    names = (DEFAULT_WEIGHTS, FIRST_WEIGHTS, SMALL_WEIGHTS, PAPER_WEIGHTS)
    assert names == PRETRAINED == ("natural-v2", "natural-v1", "natural-small-v1", "paper-v1")


@pytest.mark.parametrize(
    ("name", "preset", "parameters"),
    [
        ("natural-v2", "natural-v2", 2_939_233),
        ("natural-v1", "natural", 6_218_753),
        ("natural-small-v1", "small", 455_953),
        ("paper-v1", "paper", 6_218_753),
    ],
)
def test_released_weights_are_the_discriminator_of_their_preset(name: str, preset: str, parameters: int) -> None:
    weights = load_pretrained(name)
    assert weights.discriminator.architecture == get_preset(preset).architecture
    assert sum(parameter.numel() for parameter in weights.discriminator.parameters()) == parameters
    assert all(parameter.isfinite().all() for parameter in weights.discriminator.parameters())
    assert weights.transform == Transform(size=256)
    assert not weights.discriminator.training


@pytest.mark.parametrize(
    ("name", "most", "kind"),
    [
        ("natural-v2", 6_000_000, torch.float16),
        ("natural-v1", 13_000_000, torch.float16),
        ("natural-small-v1", 2_000_000, torch.float32),
        ("paper-v1", 13_000_000, torch.float16),
    ],
)
def test_released_weights_are_small_files(name: str, most: int, kind: torch.dtype) -> None:
    file = files("discopatch.pretrained") / f"{name}.safetensors"
    assert len(file.read_bytes()) < most
    with safe_open(str(file), framework="pt") as tensors:
        kinds = {tensors.get_tensor(key).dtype for key in tensors.keys()}  # noqa: SIM118 - it is no dict
    assert kinds == {kind}


@pytest.mark.parametrize("name", PRETRAINED)
def test_the_card_belongs_to_the_weights(name: str) -> None:
    assert model_card(name)["weights_digest"] == load_pretrained(name).digest
    assert model_card(name)["transform_digest"] == load_pretrained(name).transform.digest


def test_the_small_weights_learnt_from_the_first_ones_and_do_a_tenth_of_their_work() -> None:
    small, large = load_pretrained(SMALL_WEIGHTS), load_pretrained(FIRST_WEIGHTS)
    assert small.origin["recipe"]["teacher"] == large.digest
    work = [multiplications(weights.discriminator.architecture, size=256) for weights in (small, large)]
    assert work[0] < 0.1 * work[1]


def test_the_default_weights_learnt_from_the_first_ones_and_do_less_work() -> None:
    default, first = load_pretrained(DEFAULT_WEIGHTS), load_pretrained(FIRST_WEIGHTS)
    assert default.origin["config"]["teachers"]["discriminator"] == first.digest
    work = [multiplications(weights.discriminator.architecture, size=256) for weights in (default, first)]
    assert work[0] < 0.5e9 < work[1]


def test_released_weights_are_read_once() -> None:
    assert load_pretrained(DEFAULT_WEIGHTS) is load_pretrained() is load_weights(DEFAULT_WEIGHTS)


@pytest.mark.parametrize("load", [load_pretrained, load_weights, model_card])
def test_an_unknown_name_lists_the_names_there_are(load: Callable[[str], object]) -> None:
    with pytest.raises(WeightsError, match=r"'paper-v2'.*natural-v2, natural-v1, natural-small-v1, paper-v1"):
        load("paper-v2")


def test_the_papers_weights_are_its_recipe_and_nothing_else() -> None:
    config = TrainingConfig.from_dict(load_pretrained(PAPER_WEIGHTS).origin["config"])
    assert config == replace(get_preset("paper"), steps=config.steps, stream=False)


def test_weights_may_be_a_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.safetensors"
    tiny_weights().save(path)
    assert load_weights(str(path)).digest == tiny_weights().digest


def test_scoring_leaves_the_released_weights_as_they_are() -> None:
    before = load_pretrained(SMALL_WEIGHTS).digest
    encoder = DiscriminatorEncoder(load_pretrained(SMALL_WEIGHTS), patches="dense")
    found = encoder.extract_pixels(np.zeros((1, 256, 256, 3), np.uint8))
    assert np.isfinite(found.logits).all()
    assert load_pretrained(SMALL_WEIGHTS).digest == before
