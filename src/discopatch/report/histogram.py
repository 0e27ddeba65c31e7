"""The histogram of scores: bins, and positions for `templates/histogram.svg.j2`.

Normal images are above, scored images below, with one axis and the threshold through both.
"""

from dataclasses import dataclass
from math import ceil, floor, isfinite, log10

import numpy as np
from numpy.typing import NDArray

from discopatch.report.content import ReportContent

Scores = NDArray[np.float64]
Counts = NDArray[np.int64]

_LARGEST = 1e100  # larger scores are off the axis and would overflow

# In pixels.
_LEFT, _RIGHT = 34, 10  # room for the numbers of images, and for half a number of the axis
_TOP, _TITLE, _PANEL, _AXIS = 20, 30, 92, 42  # heights: the threshold's label, a panel's title, its bars, the axis
_OFF_AXIS, _GAP = 22, 8  # width of a bar of scores below or beyond the axis, and its gap
_HEIGHT = _TOP + 2 * (_TITLE + _PANEL) + _AXIS


@dataclass(frozen=True, eq=False)
class Bins:
    """Counts of K bins, which include their upper edges; the first and the last count are off the axis."""

    edges: Scores  # (K + 1,)
    calibration: Counts  # (K + 2,)
    scored: Counts  # (K + 2,)
    threshold: float | None  # None where it is off the axis


def bin_scores(calibration: Scores, scored: Scores, threshold: float, *, bins: int) -> Bins:
    """Counts of all scores in about so many bins, on an axis that outliers do not stretch.

    A threshold on the axis is an edge, so that no bin is half flagged.
    """
    calibration, scored = (np.clip(scores, -_LARGEST, _LARGEST) for scores in (calibration, scored))
    threshold = float(np.clip(threshold, -_LARGEST, _LARGEST)) if isfinite(threshold) else threshold
    low, high = _axis_range(calibration, scored, threshold)
    width = (high - low) / bins
    on_axis = low <= threshold <= high
    anchor = threshold if on_axis else low
    below, above = floor((anchor - low) / width + 1e-6) + 1, max(1, ceil((high - anchor) / width))
    edges = anchor + width * np.arange(-below, above + 1, dtype=np.float64)
    edges[-1] = max(edges[-1], high)  # rounding must not move the largest score off the axis
    in_bins, scored_in_bins = (
        np.bincount(np.searchsorted(edges, scores, side="left"), minlength=len(edges) + 1)
        for scores in (calibration, scored)
    )
    return Bins(edges, in_bins, scored_in_bins, threshold if on_axis else None)


def _axis_range(calibration: Scores, scored: Scores, threshold: float) -> tuple[float, float]:
    """The ends of the axis: around most normal images, and around most others if they are not too far."""
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
    """The spread of normal scores, or another scale of the axis where they are all equal."""
    size = max(abs(low), abs(high))
    candidates = [high - low, abs(threshold - high), np.subtract(*_bulk(scored)[::-1]) if scored.size else 0.0]
    enough = (float(each) for each in candidates if isfinite(each) and each > 1e-9 * size + 1e-100)
    return next(enough, size / 10 if size > 1e-90 else 1.0)


def _bulk(scores: Scores) -> tuple[float, float]:
    """The ends of the middle nine tenths."""
    low, high = np.quantile(scores, [0.05, 0.95])
    return float(low), float(high)


@dataclass(frozen=True)
class Bar:
    """A rectangle, and the number of images with scores above `above` and up to `up_to`."""

    x: float
    y: float
    width: float
    height: float
    images: int
    above: float | None  # None for the first bar
    up_to: float | None  # None for the last bar
    flagged: bool


@dataclass(frozen=True)
class Panel:
    """One of the two rows of bars."""

    kind: str  # "normal" or "scored", which is its class in the style sheet
    top: int  # y of its title
    floor: int  # y of its baseline
    bars: list[Bar]  # without empty ones
    images: int
    off_axis: dict[str, int]  # numbers of images "below" and "beyond" the axis
    scale: list[tuple[int, float]]  # numbers of images, each with its y


class Histogram:
    """The drawing at one width."""

    def __init__(self, content: ReportContent, *, width: int) -> None:
        self.bins = bin_scores(content.calibration_scores, content.scores, content.threshold, bins=max(12, width // 18))
        self.width, self.height = width, _HEIGHT
        self.first, self.last = _LEFT, width - _RIGHT  # the first and last x of any bar
        off_left, off_right = (self.bins.calibration[end] + self.bins.scored[end] for end in (0, -1))
        self.left = self.first + _OFF_AXIS * bool(off_left)  # the ends of the axis
        self.right = self.last - _OFF_AXIS * bool(off_right)
        self.top, self.floor = _TOP + _TITLE - 6, _HEIGHT - _AXIS  # of the flagged side, and of the axis
        self.panels = [
            self._panel("normal", self.bins.calibration, _TOP),
            self._panel("scored", self.bins.scored, _TOP + _TITLE + _PANEL),
        ]

    def x(self, score: float) -> float:
        low, high = self.bins.edges[0], self.bins.edges[-1]
        return float(self.left + (self.right - self.left) * (score - low) / (high - low))

    def _panel(self, kind: str, counts: Counts, top: int) -> Panel:
        edges, threshold, floor = self.bins.edges, self.bins.threshold, top + _TITLE + _PANEL
        most = max(1, int(counts.max()))
        bars = []
        for place in np.flatnonzero(counts).tolist():
            above, up_to = edges[place - 1] if place else None, edges[place] if place < len(edges) else None
            left, right = self._sides(place)
            height = max(_PANEL * counts[place] / most, 1.5)  # so that one image among thousands is visible
            flagged = kind == "scored" and threshold is not None and above is not None and above >= threshold
            width = max(right - left - 1.5, 1)
            bars.append(Bar(left + 0.75, floor - height, width, height, int(counts[place]), above, up_to, flagged))
        off_axis = {side: int(count) for side, count in (("below", counts[0]), ("beyond", counts[-1])) if count}
        some = _round_number(most)
        scale = [(0, float(floor)), (some, floor - _PANEL * some / most)]
        return Panel(kind, top, floor, bars, int(counts.sum()), off_axis, scale)

    def _sides(self, place: int) -> tuple[float, float]:
        """Left and right of a bar; the first and the last are beside the axis."""
        edges = self.bins.edges
        if place == 0:
            return self.first, self.left - _GAP
        if place == len(edges):
            return self.right + _GAP, self.last
        return self.x(edges[place - 1]), self.x(edges[place])

    @property
    def baselines(self) -> list[tuple[float, float]]:
        """Left and right of each piece of the baseline."""
        pieces = [self._sides(0), (self.left, self.right), self._sides(len(self.bins.edges))]
        return [(left, right) for left, right in pieces if left < right]

    @property
    def ticks(self) -> list[tuple[float, str]]:
        """The numbers of the axis, each with its x."""
        low, high = self.bins.edges[0], self.bins.edges[-1]
        step, digits = _tick_step(high - low, most=max(4, self.width // 100))
        values = [tick * step for tick in range(ceil(low / step), floor(high / step) + 1)]
        return [
            (self.x(value), f"{value:z.{digits}f}" if digits <= 6 and abs(value) < 1e7 else f"{value:z.6g}")
            for value in values
        ]


def _tick_step(span: float, *, most: int) -> tuple[float, int]:
    """1, 2 or 5 times a power of ten, and the decimals that it needs."""
    power = floor(log10(span / most))
    step = next(factor for factor in (1, 2, 5, 10, 20) if factor * 10.0**power * most >= span)
    return step * 10.0**power, max(0, -power - (step >= 10))


def _round_number(largest: int) -> int:
    """The largest of 1, 2, 5, 10, 20, 50... that is not above."""
    power: int = 10 ** (len(str(largest)) - 1)
    return next(factor * power for factor in (5, 2, 1) if factor * power <= largest)
