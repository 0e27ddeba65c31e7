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


def test_thirty_epochs_of_imagenet_are_the_papers_steps() -> None:
    assert Recipe.of("paper").total_steps(1_281_167) == 573_657


def test_steps_take_the_place_of_epochs_and_ranks_share_them() -> None:
    assert Recipe.of("paper", steps=17).total_steps(10_000) == 17
    assert Recipe.of("paper", epochs=2, images=10).total_steps(105, ranks=2) == 11


def test_a_recipe_survives_json() -> None:
    recipe = Recipe.of("small", normalisation="group", grouping="image", seed=5, epochs=1.5)
    assert Recipe.from_dict(json.loads(json.dumps(recipe.to_dict()))) == recipe


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"images": 0}, "images is 0"),
        ({"steps": 0}, "steps is 0"),
        ({"learning_rate": -1.0}, "above 0"),
        ({"grouping": "patch"}, "choose one of"),
        ({"normalisation": "layer"}, "choose one of"),
    ],
)
def test_a_wrong_value_is_refused_with_the_choices(changes, words) -> None:
    with pytest.raises(ValueError, match=words):
        Recipe.of("paper", **changes)


def test_an_unknown_preset_is_refused_with_the_names_there_are() -> None:
    with pytest.raises(ValueError, match="paper, natural, full, small"):
        Recipe.of("huge")
