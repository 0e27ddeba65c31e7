"""How well scores separate normal images from shifted ones; higher score = more out-of-distribution.

Each metric is a pure function (normal, shifted) -> float of two lists of scores. The shifted images are the positive
class, except in metrics whose name ends in `_in`.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from discopatch.errors import ParameterError

Floats = NDArray[np.float64]
Metric = Callable[[ArrayLike, ArrayLike], float]


def auroc(normal: ArrayLike, shifted: ArrayLike) -> float:
    """The probability that a shifted image scores higher than a normal one; a tie counts one half."""
    normal, shifted = check_scores(normal, shifted)
    normal = np.sort(normal)
    below = np.searchsorted(normal, shifted, side="left")
    not_above = np.searchsorted(normal, shifted, side="right")
    return float((below + not_above).sum() / (2 * normal.size * shifted.size))


def fpr95(normal: ArrayLike, shifted: ArrayLike) -> float:
    """The share of normal images flagged at the highest threshold that flags 95 % of the shifted ones.

    This is the FPR@95 of OpenOOD 1.5, which the paper's tables follow. A score at the threshold is flagged, as in
    scikit-learn's `roc_curve` with `drop_intermediate=False`.
    """
    normal, shifted = check_scores(normal, shifted)
    needed = -(-19 * shifted.size // 20)  # the fewest that are 95 %, in whole numbers: 0.95 is no exact float
    return float(np.mean(normal >= np.sort(shifted)[-needed]))


def fpr95_in(normal: ArrayLike, shifted: ArrayLike) -> float:
    """The share of shifted images accepted at the lowest threshold that accepts 95 % of the normal ones.

    This is the FPR@95 of ODIN and of OpenOOD before 1.5. A score at the threshold is accepted.
    """
    return fpr95(np.negative(shifted), np.negative(normal))


def aupr_in(normal: ArrayLike, shifted: ArrayLike) -> float:
    """The average precision in finding the normal images; its chance level is their share among all images."""
    return aupr_out(np.negative(shifted), np.negative(normal))


def aupr_out(normal: ArrayLike, shifted: ArrayLike) -> float:
    """The average precision in finding the shifted images; its chance level is their share among all images.

    Average precision is the area below the steps between the thresholds that exist. OpenOOD joins them by straight
    lines, which shows a precision that no threshold reaches (Davis & Goadrich, 2006).
    """
    normal, shifted = (np.sort(scores) for scores in check_scores(normal, shifted))
    hits = shifted.size - np.searchsorted(shifted, shifted, side="left")  # at or above each shifted score
    false_alarms = normal.size - np.searchsorted(normal, shifted, side="left")
    return float(np.mean(hits / (hits + false_alarms)))


METRICS: dict[str, Metric] = {
    "auroc": auroc,
    "fpr95": fpr95,
    "fpr95_in": fpr95_in,
    "aupr_in": aupr_in,
    "aupr_out": aupr_out,
}


def check_scores(normal: ArrayLike, shifted: ArrayLike) -> tuple[Floats, Floats]:
    """Both as float64 arrays of shape (images,), or ParameterError when they cannot be compared."""
    arrays = np.asarray(normal, np.float64), np.asarray(shifted, np.float64)
    if any(scores.ndim != 1 for scores in arrays):
        raise ParameterError(f"scores of shape {arrays[0].shape} and {arrays[1].shape}: give one number for each image")
    if not all(scores.size for scores in arrays):
        raise ParameterError("nothing to compare: give at least one normal and one shifted score")
    if any(np.isnan(scores).any() for scores in arrays):
        raise ParameterError("some scores are NaN: find out which images gave them")
    return arrays
