"""An architecture is a value: checked when made, stored as JSON, never changed."""

import json
from dataclasses import FrozenInstanceError, replace
from typing import Any, get_args

import pytest

from discopatch.model import PRESETS, Architecture, Normalisation, find_preset

from .samples import TINY


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_is_found_by_its_name(name: str) -> None:
    assert find_preset(name) is PRESETS[name]


def test_an_unknown_preset_names_the_choices() -> None:
    with pytest.raises(ValueError, match=r"unknown preset 'huge'.*paper, natural, full, small, tiny"):
        find_preset("huge")


def test_an_unknown_normalisation_names_the_choices() -> None:
    wrong: Any = "layer"
    with pytest.raises(ValueError, match=r"unknown normalisation 'layer'.*patch.*batch.*group.*instance"):
        replace(TINY, normalisation=wrong)


@pytest.mark.parametrize("patch_size", [16 + 8, 31, 33, 16 * 5 + 1])
def test_a_patch_that_does_not_halve_often_enough_names_the_multiple(patch_size: int) -> None:
    with pytest.raises(ValueError, match=rf"4 layers.*multiple of 16, not {patch_size}"):
        Architecture(patch_size=patch_size, hidden=(4, 4, 4, 4), latent=4)


def test_an_architecture_has_at_least_one_layer() -> None:
    with pytest.raises(ValueError, match="layers"):
        Architecture(patch_size=32, hidden=(), latent=4)


def test_the_shape_of_the_last_feature_map() -> None:
    assert (TINY.stride, TINY.cells, TINY.flat) == (4, 8, 16 * 8 * 8)


@pytest.mark.parametrize("normalisation", get_args(Normalisation))
def test_an_architecture_survives_json(normalisation: Normalisation) -> None:
    architecture = replace(TINY, normalisation=normalisation)
    stored = json.loads(json.dumps(architecture.to_dict()))
    assert Architecture.from_dict(stored) == architecture
    assert hash(Architecture.from_dict(stored)) == hash(architecture)


@pytest.mark.parametrize("change", [{"depth": 3}, {"latent": None}])
def test_fields_of_another_version_are_refused(change: dict[str, Any]) -> None:
    values = {**TINY.to_dict(), **change}
    values = {name: value for name, value in values.items() if value is not None}
    with pytest.raises(ValueError, match="another version of discopatch"):
        Architecture.from_dict(values)


def test_an_architecture_cannot_be_changed() -> None:
    with pytest.raises(FrozenInstanceError):
        TINY.latent = 9  # type: ignore[misc]
