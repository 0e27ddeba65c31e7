"""The histogram as inline SVG: normal images above, scored ones below, one axis, the threshold through both."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import ceil, floor, log10

import numpy as np

from discopatch.report.bins import Bins, Counts, count
from discopatch.report.content import ReportContent
from discopatch.report.words import counted, safe, score_format

_LEFT, _RIGHT = 34, 10  # room for the numbers of the images, and for half a number of the axis
_TOP, _TITLE, _PANEL, _AXIS = 20, 30, 92, 42  # heights: the threshold's label, a panel's title, its bars, the axis
_OFF_AXIS, _GAP = 22, 8  # width of a bar of what lies below or beyond, with the gap that sets it apart
HEIGHT = _TOP + 2 * (_TITLE + _PANEL) + _AXIS


@dataclass(frozen=True)
class Place:
    """Where a score lies in the drawing."""

    bins: Bins
    width: int

    @property
    def left(self) -> float:
        """Where the axis begins."""
        return _LEFT + _OFF_AXIS * bool(self.bins.calibration[0] + self.bins.scored[0])

    @property
    def right(self) -> float:
        """Where it ends."""
        return self.width - _RIGHT - _OFF_AXIS * bool(self.bins.calibration[-1] + self.bins.scored[-1])

    def x(self, score: float) -> float:
        """From left to right."""
        first, last = self.bins.edges[0], self.bins.edges[-1]
        return float(self.left + (self.right - self.left) * (score - first) / (last - first))


@dataclass(frozen=True)
class Panel:
    """One of the two series."""

    title: str
    counts: Counts
    top: float  # of its title
    kind: str  # its class in the style sheet

    @property
    def floor(self) -> float:
        """Where its bars stand."""
        return self.top + _TITLE + _PANEL

    @property
    def full(self) -> int:
        """The number of images that reaches the top."""
        return max(1, int(self.counts.max()))


def histogram(content: ReportContent, *, width: int) -> str:
    """As wide as this, in pixels at which its letters have their size; wide and narrow pages need one each."""
    scores = np.array([each.score for each in content.scored], dtype=np.float64)
    bins = count(content.calibration_scores, scores, content.threshold, bins=max(12, width // 18))
    number = score_format(content.calibration_scores)
    place = Place(bins, width)
    images = " images" if width > 500 else ""  # a narrow page needs the room for what is off the axis
    normal = Panel(f"Normal{images}: {len(content.calibration_scores):,}", bins.calibration, _TOP, "normal")
    scored = Panel(f"Scored{images}: {len(scores):,}", bins.scored, normal.floor, "scored")
    drawing = [
        _flagged_side(place),
        _threshold_line(place),
        *_panel(normal, place, number),
        *_panel(scored, place, number),
        *_axis(place),
        _threshold_label(content.threshold, place, number),
    ]
    return (
        f'<svg class="histogram" viewBox="0 0 {width} {HEIGHT}" width="{width}" height="{HEIGHT}" role="img"'
        f' aria-labelledby="histogram-title-{width} histogram-text-{width}">'
        f'<title id="histogram-title-{width}">How the scores compare with those of normal images</title>'
        f'<desc id="histogram-text-{width}">{safe(_description(content, number))}</desc>'
        f"{''.join(drawing)}</svg>"
    )


def _description(content: ReportContent, number: Callable[[float], str]) -> str:
    normal, scored = content.calibration_scores, [each.score for each in content.scored]
    parts = []
    if normal.size:
        said = counted(len(normal), "normal image")
        parts.append(f"{said} held out: scores from {number(normal.min())} to {number(normal.max())}.")
    if scored:
        said = counted(len(scored), "scored image")
        parts.append(f"{said}: scores from {number(min(scored))} to {number(max(scored))}.")
    if np.isfinite(content.threshold):
        parts.append(f"Threshold: {number(content.threshold)}. Flagged: {counted(content.flagged, 'image')}.")
    return " ".join(parts)


def _panel(panel: Panel, place: Place, number: Callable[[float], str]) -> Iterator[str]:
    off_axis = {"below": int(panel.counts[0]), "beyond": int(panel.counts[-1])}
    others = ", ".join(f"{images:,} {where}" for where, images in off_axis.items() if images)
    baseline = panel.top + 22
    yield f'<rect class="{panel.kind}" x="{_LEFT}" y="{baseline - 9}" width="10" height="10" rx="2"/>'
    yield f'<text class="name" x="{_LEFT + 16}" y="{baseline}">{panel.title}</text>'
    if others:
        yield f'<text class="end" x="{place.width - _RIGHT}" y="{baseline}">and {others}</text>'
    yield from _scale(panel, place)
    for bar in range(len(panel.counts)):
        if panel.counts[bar]:
            yield _bar(panel, bar, place, number)


def _scale(panel: Panel, place: Place) -> Iterator[str]:
    """How many images a bar is: two lines are enough."""
    some = _round_number(panel.full)
    ends = [_sides(0, place), (place.left, place.right), _sides(len(place.bins.edges), place)]
    ground = "".join(f"M{left:.1f} {panel.floor}H{right:.1f}" for left, right in ends if left < right)
    yield f'<path d="M{_LEFT} {panel.floor - _height(panel, some):.1f}H{place.width - _RIGHT}"/>'
    yield f'<path class="base" d="{ground}"/>'
    for images in (0, some):
        y = panel.floor - _height(panel, images)
        yield f'<text class="end" x="{_LEFT - 6}" y="{y + 4:.1f}">{images:,}</text>'


def _bar(panel: Panel, bar: int, place: Place, number: Callable[[float], str]) -> str:
    edges, threshold, images = place.bins.edges, place.bins.threshold, int(panel.counts[bar])
    left, right = _sides(bar, place)
    limits = [f"above {number(edges[bar - 1])}"] if bar else []
    limits += [f"up to {number(edges[bar])}"] if bar < len(edges) else []
    flagged = panel.kind == "scored" and threshold is not None and bar > 0 and edges[bar - 1] >= threshold
    height = max(_height(panel, images), 1.5)  # one image among thousands must not vanish
    return (
        f'<rect class="{"flagged" if flagged else panel.kind}" x="{left + 0.75:.1f}" y="{panel.floor - height:.1f}"'
        f' width="{max(right - left - 1.5, 1):.1f}" height="{height:.1f}">'
        f"<title>{', '.join(limits)}: {counted(images, 'image')}</title></rect>"
    )


def _sides(bar: int, place: Place) -> tuple[float, float]:
    """Left and right of a bar; the first and the last stand apart from the axis."""
    edges = place.bins.edges
    if bar == 0:
        return _LEFT, place.left - _GAP
    if bar == len(edges):
        return place.right + _GAP, place.width - _RIGHT
    return place.x(edges[bar - 1]), place.x(edges[bar])


def _height(panel: Panel, images: int) -> float:
    return _PANEL * images / panel.full


def _flagged_side(place: Place) -> str:
    if place.bins.threshold is None:
        return ""
    left = place.x(place.bins.threshold)
    return (
        f'<rect class="side" x="{left:.1f}" y="{_TOP + _TITLE - 6}" width="{place.width - _RIGHT - left:.1f}"'
        f' height="{HEIGHT - _TOP - _TITLE - _AXIS + 6}"/>'
    )


def _threshold_line(place: Place) -> str:
    if place.bins.threshold is None:
        return ""
    return f'<path class="threshold" d="M{place.x(place.bins.threshold):.1f} 3V{HEIGHT - _AXIS}"/>'


def _threshold_label(threshold: float, place: Place, number: Callable[[float], str]) -> str:
    """Beside its line, or with an arrow at the end of the axis beyond which it lies."""
    if not np.isfinite(threshold):
        return ""
    label = f"threshold {number(threshold)}"
    if place.bins.threshold is not None:
        x = place.x(place.bins.threshold)
        end, x = ("end", x - 6) if x > place.width / 2 else ("start", x + 6)
    elif threshold > place.bins.edges[0]:
        end, x, label = "end", place.width - _RIGHT, f"{label} →"
    else:
        end, x, label = "start", _LEFT, f"← {label}"
    return f'<text class="threshold {end}" x="{x:.1f}" y="14">{label}</text>'


def _axis(place: Place) -> Iterator[str]:
    y = HEIGHT - _AXIS
    step, digits = _tick_step(place.bins.edges[-1] - place.bins.edges[0], most=max(4, place.width // 100))
    first, last = ceil(place.bins.edges[0] / step), floor(place.bins.edges[-1] / step)
    for tick in range(first, last + 1):
        x = place.x(tick * step)
        text = f"{tick * step:z.{digits}f}" if digits <= 6 and abs(tick * step) < 1e7 else f"{tick * step:z.6g}"
        yield f'<path class="base" d="M{x:.1f} {y}v4"/><text class="middle" x="{x:.1f}" y="{y + 17}">{text}</text>'
    middle = (place.left + place.right) / 2
    yield f'<text class="middle name" x="{middle:.0f}" y="{y + 36}">score (higher: less like normal)</text>'


def _tick_step(span: float, *, most: int) -> tuple[float, int]:
    """1, 2 or 5 times a power of ten, and the decimals that it needs."""
    power = floor(log10(span / most))
    step = next(factor for factor in (1, 2, 5, 10, 20) if factor * 10.0**power * most >= span)
    return step * 10.0**power, max(0, -power - (step >= 10))


def _round_number(largest: int) -> int:
    """The largest of 1, 2, 5, 10, 20, 50... that is not above."""
    power: int = 10 ** (len(str(largest)) - 1)
    return next(factor * power for factor in (5, 2, 1) if factor * power <= largest)
