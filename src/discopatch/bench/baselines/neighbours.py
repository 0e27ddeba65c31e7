"""Baselines that compare an image with a bank of normal ones: kNN and NNGuide; and its places with theirs."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import numpy as np
import torch
from numpy.typing import NDArray

from discopatch.bench.baselines.base import ClassifierBaseline, Setting, check_fitted, energy
from discopatch.bench.networks.base import LOCAL, PENULTIMATE, Array, FeatureDict
from discopatch.errors import ParameterError
from discopatch.heads import LocalMemory

MAX_NEIGHBOURS = 50
MAX_PRODUCTS = 2**22  # of scored images with normal images at a time: 32 MB


@dataclass(frozen=True, eq=False, kw_only=True)
class KNN(ClassifierBaseline):
    """Score: |f/|f| - f_k/|f_k||, f_k the k-th nearest of the normal images.

    Sun et al., Out-of-Distribution Detection with Deep Nearest Neighbors, 2022. k is 50, or one percent of the normal
    images where these are few: the k-th must still be of the image's own kind, which is why the paper takes 1000 of all
    of ImageNet but 10 of one percent of it, fewer than there are in a class.
    """

    needs_classifier = False
    options: ClassVar = {"k": int}

    k: int | None = None  # None for the rule above
    bank: Array | None = None  # (normal images, d), rows of length 1

    def __post_init__(self) -> None:
        check_neighbours(self.k)

    def fit(self, normal: FeatureDict) -> Self:
        return replace(self, bank=unit_rows(np.asarray(normal[PENULTIMATE], np.float64)))

    def score(self, features: FeatureDict) -> Array:
        bank = check_fitted(self.bank)
        k = self.n_neighbours(len(bank))
        squares = np.square(bank).sum(1)

        def distances(x: NDArray[np.floating]) -> Array:
            # Found by the squared distance less what all neighbours share, then measured without cancellation.
            units = unit_rows(x)
            kth = np.argpartition(squares - 2 * units @ bank.T, k - 1, axis=1)[:, k - 1]
            result: Array = np.linalg.norm(units - bank[kth], axis=1)
            return result

        return score_in_chunks(distances, features[PENULTIMATE], bank)

    def n_neighbours(self, images: int) -> int:
        """k when fitted on so many normal images."""
        return max(1, min(MAX_NEIGHBOURS, images // 100)) if self.k is None else min(self.k, images)

    def settings(self, images: int) -> dict[str, Setting]:
        return {"k": self.n_neighbours(images)}


@dataclass(frozen=True, eq=False, kw_only=True)
class NNGuide(ClassifierBaseline):
    """Confidence: E(l) times the mean of the K largest of f/|f| . f_i/|f_i| E(l_i) over normal images i.

    Park et al., Nearest Neighbor Guidance for Out-of-Distribution Detection, 2023. The paper keeps one percent of
    ImageNet, 12 800 images; here every normal image is kept, and K is at most their number. Where a classifier's
    energies are negative the formula stays as it is, though the paper did not mean it for them.
    """

    options: ClassVar = {"k": int}

    k: int = 100
    bank: Array | None = None  # (normal images, d), each row as long as the image's energy

    def __post_init__(self) -> None:
        check_neighbours(self.k)

    def fit(self, normal: FeatureDict) -> Self:
        values = np.asarray(normal[PENULTIMATE], np.float64)
        return replace(self, bank=unit_rows(values) * energy(self.classifier.logits(values))[:, None])

    def score(self, features: FeatureDict) -> Array:
        bank = check_fitted(self.bank)
        k = min(self.k, len(bank))

        def guided(x: NDArray[np.floating]) -> Array:
            products = unit_rows(x) @ bank.T
            guidance = np.partition(products, len(bank) - k, axis=1)[:, len(bank) - k :].mean(1)
            result: Array = -energy(self.classifier.logits(x)) * guidance
            return result

        return score_in_chunks(guided, features[PENULTIMATE], bank)

    def settings(self, images: int) -> dict[str, Setting]:
        return {"k": min(self.k, images)}


@dataclass(frozen=True, eq=False, kw_only=True)
class Local(ClassifierBaseline):
    """Score: the mean distance of the 8 places of an image that are farthest from stored places of normal images.

    The `LocalMemory` of this package, which follows PatchCore.
    """

    needs_classifier = False
    needs = (LOCAL,)
    without = "it has no maps of middle layers over the whole image; a discriminator has them in one dense pass"

    memory: LocalMemory | None = None
    device: str | torch.device = "cpu"  # of its products: thousands for each place of an image

    def fit(self, normal: FeatureDict) -> Self:
        return replace(self, memory=LocalMemory.fit(normal[LOCAL]).to(self.device))

    def score(self, features: FeatureDict) -> Array:
        return check_fitted(self.memory).score(features[LOCAL])


def check_neighbours(k: int | None) -> None:
    """Raises ParameterError for fewer than one neighbour; None stands for a rule."""
    if k is not None and k < 1:
        raise ParameterError(f"k is {k}: ask for at least one neighbour")


def unit_rows(x: NDArray[np.floating]) -> Array:
    """Each row divided by its length; a row of zeros stays one."""
    values = np.asarray(x, np.float64)
    lengths = np.linalg.norm(values, axis=1, keepdims=True)
    result: Array = values / np.where(lengths > 0, lengths, 1.0)
    return result


def score_in_chunks(score: Callable[[NDArray[np.floating]], Array], x: NDArray[np.floating], bank: Array) -> Array:
    """`score` of all rows, so many at a time that their products with the bank stay small however many there are."""
    rows = max(1, MAX_PRODUCTS // len(bank))
    return np.concatenate([np.empty(0), *(score(x[start : start + rows]) for start in range(0, len(x), rows))])
