"""A config is checked when it is made and survives JSON; the presets are configs."""

import json
import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from discopatch.cli.train import PRESET
from discopatch.errors import ParameterError, SchemaError
from discopatch.images import Transform
from discopatch.training import PRESETS, RunOptions, TrainingConfig, get_preset
from tests.samples import TINY_EMBEDDED
from tests.training.tiny import ARCHITECTURE, tiny_config

TEACHER = {"discriminator": "0123456789abcdef"}
PAPER = get_preset("paper")


def test_the_defaults_are_the_papers() -> None:
    assert (PAPER.images, PAPER.patches, PAPER.epochs, PAPER.learning_rate) == (67, 48, 30, 8.5e-5)
    assert (PAPER.beta1, PAPER.beta2) == (0.9, 0.999)
    assert (PAPER.weight_kl, PAPER.weight_reconstructed, PAPER.weight_generated) == (1e-4, 1e-3, 1e-3)
    assert (PAPER.grouping, PAPER.group, PAPER.vae) == ("batch", None, True)
    assert (PAPER.weight_degraded, PAPER.weight_classified, PAPER.decay, PAPER.min_scale) == (0, 0, 0, 1)


@pytest.mark.parametrize("name", PRESETS)
def test_presets_are_found_by_name_and_survive_json(name: str) -> None:
    config = get_preset(name)
    assert config.preset == name
    assert name in re.split(", | or |[.] ", PRESET)
    assert TrainingConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config
    with pytest.raises(ParameterError, match=name):
        get_preset("huge")


def test_the_learning_rate_is_constant_and_then_falls_to_zero() -> None:
    config = replace(PAPER, learning_rate=0.5, decay=0.25)
    rates = [config.learning_rate_at(step, 100) for step in range(101)]
    assert rates[:76] == [0.5] * 76
    assert rates[75:] == pytest.approx([0.5 * (25 - fallen) / 25 for fallen in range(26)])
    assert {PAPER.learning_rate_at(step, 100) for step in range(100)} == {8.5e-5}


def test_a_learning_rate_may_rise_first_and_fall_as_a_cosine() -> None:
    config = replace(PAPER, learning_rate=1.0, warm_up=0.1, decay=1.0, schedule="cosine")
    rates = [config.learning_rate_at(step, 100) for step in range(101)]
    cosine = [0.5 * (1 + np.cos(np.pi * step / 100)) for step in range(101)]
    assert rates[9:] == pytest.approx(cosine[9:])
    assert rates[:10] == pytest.approx([(step + 1) / 10 * cosine[step] for step in range(10)])


def test_steps_follow_from_epochs_unless_they_are_given() -> None:
    assert PAPER.total_steps(1_281_167) == 573_657, "thirty epochs of ImageNet"
    assert replace(PAPER, epoch_share=0.2).total_steps(1_281_167) == 114_732, "as in the authors' code"
    assert replace(PAPER, steps=17).total_steps(10_000) == 17
    assert replace(PAPER, epochs=2, images=10).total_steps(105, ranks=2) == 11


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"images": 0}, "images"),
        ({"learning_rate": -1.0}, "learning_rate"),
        ({"grouping": "patch"}, "grouping"),
        ({"epoch_share": float("nan")}, "epoch_share"),
        ({"min_scale": 0.2}, "min_scale"),
        ({"beta1": 1.0}, "beta1"),
        ({"vae": False}, "weight_degraded"),
        ({"weight_distilled": 1.0, "teachers": TEACHER}, "weight_degraded"),
        ({"weight_distilled": 1.0, "weight_degraded": 1.0}, "teacher"),
        ({"teachers": TEACHER, "weight_degraded": 1.0}, "weight_distilled"),
        ({"teachers": {"resnet50": "some"}, "weight_degraded": 1.0, "weight_distilled": 1.0}, "teachers"),
        ({"crop": 128, "weight_degraded": 1.0}, "crop"),
        ({"weight_embedded": 1.0}, "embedding"),
        ({"native": 512}, "native"),
        ({"left_out": "foggy"}, "left_out"),
        ({"transform": Transform(pixels="unit")}, "pixels"),
    ],
)
def test_a_wrong_value_is_refused_by_its_name(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(ParameterError, match=named):
        replace(PAPER, **changes)
    with pytest.raises(ParameterError, match="log_every"):
        RunOptions(log_every=0)


@pytest.mark.parametrize("changes", [{"crop": None}, {"crop": 31}, {"min_scale": 0.4}, {"native": 256}])
def test_inverted_networks_are_trained_on_crops_that_fit(changes: dict[str, Any]) -> None:
    with pytest.raises(ParameterError, match="crop"):
        replace(get_preset("natural-v3"), **{"architecture": TINY_EMBEDDED, **changes})


def test_the_setting_of_no_weight_removes_the_embedding() -> None:
    config = get_preset("natural-v3")
    assert config.with_settings({"weight_embedded": 0}).architecture == replace(config.architecture, embedding=0)


@pytest.mark.parametrize("change", [{"depth": 3}, {"images": "two"}, {"architecture": {"patch_size": 16}}])
def test_a_stored_config_with_other_fields_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(SchemaError):
        TrainingConfig.from_dict({**tiny_config(architecture=ARCHITECTURE).to_dict(), **change})
