"""The random order from which the parts of a suite are cut."""

from collections.abc import Sequence
from typing import TypeVar

import numpy as np

T = TypeVar("T")


def in_random_order(files: Sequence[T], *, seed: int, count: int | None = None) -> list[T]:
    """The first so many of the seed's order, or all."""
    return [files[place] for place in np.random.default_rng(seed).permutation(len(files))[:count]]
