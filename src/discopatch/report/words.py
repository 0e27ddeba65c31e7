"""Numbers and names as people read them: never more certain than they are, never able to break the page."""

import re
from collections.abc import Callable
from datetime import datetime
from decimal import ROUND_CEILING, Context, Decimal
from html import escape
from math import ceil, floor, log10

import numpy as np
from numpy.typing import NDArray

from discopatch.report.content import ReportContent

_UNSAFE = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff\u2028\u2029\ufffe\uffff]")
_AFTER_FOLDER = re.compile(r"(?<=[/\\])")
_ROUNDED_UP = Context(prec=2, rounding=ROUND_CEILING)


def safe(text: str) -> str:
    """Any text as HTML that shows it and does nothing; what no browser can show becomes a replacement character."""
    return escape(_UNSAFE.sub("\N{REPLACEMENT CHARACTER}", text))


def file_name(name: str) -> str:
    """A name that breaks after its folders first, and whose direction of writing stays its own."""
    return f"<bdi>{_AFTER_FOLDER.sub('<wbr>', safe(name))}</bdi>"


def moment(created: str) -> str:
    """To the minute, with its time zone; what is no ISO time stays as it is."""
    try:
        parsed = datetime.fromisoformat(created)
    except ValueError:
        return created
    return f"{parsed:%Y-%m-%d %H:%M} {parsed.tzname() or ''}".rstrip()


def counted(count: int, noun: str) -> str:
    """1 image, 1,200 images."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def percent(share: float) -> str:
    """1 %, 0.1 %."""
    return f"{100 * share:g}\N{NO-BREAK SPACE}%"


def roughly(number: float) -> str:
    """Two digits, or the whole number where it has more."""
    return f"{number:,.0f}" if number >= 10 else f"{number:.2g}"


def p_value_text(p_value: float, *, smallest: float) -> str:
    """Rounded up, as a p-value claims too much when it is rounded down; the smallest possible is only a bound."""
    if p_value <= smallest * (1 + 1e-9):
        return f"≤\N{NO-BREAK SPACE}{rounded_up(smallest)}"
    return rounded_up(p_value)


def rounded_up(share: float) -> str:
    """Two digits, never less than the share."""
    exact = Decimal(f"{share:.12g}")  # 0.07 is not 0.07000000000000001
    return f"{_ROUNDED_UP.plus(exact).normalize():f}"


def score_format(scores: NDArray[np.float64]) -> Callable[[float], str]:
    """As many decimals as it takes to tell these scores apart."""
    low, high = np.quantile(np.clip(scores, -1e100, 1e100), [0.05, 0.95]) if scores.size else (0, 0)
    scale = float(high - low) or float(abs(high)) or 1.0
    decimals = 2 - floor(log10(scale))

    def text(score: float) -> str:
        readable = decimals <= 8 and abs(score) < 1e9
        return f"{score:z.{max(decimals, 0)}f}" if readable else f"{score:z.6g}"

    return text


def headline(content: ReportContent) -> str:
    """The verdict in one sentence."""
    scored, flagged, refused = len(content.scored), content.flagged, len(content.refused)
    if not scored and not refused:
        return "There was no image to score"
    if not scored:
        return f"{_none_of(refused)} could be scored" if refused > 1 else "The one image could not be scored"
    if not flagged and content.threshold == np.inf:
        return f"Too few normal images to judge {counted(scored, 'image')}"
    if scored == 1:
        return f"The one image is {'unlike' if flagged else 'like'} the normal ones"
    if not flagged:
        return f"{_none_of(scored)} is unlike the normal ones"
    if flagged == scored:
        return f"All {scored:,} images are unlike the normal ones"
    return f"{flagged:,} of {scored:,} images {'is' if flagged == 1 else 'are'} unlike the normal ones"


def _none_of(images: int) -> str:
    return f"None of {images:,} images"


def promise(content: ReportContent) -> str:
    """What the threshold guarantees, or what it takes to guarantee it."""
    rate, normal = percent(content.false_alarm_rate), len(content.calibration_scores)
    if content.threshold == np.inf:
        needed = ceil(1 / content.false_alarm_rate - 1e-9) - 1
        return (
            f"No image can be flagged: to flag at most {rate} of normal images takes at least {needed:,} of them held"
            f" out, not {normal:,}. Add normal images or raise the rate."
        )
    rests_on = counted(normal, "normal image")
    return f"The promise: at most {rate} of normal images are flagged, on average. It rests on {rests_on} held out."


def expected_false_alarms(content: ReportContent) -> str:
    """How many of the flagged there would be at most, on average, were all images normal."""
    return roughly(content.false_alarm_rate * len(content.scored)) if content.threshold < np.inf else "0"
