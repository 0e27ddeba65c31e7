"""Scores of held-out normal images turn a score into a p-value, and a promised false-alarm rate into a threshold.

Split conformal prediction: exact when normal images are exchangeable, whatever the head and however few the images.
"""

from math import ceil, floor

import numpy as np
from numpy.typing import ArrayLike, NDArray

ROUNDING = 1e-9  # 1 / 0.01 is not quite 100 in floating point


class TooFewImages(ValueError):  # noqa: N818 - it says what is the matter
    """Too few normal images for what was asked of them."""


def p_values(scores: ArrayLike, calibration: ArrayLike) -> NDArray[np.float64]:
    """Share of normal images at least this strange, counting the image itself: (1 + #{c >= s}) / (1 + n)."""
    ordered = np.sort(np.asarray(calibration, np.float64))
    at_least = len(ordered) - np.searchsorted(ordered, np.asarray(scores, np.float64), side="left")
    result: NDArray[np.float64] = (1 + at_least) / (1 + len(ordered))
    return result


def threshold(calibration: ArrayLike, rate: float) -> float:
    """The score above which p <= rate; infinite when no p-value can be that small."""
    ordered = np.sort(np.asarray(calibration, np.float64))
    allowed = alarms_allowed(len(ordered), rate)
    return float(ordered[-allowed]) if allowed else float("inf")


def alarms_allowed(images: int, rate: float) -> int:
    """Which of the strangest calibration images marks the threshold: the largest k with k / (1 + n) <= rate."""
    return min(floor(rate * (1 + images) + ROUNDING), images)


def images_needed(rate: float) -> int:
    """The fewest calibration images with which a p-value can be as small as the rate."""
    return ceil(1 / check_rate(rate) - ROUNDING) - 1


def calibration_size(images: int, rate: float, *, fewest_to_fit: int) -> int:
    """How many of a person's images to hold out: up to a third, in numbers with which the promise is met exactly.

    With k / rate - 1 images the share of false alarms is the rate itself; with any other number it is a little less.
    """
    needed = images_needed(rate)
    if images - needed < fewest_to_fit:
        raise TooFewImages(
            f"{images} images; a false-alarm rate of {rate:.2%} needs at least {needed + fewest_to_fit} "
            f"({needed} held out to calibrate, {fewest_to_fit} to fit): add images, or raise false_alarm_rate"
            + suggestion(images, fewest_to_fit)
        )
    times = max(1, floor((images / 3 + 1) * rate + ROUNDING))
    return max(needed, ceil(times / rate - ROUNDING) - 1)


def suggestion(images: int, fewest_to_fit: int) -> str:
    """The rate that so many images allow, in words; none when they are too few for any."""
    spare = min(images // 3, images - fewest_to_fit)
    return f" to {ceil(1000 / (spare + 1)) / 1000:.3g}" if spare >= 1 else ""


def rate_range(images: int, rate: float, *, sure: float = 0.9) -> tuple[float, float]:
    """Between which rates the false alarms of this very detector lie, with probability `sure`.

    The promise holds on average over calibration sets; with one set of n images the rate itself is drawn from
    Beta(k, n + 1 - k), which is wide when n is small.
    """
    from scipy.stats import beta

    allowed = alarms_allowed(images, rate)
    if not allowed:
        return 0.0, 0.0
    low, high = beta.ppf([(1 - sure) / 2, (1 + sure) / 2], allowed, images + 1 - allowed)
    return float(low), float(high)


def check_rate(rate: float) -> float:
    """The rate, if it is one."""
    if not 0 < rate < 1:
        raise ValueError(f"false_alarm_rate is {rate}: it must lie between 0 and 1, such as 0.01")
    return rate
