"""How well scores tell two sets of images apart, and how sure that is.

A metric is a pure function of scores, (normal, shifted) -> share. Higher score = more out-of-distribution. Shifted
images are the positive class, but where a name ends in `_in`.
"""

from collections.abc import Callable, Iterable

import numpy as np
from numpy.typing import ArrayLike

from discopatch.benchmark.bootstrap import (
    RESAMPLES,
    Counts,
    Estimate,
    Floats,
    difference,
    draw,
    least_95_percent,
    over_seeds,
    resample,
)

__all__ = [
    "METRICS",
    "RESAMPLES",
    "Counts",
    "Estimate",
    "Metric",
    "aupr_in",
    "aupr_out",
    "auroc",
    "difference",
    "draw",
    "estimate_all",
    "estimate_auroc",
    "fpr95",
    "fpr95_in",
    "over_seeds",
    "resampled_auroc",
]

Metric = Callable[[ArrayLike, ArrayLike], float]


def auroc(normal: ArrayLike, shifted: ArrayLike) -> float:
    """Probability that a shifted image scores higher than a normal one; a tie counts one half."""
    normal, shifted = comparable(normal, shifted)
    normal = np.sort(normal)
    below = np.searchsorted(normal, shifted, side="left")
    not_above = np.searchsorted(normal, shifted, side="right")
    return float((below + not_above).sum() / (2 * normal.size * shifted.size))


def fpr95(normal: ArrayLike, shifted: ArrayLike) -> float:
    """Share of normal images flagged at the highest threshold that flags 95 % of the shifted ones.

    That of OpenOOD 1.5, which the paper's tables follow. A score at the threshold is flagged, as in scikit-learn's
    `roc_curve` with all its points kept.
    """
    normal, shifted = comparable(normal, shifted)
    return _false_positive_rate(shifted, normal)


def fpr95_in(normal: ArrayLike, shifted: ArrayLike) -> float:
    """Share of shifted images accepted at the lowest threshold that accepts 95 % of the normal ones.

    That of ODIN and of OpenOOD before 1.5. A score at the threshold is accepted.
    """
    normal, shifted = comparable(normal, shifted)
    return _false_positive_rate(-normal, -shifted)


def aupr_in(normal: ArrayLike, shifted: ArrayLike) -> float:
    """Average precision in finding the normal images; its chance level is their share among all images.

    Average precision is the area below the steps between the thresholds there are. OpenOOD joins them by straight
    lines, which promises precision that no threshold reaches (Davis & Goadrich, 2006).
    """
    normal, shifted = comparable(normal, shifted)
    return _average_precision(-normal, -shifted)


def aupr_out(normal: ArrayLike, shifted: ArrayLike) -> float:
    """Average precision in finding the shifted images; see `aupr_in`."""
    normal, shifted = comparable(normal, shifted)
    return _average_precision(shifted, normal)


METRICS: dict[str, Metric] = {
    "auroc": auroc,
    "fpr95": fpr95,
    "fpr95_in": fpr95_in,
    "aupr_in": aupr_in,
    "aupr_out": aupr_out,
}


def estimate_all(
    normal: ArrayLike, shifted: ArrayLike, drawn: tuple[Counts, Counts], *, metrics: Iterable[str] = tuple(METRICS)
) -> dict[str, Estimate]:
    """Every metric with its resamples; `drawn` says which images each has, of the normal ones and of the shifted."""
    names = tuple(metrics)
    if unknown := set(names) - set(METRICS):
        raise ValueError(f"no metric {', '.join(sorted(unknown))}: choose from {', '.join(METRICS)}")
    normal, shifted = comparable(normal, shifted)
    samples = resample(normal, shifted, drawn, names)
    return {name: Estimate(METRICS[name](normal, shifted), samples[name]) for name in names}


def estimate_auroc(normal: ArrayLike, shifted: ArrayLike, drawn: tuple[Counts, Counts]) -> Estimate:
    """AUROC alone."""
    return estimate_all(normal, shifted, drawn, metrics=["auroc"])["auroc"]


def resampled_auroc(normal: ArrayLike, shifted: ArrayLike, normal_drawn: Counts, shifted_drawn: Counts) -> Floats:
    """(resamples,): AUROC of the images drawn."""
    return estimate_auroc(normal, shifted, (normal_drawn, shifted_drawn)).samples


def comparable(normal: ArrayLike, shifted: ArrayLike) -> tuple[Floats, Floats]:
    """As arrays of numbers, or an error that says why not."""
    arrays = np.asarray(normal, np.float64), np.asarray(shifted, np.float64)
    if any(scores.ndim != 1 for scores in arrays):
        raise ValueError(f"scores of shape {arrays[0].shape} and {arrays[1].shape}: give one number for each image")
    if not all(scores.size for scores in arrays):
        raise ValueError("nothing to compare: give at least one normal and one shifted score")
    if any(np.isnan(scores).any() for scores in arrays):
        raise ValueError("scores that are not numbers: find out which images gave NaN")
    return arrays


def _false_positive_rate(positive: Floats, negative: Floats) -> float:
    threshold = np.sort(positive)[-least_95_percent(positive.size)]
    return float(np.mean(negative >= threshold))


def _average_precision(positive: Floats, negative: Floats) -> float:
    positive, negative = np.sort(positive), np.sort(negative)
    hits = positive.size - np.searchsorted(positive, positive, side="left")  # at or above each positive score
    false_alarms = negative.size - np.searchsorted(negative, positive, side="left")
    return float(np.mean(hits / (hits + false_alarms)))
