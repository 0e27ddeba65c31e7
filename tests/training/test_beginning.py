"""A small network begins as a part of its teacher, by regressions on images."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from discopatch.cli.train import load_teachers
from discopatch.images.tensors import to_unit
from discopatch.model import Architecture, Discriminator, Networks, parameters_digest
from discopatch.training import get_preset
from discopatch.training.beginning import begin_as_part, chosen, is_part
from discopatch.training.teachers import DiscriminatorTeacher
from tests.samples import TINY_EMBEDDED, camera_pixels, inverted_weights

SMALLER = replace(TINY_EMBEDDED, hidden=(2, 4, 6, 14, 15), depths=(1, 1, 2, 1, 1, 2, 1))
LIKE = replace(TINY_EMBEDDED, depths=(1,) * 7)


def photos(seed: int = 0) -> torch.Tensor:
    return to_unit(torch.from_numpy(camera_pixels(8, seed=seed))).permute(0, 3, 1, 2)


def teacher(student: Architecture, own: Architecture = TINY_EMBEDDED) -> DiscriminatorTeacher:
    return DiscriminatorTeacher(inverted_weights(own), student)


def begun(student: Architecture, own: Architecture = TINY_EMBEDDED) -> Discriminator:
    network = Networks.from_seed(student, seed=5).discriminator
    assert begin_as_part(network, {"larger": teacher(student, own)}, [photos()]) is not None
    return network


def left_over(network: Discriminator, own: Architecture = TINY_EMBEDDED) -> list[float]:
    """Of each layer, the variance of the teacher's channels that is no linear map of the network's, on new photos."""
    found = []
    with torch.no_grad():
        pairs = zip(
            network(photos(1), 1).features, inverted_weights(own).discriminator(photos(1), 1).features, strict=True
        )
        for ours, theirs in pairs:
            x, y = (each.transpose(0, 1).flatten(1).T.double().numpy() for each in (ours, theirs))
            x, y = x - x.mean(0), y - y.mean(0)
            rest = y - x @ np.linalg.lstsq(x, y, rcond=None)[0]
            found.append(float((rest.var(0) / y.var(0)).mean()))
    return found


def test_a_network_of_the_same_shape_begins_with_the_maps_and_logits_of_its_teacher() -> None:
    network = begun(LIKE, LIKE)
    assert max(left_over(network, LIKE)[:4]) < 0.01
    with torch.no_grad():
        expected = inverted_weights(LIKE).discriminator(photos(1), 1).logits
        torch.testing.assert_close(network(photos(1), 1).logits, expected, rtol=0.05, atol=0.05 * float(expected.std()))


def test_a_smaller_network_begins_nearer_to_its_teacher_than_at_random() -> None:
    random = Networks.from_seed(SMALLER, seed=5).discriminator
    for part, before in zip(left_over(begun(SMALLER))[:3], left_over(random)[:3], strict=True):
        assert part < before - 0.05


def test_channels_are_chosen_that_explain_the_others() -> None:
    rng = torch.Generator().manual_seed(0)
    maps = torch.randn(2, 5, 16, 16, generator=rng)
    maps[:, 2] *= 0.1
    maps[:, 4] = maps[:, 1] + maps[:, 3]
    assert chosen(maps, 1).tolist() == [4]
    assert set(chosen(maps, 3).tolist()) < {0, 1, 3, 4}, "three of them explain the fourth"


@pytest.mark.parametrize("change", [{"hidden": (4, 6, 8, 14, 25)}, {"depths": (1, 1, 4, 1, 1, 1, 1)}])
def test_a_network_that_is_no_part_of_its_teacher_begins_at_random(change: dict[str, Any]) -> None:
    architecture = replace(TINY_EMBEDDED, **change)
    network, same = (Networks.from_seed(architecture, seed=5).discriminator for _ in range(2))
    assert begin_as_part(network, {"other": teacher(architecture)}, [photos()]) is None
    assert parameters_digest(network) == parameters_digest(same)


def test_the_preset_is_a_part_of_its_teacher_and_names_it() -> None:
    preset = get_preset("natural-small-v2")
    released = load_teachers(preset)["natural-v3"]
    assert isinstance(released, DiscriminatorTeacher)
    assert preset.teachers == {"natural-v3": released.digest}
    assert is_part(preset.architecture, released.discriminator.architecture)
