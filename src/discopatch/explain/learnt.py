"""A small network that was taught on photos which known change a picture looks like (`studies/learn_changes.py`)."""

from collections.abc import Mapping
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Self, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file
from torch import Tensor

from discopatch.explain.descriptors import descriptors
from discopatch.heads.base import Array, Size, Stored, read_stored
from discopatch.images import Pixels

PATH = Path(__file__).with_name("learnt.safetensors")
Number = TypeVar("Number", bound=np.floating)
LINEAR = 3.0  # standard deviations, beyond which a descriptor counts by its logarithm
DESCRIPTORS = Size("descriptors", 1000, least=1)
LAYERS = (DESCRIPTORS, Size("first", 1000), Size("second", 1000), Size("outputs", 1000, least=2))
STORED = {"centre": Stored(DESCRIPTORS), "scale": Stored(DESCRIPTORS, positive=True)}
for _number, (_before, _after) in enumerate(pairwise(LAYERS)):
    STORED |= {f"weight{_number}": Stored(_before, _after), f"bias{_number}": Stored(_after)}


class LearntChanges:
    """Descriptors of pictures, and how much likelier each known change is than none by what was learnt from photos.

    What it says of other kinds of pictures may be off, but is as good a descriptor as any: a fit on normal images says
    what is usual.
    """

    def __init__(self, **values: Array) -> None:
        self.values = values

    @classmethod
    @cache
    def load(cls) -> Self:
        """The network that comes with the package."""
        return cls.from_tensors(load_file(PATH))

    def describe(self, pixels: Pixels) -> Array:
        """(B, H, W, 3) in uint8 to (B, numbers); pictures too small for all descriptors have those alone."""
        return self.with_odds(descriptors(pixels))

    def with_odds(self, found: NDArray[np.floating]) -> Array:
        """Descriptors (B, descriptors), and beside them the log-odds of the changes where all descriptors are there."""
        values = found.astype(np.float64)
        known = values.shape[1] == len(self.values["centre"])
        return np.concatenate([values, self.log_odds(values)], 1) if known else values

    def log_odds(self, found: Array) -> Array:
        """(B, descriptors) to (B, changes)."""
        values = drawn_in((found - self.values["centre"]) / self.values["scale"])
        for number in range(len(LAYERS) - 1):
            values = np.maximum(values, 0) if number else values
            values = values @ self.values[f"weight{number}"] + self.values[f"bias{number}"]
        odds: Array = values[:, 1:] - values[:, :1]
        return odds

    def to_tensors(self) -> dict[str, Tensor]:
        return {name: torch.from_numpy(value) for name, value in self.values.items()}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor]) -> Self:
        """WeightsError where a tensor is not what was taught."""
        found = read_stored(cls.__name__, tensors, STORED, {})
        return cls(**{name: np.asarray(value, np.float64) for name, value in found.items()})


def drawn_in(values: NDArray[Number]) -> NDArray[Number]:
    """The values, and beyond LINEAR about their logarithms."""
    result: NDArray[Number] = LINEAR * np.arcsinh(values / LINEAR)
    return result
