"""Scores counted into bins: whatever the outliers, the bulk stays readable and every image is counted."""

from dataclasses import dataclass
from math import ceil, floor, isfinite

import numpy as np
from numpy.typing import NDArray

Scores = NDArray[np.float64]
Counts = NDArray[np.int64]

_LARGEST = 1e100  # what is larger only needs to be off the axis, and must not overflow on the way


@dataclass(frozen=True, eq=False)
class Bins:
    """Counts of K bins, each with its upper edge and without its lower; first what is below, last what is beyond."""

    edges: Scores  # (K + 1,)
    calibration: Counts  # (K + 2,)
    scored: Counts  # (K + 2,)
    threshold: float | None  # None where it is off the axis


def count(calibration: Scores, scored: Scores, threshold: float, *, bins: int) -> Bins:
    """About so many bins; the threshold is an edge, so that no bin is half flagged."""
    calibration, scored = (np.clip(scores, -_LARGEST, _LARGEST) for scores in (calibration, scored))
    threshold = float(np.clip(threshold, -_LARGEST, _LARGEST)) if isfinite(threshold) else threshold
    low, high = _window(calibration, scored, threshold)
    width = (high - low) / bins
    on_axis = low <= threshold <= high
    anchor = threshold if on_axis else low
    below, above = floor((anchor - low) / width + 1e-6) + 1, max(1, ceil((high - anchor) / width))
    edges = anchor + width * np.arange(-below, above + 1, dtype=np.float64)
    edges[-1] = max(edges[-1], high)  # rounding must not push the largest score off the axis
    return Bins(edges, _counts(calibration, edges), _counts(scored, edges), threshold if on_axis else None)


def _counts(scores: Scores, edges: Scores) -> Counts:
    return np.bincount(np.searchsorted(edges, scores, side="left"), minlength=len(edges) + 1)


def _window(calibration: Scores, scored: Scores, threshold: float) -> tuple[float, float]:
    """From where to where the axis goes: around the bulk of the normal images, and to most others if not too far."""
    everything = np.concatenate([calibration, scored, [threshold] if isfinite(threshold) else []])
    if not everything.size:
        return -1.0, 1.0
    low, high = _bulk(calibration if calibration.size else everything)
    spread = _spread(low, high, scored, threshold)
    others_low, others_high = _bulk(scored) if scored.size else (low, high)
    bottom = min(low - 2 * spread, max(others_low, low - 20 * spread))
    top = max(high + 4 * spread, min(others_high, high + 20 * spread))
    if high < threshold <= high + 20 * spread:
        top = max(top, threshold + spread)
    bottom, top = max(bottom, float(everything.min())), min(top, float(everything.max()))
    return (bottom, top) if top - bottom >= spread / 2 else (bottom - spread / 2, top + spread / 2)


def _spread(low: float, high: float, scored: Scores, threshold: float) -> float:
    """How far normal images differ; where they do not, what else gives the axis a scale."""
    size = max(abs(low), abs(high))
    candidates = [high - low, abs(threshold - high), np.subtract(*_bulk(scored)[::-1]) if scored.size else 0.0]
    enough = (float(each) for each in candidates if isfinite(each) and each > 1e-9 * size + 1e-100)
    return next(enough, size / 10 if size > 1e-90 else 1.0)


def _bulk(scores: Scores) -> tuple[float, float]:
    """Where the middle nine tenths lie."""
    low, high = np.quantile(scores, [0.05, 0.95])
    return float(low), float(high)
