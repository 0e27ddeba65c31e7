"""The released weights lie inside the package, are what they say they are, and are never changed by use."""

from copy import deepcopy
from importlib.resources import files

import numpy as np
import pytest
import torch
from safetensors import safe_open

from discopatch.benchmark.work import multiplications
from discopatch.images import Transform
from discopatch.model import PRESETS
from discopatch.model.weights import WeightsError
from discopatch.heads import DiscriminatorEncoder
from discopatch.pretrained import DEFAULT_WEIGHTS, PRETRAINED, card, released


def test_the_default_is_released() -> None:
    assert DEFAULT_WEIGHTS in PRETRAINED
    assert PRETRAINED == ("natural-v1", "natural-small-v1")


@pytest.mark.parametrize(
    ("name", "preset", "parameters"), [("natural-v1", "paper", 6_218_753), ("natural-small-v1", "small", 455_953)]
)
def test_released_weights_are_the_discriminator_of_their_preset(name: str, preset: str, parameters: int) -> None:
    weights = load_pretrained(name)
    assert weights.discriminator.architecture == PRESETS[preset].architecture
    assert sum(parameter.numel() for parameter in weights.discriminator.parameters()) == parameters
    assert all(parameter.isfinite().all() for parameter in weights.discriminator.parameters())
    assert weights.transform == Transform(size=256)
    assert not weights.discriminator.training


@pytest.mark.parametrize(
    ("name", "most", "kind"),
    [("natural-v1", 13_000_000, torch.float16), ("natural-small-v1", 2_000_000, torch.float32)],
)
def test_released_weights_are_small_files(name: str, most: int, kind: torch.dtype) -> None:
    file = files("discopatch.pretrained") / f"{name}.safetensors"
    assert len(file.read_bytes()) < most
    with safe_open(str(file), framework="pt") as tensors:
        kinds = {tensors.get_tensor(key).dtype for key in tensors.keys()}  # noqa: SIM118 - it is no dict
    assert kinds == {kind}


@pytest.mark.parametrize("name", PRETRAINED)
def test_the_card_belongs_to_the_weights(name: str) -> None:
    assert card(name)["weights_digest"] == load_pretrained(name).digest
    assert card(name)["transform_digest"] == load_pretrained(name).transform.digest


def test_the_small_ones_were_taught_by_the_default_ones_and_do_a_tenth_of_their_work() -> None:
    small, large = load_pretrained("natural-small-v1"), load_pretrained("natural-v1")
    assert small.origin["recipe"]["teacher"] == large.digest
    work = [multiplications(weights.discriminator.architecture, size=256) for weights in (small, large)]
    assert work[0] < 0.1 * work[1]


def test_released_weights_are_loaded_once() -> None:
    assert load_pretrained("natural-v1") is load_pretrained("natural-v1") is load_pretrained()


@pytest.mark.parametrize("ask", [released, card])
def test_an_unknown_name_lists_the_names_there_are(ask) -> None:
    with pytest.raises(
        WeightsError, match="no released weights are called 'paper-v1': choose one of natural-v1, natural-small-v1"
    ):
        ask("paper-v1")


def test_scoring_leaves_the_released_weights_as_they_are() -> None:
    before = load_pretrained().digest
    DiscriminatorEncoder(load_pretrained(), patches="dense").score_pixels(np.zeros((1, 256, 256, 3), np.uint8))
    assert load_pretrained().digest == before


def test_a_scorer_on_another_device_leaves_those_that_are_there_alone() -> None:
    """All share the one copy of the released weights; `meta` stands for a device that a machine may not have."""
    weights, image = deepcopy(load_pretrained()), np.zeros((1, 256, 256, 3), np.uint8)
    scorer = DiscriminatorEncoder(weights, patches="dense")
    before = scorer.score_pixels(image)
    DiscriminatorEncoder(weights, patches="dense", device="meta")
    assert np.array_equal(scorer.score_pixels(image), before)
