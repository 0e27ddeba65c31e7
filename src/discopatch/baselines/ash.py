"""ASH-S: only the largest features stay, sharpened by how much was pruned."""

from dataclasses import KW_ONLY, dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from discopatch.baselines.energy import energy
from discopatch.baselines.learning import LearnsNothing
from discopatch.baselines.method import PENULTIMATE, Array, Classifier, Features

LARGEST_EXPONENT = 500.0  # never met below the 99.8th percentile of what a relu gives; far beyond it, exp is infinite


@dataclass(frozen=True, eq=False)
class ASH(LearnsNothing):
    """Confidence: E of the head on f pruned below its p-th percentile, times exp(s1 / s2), s1, s2 = sums before, after.

    Djurisic et al., Extremely Simple Activation Shaping for Out-of-Distribution Detection, 2023 (ASH-S).
    """

    needs: ClassVar[tuple[str, ...]] = (PENULTIMATE,)

    classifier: Classifier
    _: KW_ONLY
    percentile: float = 90.0

    def __post_init__(self) -> None:
        check_percentile(self.percentile)

    def score(self, features: Features) -> Array:
        """-E(W (kept f exp(s1 / s2)) + b)."""
        values = np.asarray(features[PENULTIMATE], np.float64)
        kept = largest(values, self.percentile)
        pruned = np.where(kept, values, 0.0)
        return -energy(self.classifier.logits(pruned * sharpening(values, kept)))


def check_percentile(percentile: float) -> None:
    """A percentile that leaves something above it."""
    if not 0 <= percentile < 100:
        raise ValueError(f"percentile is {percentile}: choose one from 0 to below 100, of which the rest is kept")


def largest(x: Array, percentile: float) -> NDArray[np.bool_]:
    """Which of each row are kept: its d - round(d p / 100) largest, at least one, and all that equal the least kept."""
    size = x.shape[1]
    count = max(size - round(size * percentile / 100), 1)
    smallest_kept = np.partition(x, size - count, axis=1)[:, size - count, None]
    result: NDArray[np.bool_] = x >= smallest_kept
    return result


def sharpening(x: Array, kept: NDArray[np.bool_]) -> Array:
    """exp(sum of all / sum of the kept), (images, 1); exp(1) where the kept sum to nothing, as all-zero features do."""
    before, after = (part.sum(1, keepdims=True) for part in (x, np.where(kept, x, 0.0)))
    quotient = np.divide(before, after, out=np.ones_like(before), where=after != 0)
    result: Array = np.exp(np.minimum(quotient, LARGEST_EXPONENT))
    return result
