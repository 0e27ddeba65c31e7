"""The released discriminators, inside the package: no network is needed to have them."""

import json
from functools import cache
from importlib.resources import as_file, files
from typing import Any

from discopatch.model.weights import Weights, WeightsError

DEFAULT = "natural-v1"
SMALL = "natural-small-v1"  # a tenth of the work
RELEASED = (DEFAULT, SMALL)


def released(name: str = DEFAULT) -> Weights:
    """The weights of that name; loaded once, since nobody changes them."""
    return load(name)


def load_weights(name: str) -> Weights:
    """Released ones by their name, or those of a .safetensors file."""
    return Weights.load(name) if name.endswith(".safetensors") else released(name)


@cache
def load(name: str) -> Weights:
    """From the package."""
    check_name(name)
    with as_file(files(__name__) / f"{name}.safetensors") as path:
        return Weights.load(path)


def card(name: str = DEFAULT) -> dict[str, Any]:
    """Data, recipe and figures of the weights of that name, as docs/model-card.md tells them in words."""
    check_name(name)
    found: dict[str, Any] = json.loads((files(__name__) / f"{name}.json").read_text(encoding="utf-8"))
    return found


def check_name(name: str) -> None:
    """Refuses names that are not released."""
    if name not in RELEASED:
        raise WeightsError(f"no released weights are called {name!r}: choose one of {', '.join(RELEASED)}")
