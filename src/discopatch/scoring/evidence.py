"""What the discriminator shows of an image before anything is decided: logits, and the statistics of its layers."""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

# How the statistics of some normal images move under known changes: name -> (images, 2 x channels), after less before.
Displacements = Mapping[str, NDArray[np.float32]]


class Evidence(NamedTuple):
    """Of some images. Plain arrays: heads need no network and no torch."""

    logits: NDArray[np.float32]  # (images, places)
    statistics: NDArray[np.float32]  # (images, 2 x channels): layer by layer its means, then its log-variances

    @classmethod
    def concatenate(cls, parts: Sequence["Evidence"]) -> Self:
        """Of all images of the parts, in their order."""
        return cls(*(np.concatenate(arrays) for arrays in zip(*parts, strict=True)))

    def one_by_one(self) -> Iterator["Evidence"]:
        """Of each image by itself."""
        return (self.of(slice(place, place + 1)) for place in range(len(self.logits)))

    def of(self, which: NDArray[np.intp] | NDArray[np.bool_] | slice) -> "Evidence":
        """Of some of the images; a tuple's own index stays what it is for a tuple."""
        return Evidence(self.logits[which], self.statistics[which])
