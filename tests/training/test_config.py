"""A config is a value: checked when it is built, stored as JSON, never changed; the presets are configs."""

import json
from dataclasses import FrozenInstanceError, replace
from typing import Any, get_args

import numpy as np
import pytest

from discopatch.bench.networks import is_fetched, load_backbone
from discopatch.errors import DiscopatchError, ParameterError, RunError
from discopatch.images import Transform
from discopatch.model import Architecture, Normalisation
from discopatch.pretrained import load_pretrained
from discopatch.training import PRESETS, RunOptions, TrainingConfig, get_preset
from tests.samples import TINY_INVERTED
from tests.training.tiny import ARCHITECTURE, tiny_config

TEACHER = {"discriminator": "0123456789abcdef"}
RESIDUAL = Architecture(patch_size=32, hidden=(4, 8, 8), latent=4, normalisation="batch", kind="residual")


def paper(**changes: Any) -> TrainingConfig:
    return replace(get_preset("paper"), **changes)


def test_the_defaults_are_the_papers() -> None:
    config = paper()
    assert (config.images, config.patches, config.epochs, config.learning_rate) == (67, 48, 30, 8.5e-5)
    assert (config.beta1, config.beta2) == (0.9, 0.999)
    assert (config.weight_kl, config.weight_reconstructed, config.weight_generated) == (1e-4, 1e-3, 1e-3)
    assert config.grouping == "batch"
    assert config.group is None
    full = get_preset("full")
    assert (full.images, full.patches, full.epochs, full.learning_rate) == (660, 1, 70, 5e-5)


def test_a_config_from_before_epochs_could_be_cut_is_read_as_it_was() -> None:
    stored = paper().to_dict()
    del stored["epoch_share"]
    assert TrainingConfig.from_dict(stored) == paper()


def test_a_config_from_before_there_were_several_teachers_is_read_as_it_was() -> None:
    later = (
        "weight_decay",
        "warm_up",
        "schedule",
        "crop",
        "cut_mix",
        "grey",
        "weight_maps",
        "weight_pooled",
        "teachers",
    )
    for teachers, teacher in ((TEACHER, TEACHER["discriminator"]), ({}, None)):
        config = paper(weight_degraded=1.0, weight_distilled=1.0 if teachers else 0.0, teachers=teachers)
        stored = {name: value for name, value in config.to_dict().items() if name not in later}
        assert TrainingConfig.from_dict({**stored, "teacher": teacher}) == config


@pytest.mark.parametrize("share", [0.0, -0.2, 1.1, float("nan")])
def test_an_epoch_is_cut_after_a_share_of_the_images(share: float) -> None:
    with pytest.raises(ParameterError, match="epoch_share"):
        paper(epoch_share=share)


@pytest.mark.parametrize("preset", ["paper", "full", "tiny"])
def test_what_is_not_the_papers_is_off(preset: str) -> None:
    config = get_preset(preset)
    assert (config.weight_degraded, config.weight_classified, config.decay) == (0, 0, 0)
    assert config.min_scale == 1
    assert config.vae


def test_the_natural_preset_is_the_papers_networks_with_more_to_learn_from() -> None:
    natural = get_preset("natural")
    assert natural.architecture == paper().architecture
    assert natural.grouping == "image", "as in scoring"
    assert natural.group == natural.patches
    assert natural.weight_degraded > 0
    assert natural.weight_classified > 0
    assert 0 < natural.decay < 1


def test_the_small_preset_is_the_natural_one_with_a_smaller_network_and_a_longer_run() -> None:
    small = get_preset("small")
    assert small.architecture == Architecture(patch_size=64, hidden=(48, 80, 144, 240), latent=240)
    assert (small.images, small.patches, small.epochs, small.learning_rate) == (48, 16, 120, 1e-3)
    assert (small.grouping, small.decay, small.min_scale) == ("image", 0.5, 0.55)


@pytest.mark.parametrize(("name", "kind"), [("natural-v2", "inverted"), ("residual", "residual")])
def test_residual_networks_have_three_teachers_that_are_named_by_their_digests(name: str, kind: str) -> None:
    config = get_preset(name)
    assert config.architecture.kind == kind
    assert (config.images, config.crop_size, config.weight_decay) == (96, 224, 0.01)
    assert config.vae
    assert config.weight_degraded > 0
    assert config.weight_classified > 0
    assert config.teachers.keys() == {"discriminator", "resnet50", "efficientnet-lite0"}
    assert config.teachers["discriminator"] == load_pretrained("natural-v1").digest


@pytest.mark.slow
@pytest.mark.parametrize("name", ["resnet50", "efficientnet-lite0"])
def test_the_backbones_that_teach_natural_v2_are_those_that_are_fetched(name: str) -> None:
    if not is_fetched(name):
        pytest.skip(f"no weights of {name}: get them with `discopatch data fetch {name}`")
    assert load_backbone(name).digest == get_preset("natural-v2").teachers[name]


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_is_found_by_its_name(name: str) -> None:
    assert get_preset(name) is PRESETS[name]
    assert get_preset(name).preset == name


def test_an_unknown_preset_is_refused_with_the_names_there_are() -> None:
    with pytest.raises(ParameterError, match=r"huge.*paper, natural, natural-v2, residual, full, small, tiny"):
        get_preset("huge")


def test_the_learning_rate_is_constant_and_then_falls_in_a_straight_line_to_zero() -> None:
    config = paper(learning_rate=0.5, decay=0.25)
    rates = [config.learning_rate_at(step, 100) for step in range(101)]
    assert rates[:76] == [0.5] * 76
    assert rates[75:] == pytest.approx([0.5 * (25 - fallen) / 25 for fallen in range(26)])
    assert rates[99] > 0, "the last step still learns"
    assert rates[100] == 0


def test_a_learning_rate_may_rise_first_and_fall_as_a_cosine() -> None:
    config = paper(learning_rate=1.0, warm_up=0.1, decay=1.0, schedule="cosine")
    rates = [config.learning_rate_at(step, 100) for step in range(101)]
    cosine = [0.5 * (1 + np.cos(np.pi * step / 100)) for step in range(101)]
    assert rates[9:] == pytest.approx(cosine[9:])
    assert rates[:10] == pytest.approx([(step + 1) / 10 * cosine[step] for step in range(10)])


def test_without_decay_the_learning_rate_never_falls_and_with_all_of_it_from_the_first_step_on() -> None:
    assert {paper().learning_rate_at(step, 100) for step in range(100)} == {8.5e-5}
    falling = paper(learning_rate=1.0, decay=1.0)
    assert [falling.learning_rate_at(step, 4) for step in range(5)] == [1.0, 0.75, 0.5, 0.25, 0.0]


def test_steps_follow_from_epochs_take_their_place_and_are_shared_by_ranks() -> None:
    assert paper().total_steps(1_281_167) == 573_657, "thirty epochs of ImageNet"
    assert paper(epoch_share=0.2).total_steps(1_281_167) == 114_732, "as long as the authors' code makes them"
    assert paper(steps=17).total_steps(10_000) == 17
    assert paper(epochs=2, images=10).total_steps(105, ranks=2) == 11


@pytest.mark.parametrize(
    "config",
    [
        tiny_config(architecture=replace(ARCHITECTURE, normalisation="group"), grouping="image", seed=5, epochs=1.5),
        replace(get_preset("natural"), decay=0.5, vae=False),
        get_preset("natural-v2"),
    ],
)
def test_a_config_survives_json(config: TrainingConfig) -> None:
    assert TrainingConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config


def test_a_config_of_another_version_is_refused() -> None:
    with pytest.raises(RunError, match="depth"):
        TrainingConfig.from_dict({**tiny_config().to_dict(), "depth": 3})


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"images": 0}, "images is 0"),
        ({"steps": 0}, "steps is 0"),
        ({"learning_rate": -1.0}, r"learning_rate is -1\.0"),
        ({"grouping": "patch"}, "'patch'.*batch.*image"),
        ({"weight_degraded": -1.0}, r"weight_degraded is -1\.0"),
        ({"weight_classified": -0.5}, r"weight_classified is -0\.5"),
        ({"decay": -0.1}, r"decay is -0\.1"),
        ({"decay": 1.5}, r"decay is 1\.5"),
        ({"min_scale": 0.0}, r"min_scale is 0\.0"),
        ({"min_scale": 1.1}, r"min_scale is 1\.1"),
        ({"min_scale": 0.2}, r"64.*51"),
        ({"vae": False}, "weight_degraded"),
        ({"weight_distilled": 1.0, "teachers": TEACHER}, "weight_degraded"),
        ({"weight_distilled": 1.0, "weight_degraded": 1.0}, "teacher"),
        ({"teachers": TEACHER, "weight_degraded": 1.0}, "weight_distilled"),
        ({"weight_distilled": -1.0, "weight_degraded": 1.0, "teachers": TEACHER}, r"weight_distilled is -1\.0"),
        ({"weight_distilled": 1.0, "weight_degraded": 1.0, "teachers": {"vgg": "some"}}, "vgg.*resnet50"),
        ({"weight_distilled": 1.0, "weight_degraded": 1.0, "teachers": {"resnet50": "some"}}, "natural-v2"),
        ({"crop": 128, "weight_degraded": 1.0}, "crop is 128.*plain"),
        ({"warm_up": 1.5}, r"warm_up is 1\.5"),
        ({"cut_mix": -0.5}, r"cut_mix is -0\.5"),
        ({"weight_decay": -0.5}, r"weight_decay is -0\.5"),
        ({"schedule": "steps"}, "'steps'.*linear.*cosine"),
    ],
)
def test_a_wrong_value_is_refused_by_its_name(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(ParameterError, match=named):
        paper(**changes)


@pytest.mark.parametrize("name", ["checkpoint_every", "samples_every", "log_every"])
def test_what_is_written_every_so_often_is_written_every_step_at_most(name: str) -> None:
    with pytest.raises(ParameterError, match=f"{name} is 0"):
        replace(RunOptions(), **{name: 0})  # type: ignore[arg-type]


def test_an_unknown_normalisation_names_the_choices() -> None:
    wrong: Any = "layer"
    with pytest.raises(ParameterError, match=r"layer.*patch.*batch.*group.*instance"):
        replace(ARCHITECTURE, normalisation=wrong)


@pytest.mark.parametrize("patch_size", [16 + 8, 31, 33, 16 * 5 + 1])
def test_a_patch_that_does_not_halve_often_enough_names_the_multiple(patch_size: int) -> None:
    with pytest.raises(ParameterError, match=rf"16.*{patch_size}"):
        Architecture(patch_size=patch_size, hidden=(4, 4, 4, 4), latent=4)


def test_an_architecture_has_at_least_one_layer() -> None:
    with pytest.raises(ParameterError):
        Architecture(patch_size=32, hidden=(), latent=4)


def test_the_shape_of_the_last_feature_map() -> None:
    architecture = Architecture(patch_size=32, hidden=(8, 16), latent=4)
    assert (architecture.stride, architecture.cells, architecture.flat) == (4, 8, 16 * 8 * 8)


@pytest.mark.parametrize(
    "architecture",
    [
        TINY_INVERTED,
        *(
            replace(shape, normalisation=normalisation)
            for shape in (ARCHITECTURE, RESIDUAL, replace(RESIDUAL, blocks=1, stem=7))
            for normalisation in get_args(Normalisation)
            if normalisation != "none"
        ),
    ],
)
def test_an_architecture_survives_json(architecture: Architecture) -> None:
    stored = json.loads(json.dumps(architecture.to_dict()))
    assert Architecture.from_dict(stored) == architecture
    assert hash(Architecture.from_dict(stored)) == hash(architecture)


def test_files_of_plain_networks_say_what_they_always_said() -> None:
    assert ARCHITECTURE.to_dict() == {"patch_size": 16, "hidden": [4, 8], "latent": 4, "normalisation": "patch"}
    assert Architecture.from_dict(ARCHITECTURE.to_dict()).kind == "plain"


@pytest.mark.parametrize(
    "changes", [{"blocks": 0}, {"blocks": 9}, {"stem": 5}, {"hidden": (4, 8)}, {"kind": "plain", "stem": 7}]
)
def test_a_residual_network_has_a_stem_and_stages_within_limits(changes: dict[str, Any]) -> None:
    with pytest.raises(DiscopatchError):
        replace(RESIDUAL, **changes)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"crop": None}, "crop is None.*residual"),
        ({"crop": 31}, "crop is 31.*32"),
        ({"min_scale": 0.4}, "crop is 224.*103"),
        ({"weight_degraded": 0.0, "weight_distilled": 0.0, "teachers": {}}, "weight_degraded"),
    ],
)
def test_a_residual_network_is_trained_on_crops_that_fit(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(ParameterError, match=named):
        replace(get_preset("natural-v2"), **{"architecture": RESIDUAL, **changes})


def test_crops_are_no_larger_than_the_images() -> None:
    small = replace(get_preset("natural-v2"), architecture=RESIDUAL, transform=Transform(size=96))
    assert (small.crop_size, get_preset("natural-v2").crop_size) == (96, 224)


@pytest.mark.parametrize("change", [{"depth": 3}, {"latent": None}])
def test_an_architecture_of_another_version_is_refused(change: dict[str, Any]) -> None:
    values = {**ARCHITECTURE.to_dict(), **change}
    with pytest.raises(DiscopatchError):
        Architecture.from_dict({name: value for name, value in values.items() if value is not None})


@pytest.mark.parametrize(("value", "field"), [(ARCHITECTURE, "latent"), (tiny_config(), "images")])
def test_neither_config_nor_architecture_can_be_changed(value: object, field: str) -> None:
    with pytest.raises(FrozenInstanceError):
        setattr(value, field, 9)
