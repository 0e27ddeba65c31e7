"""fDBD: how far the features lie from the boundaries between classes."""

from dataclasses import KW_ONLY, dataclass, replace
from typing import ClassVar, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from discopatch.baselines.learning import learnt, of_normal
from discopatch.baselines.method import PENULTIMATE, Array, Classifier, Features

SMALLEST_DISTANCE = 1e-9  # of features that are the mean of normal images themselves, so that the quotient is a number


class Boundaries(NamedTuple):
    """What is learnt once."""

    mean: Array  # (d,) of normal images
    apart: Array  # (classes, classes): |w_a - w_b|


@dataclass(frozen=True, eq=False)
class FDBD:
    """Confidence: mean over other classes c of (l_max - l_c) / |w_max - w_c|, over |f - mean of normal f|.

    Liu and Qin, Fast Decision Boundary based Out-of-Distribution Detector, 2024. Classes whose weights are those of
    the likeliest have no boundary with it and are left out: itself, and any twin.
    """

    needs: ClassVar[tuple[str, ...]] = (PENULTIMATE,)

    classifier: Classifier
    _: KW_ONLY
    boundaries: Boundaries | None = None

    def fit(self, normal: Features) -> Self:
        """The mean of normal images, and how far apart the weights of any two classes are."""
        mean = of_normal(normal, PENULTIMATE).mean(0)
        return replace(self, boundaries=Boundaries(mean, distances_between(self.classifier.weight)))

    def score(self, features: Features) -> Array:
        """-(mean distance to a boundary) / (distance to the mean)."""
        mean, apart = learnt(self.boundaries)
        logits = self.classifier.logits(features[PENULTIMATE])
        between = apart[logits.argmax(1)]  # (images, classes)
        gaps = logits.max(1, keepdims=True) - logits
        distances = np.divide(gaps, between, out=np.zeros_like(gaps), where=between > 0)
        depth = distances.sum(1) / np.maximum(np.count_nonzero(between, axis=1), 1)
        from_mean = np.linalg.norm(features[PENULTIMATE] - mean, axis=1)
        result: Array = -depth / np.maximum(from_mean, SMALLEST_DISTANCE)
        return result


def distances_between(rows: NDArray[np.floating]) -> Array:
    """(n, d) -> (n, n), exactly 0 between rows that differ by rounding alone."""
    values = rows.astype(np.float64)
    squares = np.square(values).sum(1)
    apart = squares[:, None] + squares - 2 * values @ values.T
    rounding = 1e-13 * (squares[:, None] + squares)
    result: Array = np.sqrt(np.where(apart > rounding, apart, 0.0))
    return result
