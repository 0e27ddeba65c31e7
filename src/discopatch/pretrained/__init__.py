"""The released discriminators, inside the package: no network is needed to have them."""

import json
from functools import cache
from importlib.resources import as_file, files
from typing import Any

from discopatch.errors import WeightsError
from discopatch.model import Weights

DEFAULT_WEIGHTS = "natural-v2"
FIRST_WEIGHTS = "natural-v1"  # the paper's discriminator, with more kinds of negatives
SMALL_WEIGHTS = "natural-small-v1"  # a tenth of the work
PAPER_WEIGHTS = "paper-v1"  # the paper's recipe and nothing else
PRETRAINED = (DEFAULT_WEIGHTS, FIRST_WEIGHTS, SMALL_WEIGHTS, PAPER_WEIGHTS)


def load_pretrained(name: str = DEFAULT_WEIGHTS) -> Weights:
    """The released weights of that name; read once, since nobody changes them."""
    check_name(name)
    return read_pretrained(name)


@cache
def read_pretrained(name: str) -> Weights:
    with as_file(files(__name__) / f"{name}.safetensors") as path:
        return Weights.load(path)


def find_pretrained(digest: str) -> Weights | None:
    """The released weights of that digest, if any are."""
    return next((weights for weights in map(read_pretrained, PRETRAINED) if weights.digest == digest), None)


def load_weights(name: str) -> Weights:
    """Released weights by their name, or those of a .safetensors file that `discopatch train` wrote."""
    return Weights.load(name) if name.endswith(".safetensors") else load_pretrained(name)


def model_card(name: str = DEFAULT_WEIGHTS) -> dict[str, Any]:
    """Data, recipe and figures of the released weights, as docs/model-card.md tells them in words."""
    check_name(name)
    card: dict[str, Any] = json.loads((files(__name__) / f"{name}.json").read_text(encoding="utf-8"))
    return card


def check_name(name: str) -> None:
    if name not in PRETRAINED:
        raise WeightsError(
            f"no released weights are called {name!r}: choose one of {', '.join(PRETRAINED)}, or a .safetensors file"
        )
