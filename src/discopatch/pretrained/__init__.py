"""Released discriminators, which are part of the package."""

import json
from functools import cache
from importlib.resources import as_file, files
from typing import Any

from discopatch.errors import WeightsError
from discopatch.model import Weights

DEFAULT_WEIGHTS = "natural-v3"  # an inverted residual network that embeds how images are degraded
EARLIER_WEIGHTS = "natural-v2"  # the default before, without an embedding, with three quarters of the work
SMALL_WEIGHTS = "natural-small-v2"  # the fastest, taught by natural-v3
PAPER_WEIGHTS = "paper-v1"  # the paper's recipe
PRETRAINED = (DEFAULT_WEIGHTS, EARLIER_WEIGHTS, SMALL_WEIGHTS, PAPER_WEIGHTS)


def load_pretrained(name: str = DEFAULT_WEIGHTS) -> Weights:
    """Released weights of that name; each file is read once."""
    check_name(name)
    return read_pretrained(name)


@cache
def read_pretrained(name: str) -> Weights:
    with as_file(files(__name__) / f"{name}.safetensors") as path:
        return Weights.load(path)


def load_weights(name: str) -> Weights:
    """Released weights by name, or the weights of a .safetensors file that `discopatch train` wrote."""
    return Weights.load(name) if name.endswith(".safetensors") else load_pretrained(name)


def model_card(name: str = DEFAULT_WEIGHTS) -> dict[str, Any]:
    """Data, recipe and figures of released weights; docs/model-card.md explains them."""
    check_name(name)
    card: dict[str, Any] = json.loads((files(__name__) / f"{name}.json").read_text(encoding="utf-8"))
    return card


def check_name(name: str) -> None:
    if name not in PRETRAINED:
        raise WeightsError(
            f"no released weights are called {name!r}: choose one of {', '.join(PRETRAINED)}, or a .safetensors file"
        )
