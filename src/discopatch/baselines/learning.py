"""What methods share: nothing to learn, or something to learn from normal images and to keep."""

from collections.abc import Callable
from typing import Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from discopatch.baselines.method import Array, Features

T = TypeVar("T")

AT_A_TIME = 2**22  # numbers that stand between scored images and normal images at one time: 32 MB


class LearnsNothing:
    """What methods share that know all they need from the classifier."""

    def fit(self, normal: Features) -> Self:
        """Nothing to learn."""
        return self


def learnt(part: T | None) -> T:
    """What `fit` has learnt, or an error that says to call it."""
    if part is None:
        raise ValueError("this method has not been fitted: call fit with the features of normal images first")
    return part


def of_normal(normal: Features, kind: str) -> Array:
    """(normal images, d) of one kind, of at least one image."""
    values = np.asarray(normal[kind], np.float64)
    if not len(values):
        raise ValueError("no normal images to learn from: fit needs the features of at least one, better of hundreds")
    return values


def normalised(x: NDArray[np.floating]) -> Array:
    """Each row divided by its length; a row of zeros stays one."""
    values = np.asarray(x, np.float64)
    lengths = np.linalg.norm(values, axis=1, keepdims=True)
    result: Array = values / np.where(lengths > 0, lengths, 1.0)
    return result


def in_chunks(score: Callable[[NDArray[np.floating]], Array], x: NDArray[np.floating], bank: Array) -> Array:
    """`score` of all rows, so many at a time that their products with the bank stay small however many there are."""
    rows = max(1, AT_A_TIME // len(bank))
    return np.concatenate([np.empty(0), *(score(x[first : first + rows]) for first in range(0, len(x), rows))])
