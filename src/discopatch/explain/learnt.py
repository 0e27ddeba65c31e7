"""A small network that recognises known changes of photos, trained by `studies/learn_changes.py`."""

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Self, TypeVar

import numpy as np
from numpy.typing import NDArray
from safetensors.torch import load_file
from torch import Tensor

from discopatch.explain.descriptors import descriptors
from discopatch.heads.base import Array, read_tensors
from discopatch.images import Pixels

PATH = Path(__file__).with_name("learnt.safetensors")
Number = TypeVar("Number", bound=np.floating)
LINEAR = 3.0  # standard deviations, beyond which descriptors are compressed
N_LAYERS = 3
SHAPES = {
    "centre": ("descriptors",),
    "scale": ("descriptors",),
    "weight0": ("descriptors", "first"),
    "bias0": ("first",),
    "weight1": ("first", "second"),
    "bias1": ("second",),
    "weight2": ("second", "outputs"),
    "bias2": ("outputs",),
}


class LearntChanges:
    """Descriptors of images, and the log-odds of each known change against none.

    The log-odds are calibrated for photos only. They serve as descriptors for other images too, since a fit on normal
    images standardises them.
    """

    def __init__(self, **values: Array) -> None:
        self.values = values

    @classmethod
    @cache
    def load(cls) -> Self:
        """The network that comes with the package."""
        return cls.from_tensors(load_file(PATH))

    def describe(self, pixels: Pixels) -> Array:
        """(B, H, W, 3) in uint8 to (B, numbers); images too small for all descriptors have no log-odds."""
        return self.with_odds(descriptors(pixels))

    def with_odds(self, found: NDArray[np.floating]) -> Array:
        """Descriptors (B, descriptors), followed by the log-odds of the changes if no descriptor is missing."""
        values = found.astype(np.float64)
        known = values.shape[1] == len(self.values["centre"])
        return np.concatenate([values, self.log_odds(values)], 1) if known else values

    def log_odds(self, found: Array) -> Array:
        """(B, descriptors) to (B, changes)."""
        values = drawn_in((found - self.values["centre"]) / self.values["scale"])
        for number in range(N_LAYERS):
            values = np.maximum(values, 0) if number else values
            values = values @ self.values[f"weight{number}"] + self.values[f"bias{number}"]
        odds: Array = values[:, 1:] - values[:, :1]
        return odds

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor]) -> Self:
        """The stored network; WeightsError where a tensor does not fit."""
        return cls(**read_tensors(cls.__name__, tensors, SHAPES, positive=("scale",)))


def drawn_in(values: NDArray[Number]) -> NDArray[Number]:
    """The values, compressed to about their logarithms beyond LINEAR."""
    result: NDArray[Number] = LINEAR * np.arcsinh(values / LINEAR)
    return result
