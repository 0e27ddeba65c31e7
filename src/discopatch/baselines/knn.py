"""kNN: how far the k-th nearest normal image is."""

from dataclasses import KW_ONLY, dataclass, replace
from typing import ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from discopatch.baselines.learning import in_chunks, learnt, normalised, of_normal
from discopatch.baselines.method import PENULTIMATE, Array, Classifier, Features

MOST_NEIGHBOURS = 50


@dataclass(frozen=True, eq=False)
class KNN:
    """Score: |f/|f| - f_k/|f_k||, f_k the k-th nearest of the normal images.

    Sun et al., Out-of-Distribution Detection with Deep Nearest Neighbors, 2022. k is 50, or one percent of the normal
    images where these are few: the k-th must still be of the image's own kind, which is why the paper takes 1000 of all
    of ImageNet but 10 of one percent of it, fewer than there are in a class.
    """

    needs: ClassVar[tuple[str, ...]] = (PENULTIMATE,)

    classifier: Classifier
    _: KW_ONLY
    k: int | None = None  # None for the rule above
    bank: Array | None = None  # (normal images, d), rows of length 1

    def __post_init__(self) -> None:
        if self.k is not None and self.k < 1:
            raise ValueError(f"k is {self.k}: ask for at least one neighbour")

    def fit(self, normal: Features) -> Self:
        """Keeps the normal images."""
        return replace(self, bank=normalised(of_normal(normal, PENULTIMATE)))

    def score(self, features: Features) -> Array:
        """Found by squared distance, less what is the same for all neighbours; then measured without cancellation."""
        bank = learnt(self.bank)
        k = usual_k(len(bank)) if self.k is None else min(self.k, len(bank))
        lengths = np.square(bank).sum(1)

        def distance(x: NDArray[np.floating]) -> Array:
            units = normalised(x)
            kth = np.argpartition(lengths - 2 * units @ bank.T, k - 1, axis=1)[:, k - 1]
            result: Array = np.linalg.norm(units - bank[kth], axis=1)
            return result

        return in_chunks(distance, features[PENULTIMATE], bank)


def usual_k(images: int) -> int:
    """k with so many normal images."""
    return max(1, min(MOST_NEIGHBOURS, images // 100))
