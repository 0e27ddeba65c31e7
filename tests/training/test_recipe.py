import json

import pytest

from discopatch.training.recipe import Recipe


def test_the_defaults_are_the_papers() -> None:
    recipe = Recipe.of("paper")
    assert (recipe.images, recipe.patches, recipe.epochs, recipe.learning_rate) == (67, 48, 30, 8.5e-5)
    assert (recipe.beta1, recipe.beta2) == (0.9, 0.999)
    assert (recipe.weight_kl, recipe.weight_reconstructed, recipe.weight_generated) == (1e-4, 1e-3, 1e-3)
    assert recipe.grouping == "batch"
    assert recipe.group is None
    full = Recipe.of("full")
    assert (full.images, full.patches, full.epochs, full.learning_rate) == (660, 1, 70, 5e-5)


@pytest.mark.parametrize("preset", ["paper", "full", "tiny"])
def test_what_is_not_the_papers_is_off(preset: str) -> None:
    recipe = Recipe.of(preset)
    assert (recipe.weight_spoiled, recipe.weight_named, recipe.decay) == (0, 0, 0)
    assert recipe.smallest_scale == 1
    assert recipe.forgeries


def test_the_natural_preset_is_the_papers_networks_with_more_to_learn_from() -> None:
    natural, paper = Recipe.of("natural"), Recipe.of("paper")
    assert natural.architecture == paper.architecture
    assert natural.grouping == "image", "as in scoring"
    assert natural.weight_spoiled > 0
    assert natural.weight_named > 0
    assert 0 < natural.decay < 1


def test_the_learning_rate_is_constant_and_then_falls_in_a_straight_line_to_zero() -> None:
    recipe = Recipe.of("paper", learning_rate=0.5, decay=0.25)
    rates = [recipe.learning_rate_at(step, 100) for step in range(101)]
    assert rates[:76] == [0.5] * 76
    assert rates[75:] == pytest.approx([0.5 * (25 - fallen) / 25 for fallen in range(26)])
    assert rates[99] > 0, "the last step still learns"
    assert rates[100] == 0


def test_without_decay_the_learning_rate_never_falls() -> None:
    recipe = Recipe.of("paper")
    assert {recipe.learning_rate_at(step, 100) for step in range(100)} == {8.5e-5}


def test_a_run_can_decay_from_its_first_step() -> None:
    recipe = Recipe.of("paper", learning_rate=1.0, decay=1.0)
    assert [recipe.learning_rate_at(step, 4) for step in range(5)] == [1.0, 0.75, 0.5, 0.25, 0.0]


def test_thirty_epochs_of_imagenet_are_the_papers_steps() -> None:
    assert Recipe.of("paper").total_steps(1_281_167) == 573_657


def test_steps_take_the_place_of_epochs_and_ranks_share_them() -> None:
    assert Recipe.of("paper", steps=17).total_steps(10_000) == 17
    assert Recipe.of("paper", epochs=2, images=10).total_steps(105, ranks=2) == 11


def test_a_recipe_survives_json() -> None:
    for recipe in (
        Recipe.of("tiny", normalisation="group", grouping="image", seed=5, epochs=1.5),
        Recipe.of("natural", decay=0.5, forgeries=False),
    ):
        assert Recipe.from_dict(json.loads(json.dumps(recipe.to_dict()))) == recipe


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"images": 0}, "images is 0"),
        ({"steps": 0}, "steps is 0"),
        ({"learning_rate": -1.0}, "above 0"),
        ({"grouping": "patch"}, "choose one of"),
        ({"normalisation": "layer"}, "choose one of"),
        ({"weight_spoiled": -1.0}, r"weight_spoiled is -1\.0: it must be 0 or above"),
        ({"weight_named": -0.5}, r"weight_named is -0\.5: it must be 0 or above"),
        ({"decay": -0.1}, r"decay is -0\.1: it must be 0 or above"),
        ({"decay": 1.5}, r"decay is 1\.5: it is a share of the run, at most 1"),
        ({"smallest_scale": 0.0}, r"smallest_scale is 0\.0: it must lie above 0, and be 1 at most"),
        ({"smallest_scale": 1.1}, r"smallest_scale is 1\.1: it must lie above 0, and be 1 at most"),
        ({"smallest_scale": 0.2}, "a patch of 64 pixels does not fit a picture of 51"),
        ({"forgeries": False}, "nothing is left to learn from: give weight_spoiled"),
    ],
)
def test_a_wrong_value_is_refused_with_the_choices(changes, words) -> None:
    with pytest.raises(ValueError, match=words):
        Recipe.of("paper", **changes)


def test_an_unknown_preset_is_refused_with_the_names_there_are() -> None:
    with pytest.raises(ValueError, match="paper, natural, full, small"):
        Recipe.of("huge")
