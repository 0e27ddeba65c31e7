"""The histogram of scores: bins, and positions for `templates/histogram.svg.j2`.

Normal images are above, scored images below, with one axis and the threshold through both.
"""

from math import ceil, floor, log10
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from discopatch.report.content import ReportContent

Scores = NDArray[np.float64]

LARGEST = 1e100  # larger scores would overflow
FAR = 20  # spreads of normal scores: the axis ends there, and further images count in its outermost bins

# In pixels.
LEFT, RIGHT = 34, 10  # room for the numbers of images, and for half a number of the axis
TOP, TITLE, PANEL, AXIS = 20, 30, 92, 42  # heights: the threshold's label, a panel's title, its bars, the axis
HEIGHT = TOP + 2 * (TITLE + PANEL) + AXIS


def bin_edges(normal: Scores, scored: Scores, threshold: float, *, bins: int) -> Scores:
    """The edges of about so many bins. A threshold on the axis is an edge, so that no bin is half flagged."""
    everything = np.concatenate([normal, scored])
    if not everything.size:
        return np.linspace(-1, 1, bins + 1)
    low, high = np.quantile(normal if normal.size else everything, [0.05, 0.95])
    spread = max(high - low, 1e-9 * abs(high), 1e-9)
    bottom, top = max(everything.min(), low - FAR * spread), min(everything.max(), high + FAR * spread)
    if high < threshold <= high + FAR * spread:
        top = max(top, threshold + spread)
    width = max(top - bottom, spread) / bins
    anchor = threshold if bottom <= threshold <= top else bottom
    below, above = floor((anchor - bottom) / width) + 1, max(1, ceil((top - anchor) / width))
    edges: Scores = anchor + width * np.arange(-below, above + 1)
    return edges


class Bar(NamedTuple):
    """A rectangle, and the number of images with scores above `above` and up to `up_to`."""

    x: float
    y: float
    width: float
    height: float
    images: int
    above: float | None  # None for the first bin, which has all lower scores
    up_to: float | None  # None for the last bin, which has all higher scores
    flagged: bool


class Panel(NamedTuple):
    """One of the two rows of bars."""

    kind: str  # "normal" or "scored", which is its class in the style sheet
    top: int  # y of its title
    floor: int  # y of its baseline
    bars: list[Bar]  # without empty ones
    images: int
    beyond: int  # scores above the axis, which count in the last bar
    scale: list[tuple[int, float]]  # numbers of images, each with its y


class Histogram:
    """The drawing at one width."""

    def __init__(self, content: ReportContent, *, width: int) -> None:
        normal, scored = (np.clip(each, -LARGEST, LARGEST) for each in (content.calibration_scores, content.scores))
        self.edges = bin_edges(normal, scored, content.threshold, bins=max(12, width // 18))
        self.threshold = content.threshold if content.threshold in self.edges else None
        self.width, self.height, self.left, self.right = width, HEIGHT, LEFT, width - RIGHT
        self.top, self.floor = TOP + TITLE - 6, HEIGHT - AXIS  # of the flagged side, and of the axis
        self.panels = [self._panel("normal", normal, TOP), self._panel("scored", scored, TOP + TITLE + PANEL)]

    def x(self, score: float) -> float:
        low, high = self.edges[0], self.edges[-1]
        return float(self.left + (self.right - self.left) * (score - low) / (high - low))

    def _panel(self, kind: str, scores: Scores, top: int) -> Panel:
        edges, floor, last = self.edges, top + TITLE + PANEL, len(self.edges) - 2
        places = np.clip(np.searchsorted(edges, scores, side="left") - 1, 0, last)
        counts = np.bincount(places, minlength=last + 1)
        most = max(1, int(counts.max()))
        bars = []
        for place in np.flatnonzero(counts).tolist():
            left, right = self.x(edges[place]), self.x(edges[place + 1])
            height = max(PANEL * counts[place] / most, 1.5)  # so that one image among thousands is visible
            flagged = kind == "scored" and self.threshold is not None and edges[place] >= self.threshold
            limits = edges[place] if place else None, edges[place + 1] if place < last else None
            width = max(right - left - 1.5, 1)
            bars.append(Bar(left + 0.75, floor - height, width, height, int(counts[place]), *limits, flagged))
        some = round_number(most)
        return Panel(
            kind,
            top,
            floor,
            bars,
            len(scores),
            int((scores > edges[-1]).sum()),
            [(0, float(floor)), (some, floor - PANEL * some / most)],
        )

    @property
    def ticks(self) -> list[tuple[float, str]]:
        """The numbers of the axis, each with its x."""
        low, high = self.edges[0], self.edges[-1]
        least = (high - low) / max(4, self.width // 100)
        power = 10.0 ** floor(log10(least))
        step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= 0.999 * least)
        values = [tick * step for tick in range(ceil(low / step), floor(high / step) + 1)]
        digits = max(0, -floor(log10(step) + 1e-9))
        return [
            (self.x(each), f"{each:z.{digits}f}" if digits <= 6 and abs(each) < 1e7 else f"{each:z.6g}")
            for each in values
        ]


def round_number(largest: int) -> int:
    """The largest of 1, 2, 5, 10, 20, 50... that is not above."""
    power: int = 10 ** (len(str(largest)) - 1)
    return next(factor * power for factor in (5, 2, 1) if factor * power <= largest)
