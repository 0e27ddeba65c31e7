"""How well scores separate normal images from shifted ones; higher score = more out-of-distribution.

Each metric is a pure function (normal, shifted) -> float of two lists of scores. The shifted images are the positive
class, except in metrics whose name ends in `_in`. Intervals come from resampled images, metrics of anomaly maps from
counted pixels.
"""

from collections.abc import Callable
from zlib import crc32

import numpy as np
from numpy.typing import ArrayLike, NDArray

from discopatch.errors import ParameterError
from discopatch.utils import require

Floats = NDArray[np.float64]
Metric = Callable[[ArrayLike, ArrayLike], float]
Counts = NDArray[np.float32]  # (resamples, images): how often each image was drawn; whole numbers, exact to 2**24

RESAMPLES = 1000  # of the test images, for intervals
CONFIDENCE = 0.95
BLOCK = 2**22  # counts worked on at a time: 16 MB, of which some copies are made
OCTAVES, STEPS = 12, 128  # bins of map values: between 2**-12 and 2**12, so many for each factor of 2
BINS = 2 * OCTAVES * STEPS + 1
PRO_LIMIT = 0.3  # false-positive rate up to which AUPRO is integrated


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


# Intervals by resampling images.


def draw_resamples(images: int, *, seed: int, name: str = "", resamples: int = RESAMPLES) -> Counts:
    """Counts (resamples, images) of draws with replacement; `name` gives each image set draws of its own."""
    rng = np.random.default_rng([seed, crc32(name.encode())])
    drawn = rng.multinomial(images, np.full(images, 1 / images), size=resamples)
    return np.asfortranarray(drawn, np.float32)  # an image's counts side by side, since `resample` sorts images


def resample(normal: Floats, shifted: Floats, drawn: tuple[Counts, Counts]) -> tuple[Floats, Floats]:
    """AUROC and FPR95 (resamples,) of scores (images,) that are repeated as often as their images were drawn.

    The scores are sorted. The number of drawn images below a score is then a cumulative sum of counts, for many
    resamples at a time.
    """
    orders = np.argsort(normal), np.argsort(shifted)
    normal, shifted = normal[orders[0]], shifted[orders[1]]
    below, up_to = (np.searchsorted(normal, shifted, side=side) for side in ("left", "right"))
    flagged = -(-19 * shifted.size // 20)  # the fewest shifted images that are 95 %
    size = max(1, BLOCK // (normal.size + shifted.size))
    areas, rates = [], []
    for start in range(0, len(drawn[0]), size):
        part = slice(start, start + size)
        counts = [each[part].T.take(order, axis=0) for each, order in zip(drawn, orders, strict=True)]  # (images, R)
        # Row i: how many of the first i images were drawn.
        n_normal, n_shifted = (np.vstack([np.zeros_like(each[:1]), each]).cumsum(axis=0) for each in counts)
        pairs = counts[1] * (n_normal[below] + n_normal[up_to])
        areas.append(pairs.sum(axis=0, dtype=np.float64) / (2.0 * normal.size * shifted.size))
        threshold = shifted[(n_shifted <= shifted.size - flagged).sum(axis=0) - 1]
        accepted = n_normal[np.searchsorted(normal, threshold, side="left"), np.arange(threshold.size)]
        rates.append(1 - accepted.astype(np.float64) / normal.size)
    return np.concatenate(areas), np.concatenate(rates)


def middle(samples: Floats) -> tuple[float, float]:
    """The ends of the range that holds the middle 95 % of the samples."""
    low, high = np.quantile(samples, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return float(low), float(high)


# Anomaly maps and masks of defects.


def count_pixels(anomaly_map: NDArray[np.floating], mask: NDArray[np.bool_] | None = None) -> NDArray[np.float32]:
    """(3, BINS) for a map (H, W) and the mask of its defects: normal pixels, defect pixels and shares of regions.

    Column i counts the pixels of the i-th bin of map values, highest first. The third row sums, over the regions of
    the mask, the share of the region that is in the bin. Defect pixels that touch, also diagonally, are one region.
    """
    octaves = np.log2(np.maximum(anomaly_map, 2.0**-OCTAVES, dtype=np.float64))
    bins = np.ceil((OCTAVES - octaves) * STEPS).clip(0, BINS - 1).astype(np.intp)
    if mask is None or not mask.any():
        return np.stack([np.bincount(bins.ravel(), minlength=BINS), *np.zeros((2, BINS))]).astype(np.float32)
    require("scipy")
    from scipy.ndimage import label

    regions = label(mask, np.ones((3, 3)))[0][mask]
    shares = 1 / np.bincount(regions)[regions]
    rows = [np.bincount(bins[~mask], minlength=BINS), np.bincount(bins[mask], minlength=BINS)]
    return np.stack([*rows, np.bincount(bins[mask], shares, minlength=BINS)]).astype(np.float32)


def pixel_metrics(counts: NDArray[np.floating]) -> tuple[Floats, Floats]:
    """AUPRO and pixel AUROC (...) of sums of `count_pixels` over images (..., 3, BINS).

    AUPRO is the mean share of a region that is found, averaged over false-positive rates of up to 30 % (Bergmann et
    al., 2021). Both are exact up to the bins, whose values differ by 0.5 %.
    """
    found = np.cumsum(counts, axis=-1, dtype=np.float64)
    found = np.concatenate([np.zeros_like(found[..., :1]), found / found[..., -1:]], axis=-1)
    false, true, overlap = np.moveaxis(found, -2, 0)
    return _mean_height(false, overlap, PRO_LIMIT), _mean_height(false, true, 1.0)


def resample_pixels(
    normal: NDArray[np.float32], defects: NDArray[np.float32], drawn: tuple[Counts, Counts]
) -> tuple[Floats, Floats]:
    """AUPRO and pixel AUROC (resamples,) of `count_pixels` of normal and of defect images, (images, 3, BINS) each."""
    size = max(1, BLOCK // (3 * BINS))
    found = []
    for start in range(0, len(drawn[0]), size):
        counts = [each[start : start + size] for each in drawn]
        sums = sum(np.tensordot(one, other, axes=1) for one, other in zip(counts, (normal, defects), strict=True))
        found.append(pixel_metrics(np.asarray(sums)))
    aupro, pixel_auroc = map(np.concatenate, zip(*found, strict=True))
    return aupro, pixel_auroc


def _mean_height(x: Floats, y: Floats, limit: float) -> Floats:
    """The mean of y over x from 0 to `limit`, along the last axis, on straight lines between the points."""
    start, end = np.minimum(x[..., :-1], limit), np.minimum(x[..., 1:], limit)
    length = x[..., 1:] - x[..., :-1]
    share = np.divide(end - start, length, out=np.zeros_like(length), where=length > 0)  # of a line before the limit
    height = y[..., :-1] + share * (y[..., 1:] - y[..., :-1]) / 2
    result: Floats = ((end - start) * height).sum(axis=-1) / limit
    return result
