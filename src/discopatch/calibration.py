"""Held-out normal images turn a score into a p-value, and a false-alarm rate into a threshold.

Split conformal prediction: exact when normal images are exchangeable, whatever the head and however few the images.
With groups of similar images (bursts, scenes, parts), the groups are what must be exchangeable: they are held out as
wholes, and one image of each calibrates, so that a p-value holds for an image of a new group.
"""

from collections.abc import Collection, Hashable, Sequence
from dataclasses import dataclass
from math import ceil, floor
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from discopatch.errors import ParameterError, TooFewImagesError

ROUNDING = 1e-9  # 1 / 0.01 is not quite 100 in floating point
FOLDS = 5  # of cross-validation
FEW_IMAGES = 100  # to fit on, below which the statistics of a camera are only roughly known

Index = NDArray[np.intp]
Groups = Sequence[Hashable] | NDArray[Any]  # one id for each image


def p_values(scores: ArrayLike, calibration: ArrayLike) -> NDArray[np.float64]:
    """Share of normal images with at least this score, counting the image itself: (1 + #{c >= s}) / (1 + n)."""
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
    """The largest k with k / (1 + n) <= rate: the k-th largest calibration score is the threshold."""
    return min(floor(rate * (1 + images) + ROUNDING), images)


def images_needed(rate: float) -> int:
    """The fewest calibration images with which a p-value can be as small as the rate."""
    return ceil(1 / check_rate(rate) - ROUNDING) - 1


def calibration_size(images: int, rate: float, *, min_fit: int) -> int:
    """How many of the images to hold out: up to a third, in numbers with which the rate is met exactly.

    With k / rate - 1 images the share of false alarms is the rate itself; with any other number it is a little less.
    """
    needed = images_needed(rate)
    if images - needed < min_fit:
        raise too_few(images, rate, min_fit=min_fit, spare=images - min_fit)
    times = max(1, floor((images / 3 + 1) * rate + ROUNDING))
    return max(needed, ceil(times / rate - ROUNDING) - 1)


def too_few(count: int, rate: float, *, min_fit: int, spare: int, unit: str = "images") -> TooFewImagesError:
    """The error for so few images or groups; it names a rate for which `spare` of them, held out, are enough."""
    needed = images_needed(rate)
    possible = f" to {ceil(10_000 / (spare + 1)) / 10_000:.4g}" if spare >= 1 else ""
    return TooFewImagesError(
        f"{count} {unit}; a false-alarm rate of {rate:.2%} needs at least {needed + min_fit} "
        f"({needed} held out to calibrate, {min_fit} to fit): add {unit}, or raise false_alarm_rate{possible}"
    )


def split_images(
    images: int, rate: float, *, seed: int, min_fit: int, always_fit: Collection[int] = ()
) -> tuple[Index, Index]:
    """Which images to fit and which to hold out for calibration, both in order."""
    held_out = calibration_size(images, rate, min_fit=min_fit)
    candidates = np.setdiff1d(np.arange(images), list(always_fit))
    chosen = np.sort(np.random.default_rng(seed).permutation(candidates)[:held_out])
    return np.setdiff1d(np.arange(images), chosen), chosen


def split_groups(
    groups: Groups,
    rate: float,
    *,
    seed: int,
    min_fit: int,
    min_images: int,
    readable: Index | None = None,
) -> tuple[Index, Index]:
    """The same by groups: all images of some groups to fit, one random image of each other group to calibrate.

    Images that are not `readable` count for nothing; a few of them leave the split nearly as it is without them.
    """
    usable = np.arange(len(groups)) if readable is None else readable
    check_enough(len(usable), min_images)
    numbers = {name: number for number, name in enumerate(dict.fromkeys(groups))}
    of_image = np.array([numbers[name] for name in groups])[usable]
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(numbers))
    order = order[np.isin(order, of_image)]
    needed = images_needed(rate)
    min_groups = min(min_fit, max(1, needed - 1))
    if len(order) - needed < min_groups:
        spare = max(len(order) - min_fit, len(order) // 2)
        raise too_few(len(order), rate, min_fit=min_groups, spare=spare, unit="groups")
    chosen = order[: calibration_size(len(order), rate, min_fit=min_groups)]
    fit = usable[~np.isin(of_image, chosen)]
    check_enough(len(fit), min_fit)
    return fit, np.sort([rng.choice(usable[of_image == number]) for number in chosen])


def fold_numbers(count: int, groups: Index | None = None) -> Index:
    """The cross-validation fold of each image; all images of a group, one number an image, are in the same."""
    numbers = np.arange(count) if groups is None else np.unique(groups, return_inverse=True)[1]
    return (numbers if numbers.any() else np.arange(count)) % FOLDS


def check_enough(images: int, needed: int) -> None:
    if images < needed:
        raise TooFewImagesError(
            f"{images} normal images; at least {needed} are needed to know what is normal: add images"
        )


def check_calibration(images: int, rate: float) -> None:
    """Raises TooFewImagesError unless a p-value can be as small as the rate with so many calibration images."""
    if images < (needed := images_needed(rate)):
        raise TooFewImagesError(
            f"{images} calibration images; a {rate:.2%} false-alarm rate needs at least {needed}: "
            "add images or raise false_alarm_rate"
        )


def check_rate(rate: float) -> float:
    """The rate, if it is one."""
    if not 0 < rate < 1:
        raise ParameterError(f"false_alarm_rate is {rate}: it must lie between 0 and 1, such as 0.01")
    return rate


def rate_range(images: int, rate: float, *, confidence: float = 0.9) -> tuple[float, float]:
    """Between which rates the false alarms of this very detector lie, with that confidence.

    The guarantee holds on average over calibration sets; with one set of n images the rate itself is drawn from
    Beta(k, n + 1 - k), which is wide when n is small.
    """
    from scipy.stats import beta

    allowed = alarms_allowed(images, rate)
    if not allowed:
        return 0.0, 0.0
    low, high = beta.ppf([(1 - confidence) / 2, (1 + confidence) / 2], allowed, images + 1 - allowed)
    return float(low), float(high)


@dataclass(frozen=True)
class Guarantee:
    """The false-alarm rate of a detector, and how many images it rests on."""

    n_fit: int
    n_calibration: int
    false_alarm_rate: float

    @property
    def likely_rates(self) -> tuple[float, float]:
        """Between which rates the false alarms of this detector lie, nine times in ten."""
        return rate_range(self.n_calibration, self.false_alarm_rate)

    @property
    def text(self) -> str:
        low, high = self.likely_rates
        text = (
            f"fitted on {self.n_fit} images, calibrated on {self.n_calibration}: false alarms on normal images are "
            f"{self.false_alarm_rate:.1%} on average over such sets, and for this one likely {low:.1%} to {high:.1%}."
        )
        if self.n_fit < FEW_IMAGES:
            text += (
                f" Fewer than {FEW_IMAGES} images to fit: strong changes are found, mild ones may not be. Add images."
            )
        return text
