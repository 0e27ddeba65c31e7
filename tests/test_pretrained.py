"""The released weights are part of the package and belong to their cards."""

import hashlib
from collections.abc import Callable
from dataclasses import replace
from importlib.resources import files

import numpy as np
import pytest

from discopatch.encoders import DiscriminatorEncoder
from discopatch.errors import WeightsError
from discopatch.images import Transform
from discopatch.model import Architecture
from discopatch.model.config import LITE0
from discopatch.pretrained import load_pretrained, load_weights, model_card
from discopatch.training import TrainingConfig, get_preset

FOLDER = files("discopatch.pretrained")


# Its file is older than the fields `depths` and `embedding`.
NATURAL_V2 = replace(get_preset("natural-v3").architecture, depths=LITE0, embedding=0)


@pytest.mark.parametrize(
    ("name", "architecture", "parameters", "digest"),
    [
        ("natural-v2", NATURAL_V2, 2_939_233, "fbf5b360c2537be3"),
        ("natural-v3", get_preset("natural-v3").architecture, 3_976_929, "89a20bd6bd1e713d"),
        ("natural-small-v2", get_preset("natural-small-v2").architecture, 1_077_633, "6008f867079c4e56"),
        ("paper-v1", get_preset("paper").architecture, 6_218_753, "77e983f7e2ab58f0"),
    ],
)
def test_released_weights_have_their_architecture(
    name: str, architecture: Architecture, parameters: int, digest: str
) -> None:
    weights, card = load_pretrained(name), model_card(name)
    assert weights.discriminator.architecture == architecture
    assert sum(parameter.numel() for parameter in weights.discriminator.parameters()) == parameters
    assert weights.transform == Transform(size=256)
    assert weights.digest == digest == card["weights_digest"]
    assert card["transform_digest"] == weights.transform.digest
    assert card["sha256"] == hashlib.sha256((FOLDER / f"{name}.safetensors").read_bytes()).hexdigest()


def test_the_papers_weights_have_its_recipe_and_nothing_else() -> None:
    stored = load_pretrained("paper-v1").origin["config"]
    recipe = {name: value for name, value in get_preset("paper").to_dict().items() if name in stored}
    changed = {name for name, value in recipe.items() if value != stored[name]} - {"architecture"}
    assert changed == {"steps"}
    assert TrainingConfig.from_dict({**get_preset("paper").to_dict(), "steps": stored["steps"]}) == replace(
        get_preset("paper"), steps=stored["steps"]
    )


@pytest.mark.parametrize("load", [load_pretrained, load_weights, model_card])
def test_an_unknown_name_lists_the_names_there_are(load: Callable[[str], object]) -> None:
    with pytest.raises(WeightsError, match="natural-small-v2"):
        load("paper-v2")


def test_released_weights_are_read_once_and_scoring_leaves_them_as_they_are() -> None:
    weights = load_pretrained("natural-small-v2")
    found = DiscriminatorEncoder(weights, patches="dense").extract_pixels(np.zeros((1, 256, 256, 3), np.uint8))
    assert np.isfinite(found.logits).all()
    assert load_weights("natural-small-v2") is weights
    assert weights.digest == "6008f867079c4e56"
