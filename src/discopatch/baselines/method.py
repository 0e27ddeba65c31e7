"""The one interface of all methods, ours and others': features of normal images in, scores of any images out."""

from collections.abc import Mapping
from typing import ClassVar, NamedTuple, Protocol, Self

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Features = Mapping[str, NDArray[np.floating]]  # what a network shows of some images, each array (images, ...)

# The kinds of features that a classifier shows.
PENULTIMATE = "penultimate"  # (images, d), what the last linear layer sees
RANK_LAST = "rank last"  # the same, of the last block's map without its rank-1 part
RANK_BEFORE = "rank before"  # the same, when the block before the last has lost the rank-1 part of its map
STATISTICS = "statistics"  # (images, 2 x channels): means and log-variances of early and middle blocks


class Classifier(NamedTuple):
    """The last, linear layer of a network that was trained to tell classes apart."""

    weight: NDArray[np.float32]  # (classes, d)
    bias: NDArray[np.float32]  # (classes,)

    def logits(self, features: NDArray[np.floating]) -> Array:
        """(images, d) -> (images, classes)."""
        result: Array = features.astype(np.float64) @ self.weight.T.astype(np.float64) + self.bias
        return result


class Method(Protocol):
    """A new method is one small class with these; those that use a classifier take it when they are made."""

    needs: ClassVar[tuple[str, ...]]  # the kinds of features that it looks at

    def fit(self, normal: Features) -> Self:
        """Learns from normal images alone; a method that has nothing to learn returns itself."""

    def score(self, features: Features) -> Array:
        """(images,), higher for more out-of-distribution, each from its own features alone."""
