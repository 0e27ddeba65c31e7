"""Calibration: p-values and thresholds from the scores of held-out normal images.

Split conformal prediction: exact when normal images are exchangeable, whatever the head and however few the images.
With groups of similar images (bursts, scenes, parts), the groups are what must be exchangeable: they are held out as
wholes, and one image of each calibrates, so that a p-value holds for an image of a new group.
"""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import ceil, floor, log, log1p
from typing import Literal, NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from discopatch.errors import ParameterError, SchemaError, TooFewImagesError
from discopatch.schema import Count, Name, Positive
from discopatch.utils import counted

ROUNDING = 1e-9  # 1 / 0.01 is not quite 100 in floating point
FOLDS = 5  # of cross-validation
FEW_IMAGES = 100  # with fewer images to fit, the statistics of a camera are rough estimates
AUTO: Literal["auto"] = "auto"
AUTO_RATES = (0.01, 0.02, 0.05, 0.1)
MAX_CLASSES = 1000

Index = NDArray[np.intp]
Rate = float | Literal["auto"]


def p_values(scores: ArrayLike, calibration: ArrayLike) -> NDArray[np.float64]:
    """Share of normal images with at least this score, counting the image itself: (1 + #{c >= s}) / (1 + n)."""
    ordered = np.sort(np.asarray(calibration, np.float64))
    at_least = len(ordered) - np.searchsorted(ordered, np.asarray(scores, np.float64), side="left")
    return (1 + at_least) / (1 + len(ordered))


def threshold(calibration: ArrayLike, rate: float) -> float:
    """The score above which p <= rate; infinite when no p-value can be that small."""
    ordered = np.sort(np.asarray(calibration, np.float64))
    allowed = alarms_allowed(len(ordered), rate)
    return float(ordered[-allowed]) if allowed else float("inf")


def alarms_allowed(images: int, rate: float) -> int:
    """The largest k with k / (1 + n) <= rate: the k-th largest calibration score is the threshold."""
    return min(floor(rate * (1 + images) + ROUNDING), images)


def select(p: ArrayLike, fdr: float) -> NDArray[np.intp]:
    """The indices of p-values that Benjamini and Hochberg's procedure selects, ascending; NaN are left out.

    At most the share `fdr` of the selected images are normal, on average over calibration sets and images, where
    images are independent of each other (Bates and others, 2023). Nothing is selected where no share of them allows it.
    """
    if not 0 < fdr < 1:
        raise ParameterError(f"fdr is {fdr!r}: give a number between 0 and 1, such as 0.1")
    values = np.asarray(p, np.float64)
    order = np.argsort(values, kind="stable")[: np.count_nonzero(~np.isnan(values))]
    allowed = fdr * np.arange(1, len(order) + 1) / max(len(order), 1)
    last = np.flatnonzero(values[order] <= allowed * (1 + ROUNDING))
    return order[: last[-1] + 1] if len(last) else order[:0]


def least_selected(images: int, calibration: int, fdr: float) -> int:
    """The fewest of so many images that can be selected: as many must score above all calibration images."""
    return ceil(images / (fdr * (calibration + 1)) - ROUNDING)


@dataclass(frozen=True)
class NormalClass:
    """Normal images of one kind, which have a calibration of their own."""

    name: Name
    members: tuple[Name, ...]  # the classes that were given; several where they were pooled or merged
    images: Count  # that were fitted
    calibrating: Positive  # images that are assigned to it


class Decision(NamedTuple):
    """What a calibration says about one score."""

    p_value: float  # share of normal images with at least this score, counting the image itself
    is_ood: bool
    class_name: str | None = None


@dataclass(frozen=True, eq=False)
class Calibration:
    """The scores of held-out normal images and the false-alarm rate: they turn a score into a decision."""

    scores: NDArray[np.float64]  # ascending
    rate: float
    classes: "Mapping[str, Calibration]" = field(default_factory=dict)  # by name, in the order of their numbers

    @classmethod
    def of_classes(
        cls,
        scores: NDArray[np.float64],
        rate: float,
        classes: Sequence[NormalClass],
        *,
        confidence: float | None = None,
        promised: float | None = None,
    ) -> Self:
        """From the scores of one class after another, as `stored` has them. Without classes there is one calibration.

        With a confidence each class has the largest rate that keeps the promise.
        """
        if not classes:
            return cls(scores, rate)
        if sum(each.calibrating for each in classes) != len(scores) or len({each.name for each in classes}) < len(
            classes
        ):
            raise SchemaError("its classes do not belong to its calibration scores")
        own = np.split(scores, np.cumsum([each.calibrating for each in classes])[:-1])
        rates = [rate] * len(own)
        if confidence is not None and promised is not None:
            rates = [sure_level(len(each), promised, confidence) for each in own]
        pairs = zip(classes, own, rates, strict=True)
        return cls(np.sort(scores), rate, {each.name: cls(part, one) for each, part, one in pairs})

    @property
    def stored(self) -> NDArray[np.float64]:
        """The scores, of one class after another."""
        return np.concatenate([each.scores for each in self.parts.values()])

    @property
    def parts(self) -> "Mapping[str | None, Calibration]":
        """The calibrations that decide: of each class by its name, or of all images under None."""
        return dict[str | None, Calibration](self.classes.items()) if self.classes else {None: self}

    def check(self) -> None:
        """Raises an error unless the scores of every class are ascending, finite, and enough for the rate."""
        for name, part in self.parts.items():
            if (part.scores[1:] < part.scores[:-1]).any():
                raise SchemaError("calibration scores are not in ascending order")
            check_calibration(part.scores, part.rate, name)

    @cached_property
    def threshold(self) -> float:
        """Scores above it are flagged; infinite when no p-value can be as small as the rate."""
        return threshold(self.scores, self.rate)

    @cached_property
    def _ordered(self) -> list[float]:
        return sorted(self.scores.tolist())  # plain floats: bisection is faster on them

    def decide(self, score: float, number: int = 0) -> Decision:
        """The one place where a score becomes a p-value and a decision; `number` is that of the image's class."""
        if self.classes:
            name = list(self.classes)[number]
            return self.classes[name].decide(score)._replace(class_name=name)
        at_least = len(self._ordered) - bisect_left(self._ordered, score)
        return Decision((1 + at_least) / (1 + len(self._ordered)), score > self.threshold)

    def with_rate(self, rate: float) -> Self:
        """The same scores at another rate, if there are enough of them."""
        check_rate(rate)
        for name, part in self.parts.items():
            check_calibration(len(part.scores), rate, name)
        return replace(self, rate=rate, classes={name: replace(own, rate=rate) for name, own in self.classes.items()})


def usual_level(values: NDArray[np.float64], rate: float, groups: Index | None = None, *, spared: int = 0) -> float:
    """The level that at most that share of new images, or images of new groups, exceeds.

    It is a quantile of the values (images,) of normal images, of which one of each group counts; `spared` lowers the
    number of images above it, down to one. Where no image may be above, an exponential tail extends the largest value.
    """
    firsts = np.arange(len(values)) if groups is None else np.unique(groups, return_index=True)[1]
    if allowed := alarms_allowed(len(firsts), rate):
        return float(np.sort(values[firsts])[-max(allowed - spared, 1)])
    largest, middle = float(values.max()), float(np.median(values))
    return largest + (largest - middle) * -log(rate * (len(firsts) + 1)) / log(1 + len(firsts) / 4)


def images_needed(rate: float) -> int:
    """The fewest calibration images with which a p-value can be as small as the rate."""
    check_rate(rate)
    return ceil(1 / rate - ROUNDING) - 1


def sure_images(rate: float, confidence: float) -> int:
    """The fewest calibration images of which the largest score, as the threshold, promises the rate so surely."""
    return ceil(log1p(-confidence) / log1p(-rate) - ROUNDING)


def sure_rate(rate: Rate, confidence: float, images: int) -> float:
    """The rate itself, or instead of `auto` the smallest that so many calibration images promise with the confidence.

    Raises TooFewImagesError where they do not promise it.
    """
    tried = AUTO_RATES if isinstance(rate, str) else (rate,)
    chosen = next((each for each in tried if sure_images(each, confidence) <= images), None)
    if chosen is None:
        raise TooFewImagesError(
            f"{counted(images, 'image')} or groups can calibrate; a false-alarm rate of {tried[-1]:.2%} with a "
            f"confidence of {confidence:.0%} needs {sure_images(tried[-1], confidence)}: add images, raise "
            "false_alarm_rate, or lower confidence"
        )
    return chosen


def sure_level(images: int, rate: float, confidence: float) -> float:
    """The largest k / (n + 1) for which at most `rate` of new normal images are flagged, with that confidence.

    Given n calibration scores without ties, the share of new images above the k-th largest is drawn from
    Beta(k, n + 1 - k). Its quantile at `confidence` must not exceed the rate. 0 where n is too small.
    """
    allowed = range(alarms_allowed(images, rate), 0, -1)
    return next((k / (images + 1) for k in allowed if _beta_quantile(k, images, confidence) <= rate), 0.0)


def calibration_size(images: int, rate: float, *, min_fit: int) -> int:
    """The number of images, or groups, to hold out: up to a third, such that the rate is met exactly.

    With k / rate - 1 images the share of false alarms is the rate itself; with any other number it is a little less.
    """
    needed = images_needed(rate)
    if images - needed < min_fit:
        raise too_few(images, rate, min_fit=min_fit, spare=images - min_fit)
    times = max(1, floor((images / 3 + 1) * rate + ROUNDING))
    return max(needed, ceil(times / rate - ROUNDING) - 1)


def too_few(count: int, rate: float, *, min_fit: int, spare: int, unit: str = "image") -> TooFewImagesError:
    """The error for so few images or groups; it names a rate for which `spare` of them, held out, are enough."""
    needed = images_needed(rate)
    possible = f" to {ceil(10_000 / (spare + 1)) / 10_000:.4g}" if spare >= 1 else ""
    return TooFewImagesError(
        f"{counted(count, unit)}; a false-alarm rate of {rate:.2%} needs at least {needed + min_fit} "
        f"({needed} held out to calibrate, {min_fit} to fit): add {unit}s, or raise false_alarm_rate{possible}"
    )


def choose_rate(rate: Rate, groups: Index, *, min_fit: int) -> float:
    """The rate itself, or instead of `auto` the smallest for which at most half of the groups are held out."""
    if not isinstance(rate, str):
        return rate
    count = len(np.unique(groups))
    spare = min(count / 2, count - min_fit if count == len(groups) else count)
    return smallest_rate(int(spare))


def smallest_rate(images: int, rate: Rate = AUTO) -> float:
    """The rate itself, or instead of `auto` the smallest that so many calibration images allow."""
    if not isinstance(rate, str):
        return rate
    return next((each for each in AUTO_RATES if images_needed(each) <= images), AUTO_RATES[-1])


def split_images(
    groups: Index, rate: float, *, seed: int, min_fit: int, fitted: Sequence[int] | Index = ()
) -> tuple[Index, Index]:
    """The images to fit and the images to calibrate on, both in order, from the number of each image's group.

    The images of some groups are fitted, and one random image of each other group calibrates. The groups `fitted` are
    among the first.
    """
    numbers = np.random.default_rng(seed).permutation(np.unique(groups))
    min_groups = min_fit
    if len(numbers) < len(groups):
        min_groups = min(min_fit, max(1, images_needed(rate) - 1))
        if len(numbers) - images_needed(rate) < min_groups:
            spare = max(len(numbers) - min_fit, len(numbers) // 2)
            raise too_few(len(numbers), rate, min_fit=min_groups, spare=spare, unit="group")
    held_out = numbers[~np.isin(numbers, fitted)]
    held_out = held_out[: calibration_size(len(numbers), rate, min_fit=min_groups)]
    if len(held_out) < images_needed(rate):
        unit = "group" if len(numbers) < len(groups) else "image"
        raise TooFewImagesError(
            f"{counted(len(held_out), unit)} left to calibrate beside those that the resolution was chosen by, and a "
            f"{rate:.2%} false-alarm rate needs {images_needed(rate)}: set resolution (--resolution 256)"
        )
    fit = np.flatnonzero(~np.isin(groups, held_out))
    check_enough(len(fit), min_fit)
    one_each = one_of_each_group(groups, seed=seed)
    return fit, one_each[np.isin(groups[one_each], held_out)]


def one_of_each_group(groups: Index, *, seed: int) -> Index:
    """A random image of each group, in order."""
    shuffled = np.random.default_rng([seed, 1]).permutation(len(groups))
    _, first = np.unique(groups[shuffled], return_index=True)
    return np.sort(shuffled[first])


def fold_numbers(count: int, groups: Index | None = None, *, folds: int = FOLDS) -> Index:
    """The cross-validation fold of each image; all images of a group, one number an image, are in the same."""
    numbers = np.arange(count) if groups is None else np.unique(groups, return_inverse=True)[1]
    return (numbers if numbers.any() else np.arange(count)) % folds


def check_enough(images: int, needed: int, refused: str = "") -> None:
    """Raises TooFewImagesError, which also says what was `refused`."""
    if images < needed:
        found = "; ".join(filter(None, (counted(images, "normal image"), refused)))
        raise TooFewImagesError(f"{found}; at least {needed} are needed for a fit: add images")


def check_calibration(scores: int | NDArray[np.float64], rate: float, name: str | None = None) -> None:
    """Raises an error unless so many calibration images, or these scores, let a p-value be as small as the rate.

    name: of their class.
    """
    if isinstance(scores, np.ndarray) and not np.isfinite(scores).all():
        raise ParameterError("scores of calibration images are not finite numbers: the model is broken; take another")
    images = len(scores) if isinstance(scores, np.ndarray) else scores
    if images < (needed := images_needed(rate)):
        assigned, of = ("", "") if name is None else (f" assigned to the class {name}", f" of {name}")
        raise TooFewImagesError(
            f"{counted(images, 'calibration image')}{assigned}; a {rate:.2%} false-alarm rate needs at least {needed}: "
            f"add images{of} or raise false_alarm_rate"
        )


def check_rate(rate: Rate) -> None:
    """Raises ParameterError unless it is `auto` or lies between 0 and 1."""
    if rate != AUTO and not (isinstance(rate, int | float) and 0 < rate < 1):
        raise ParameterError(f"false_alarm_rate is {rate!r}: give 'auto', or a number between 0 and 1, such as 0.01")


def check_confidence(confidence: float | None) -> None:
    """Raises ParameterError unless it is None or lies between 0 and 1."""
    if confidence is not None and not (isinstance(confidence, float) and 0 < confidence < 1):
        raise ParameterError(f"confidence is {confidence!r}: give a number between 0 and 1, such as 0.95, or None")


def _beta_quantile(k: int, n: int, share: float) -> float:
    """The quantile of Beta(k, n + 1 - k) at `share`, for 1 <= k <= n.

    Beta(k, n + 1 - k) is below x as often as n draws of chance x have k successes or more. Bisection, because scipy
    would be the largest dependency of the torch-free runtime.
    """
    successes = np.arange(k)
    log_ways = np.cumsum(np.log(np.concatenate([[1.0], (n - successes[1:] + 1) / successes[1:]])))
    low, high = 0.0, 1.0
    while low < (middle := (low + high) / 2) < high:
        log_chances = log_ways + successes * log(middle) + (n - successes) * log1p(-middle)
        low, high = (middle, high) if 1 - np.exp(log_chances).sum() < share else (low, middle)
    return middle


def share_interval(count: int, images: int) -> tuple[float, float]:
    """The exact 95 % interval (Clopper and Pearson) of a share that was `count` of `images`."""
    low = _beta_quantile(count, images, 0.025) if count else 0.0
    return low, _beta_quantile(count + 1, images, 0.975) if count < images else 1.0


@dataclass(frozen=True)
class DetectionRate:
    """How many made-up changes of one kind and size were found at the detector's false-alarm rate."""

    kind: Name  # such as "scratch" or "blur"
    size: Name  # in pixels of the image, such as "4 px", or a strength, "slight" or "plain"
    found: Count
    tried: Positive

    def __post_init__(self) -> None:
        if self.found > self.tried:
            raise SchemaError(f"{self.found} changes were found of {self.tried}")

    @property
    def rate(self) -> float:
        return self.found / self.tried

    @property
    def low(self) -> float:
        """The lower end of the exact 95 % interval (Clopper-Pearson)."""
        return share_interval(self.found, self.tried)[0]

    @property
    def high(self) -> float:
        """The upper end of the interval."""
        return share_interval(self.found, self.tried)[1]

    @property
    def text(self) -> str:
        """The rate and its interval in per cent, such as "62 % (35-85)"."""
        return f"{self.rate:.0%} ({100 * self.low:.0f}-{100 * self.high:.0f})".replace("%", " %")


@dataclass(frozen=True)
class Guarantee:
    """The false-alarm rate of a detector, and the numbers of images that it rests on."""

    n_fit: int
    n_calibration: int
    false_alarm_rate: float
    n_groups: int | None = None  # of the images that were given, where they came in groups
    confidence: float | None = None  # with which at most `promised_rate` of new images are flagged
    promised_rate: float | None = None
    classes: "Mapping[str, Guarantee]" = field(default_factory=dict)

    @property
    def alarms(self) -> int:
        """The k of k / (n + 1): the score of rank k among the calibration images is the threshold."""
        return alarms_allowed(self.n_calibration, self.false_alarm_rate)

    @property
    def bound(self) -> float:
        """k / (n + 1): the largest expected share of new normal images that are flagged; never above the rate."""
        return max((each.bound for each in self.classes.values()), default=self.alarms / (self.n_calibration + 1))

    @property
    def likely_rates(self) -> tuple[float, float]:
        """The range of the false-alarm rate of this detector, in nine of ten cases.

        The guarantee holds on average over calibration sets; with one set of n images the rate itself is drawn from
        Beta(k, n + 1 - k), which is wide when n is small. With classes it is the widest range of a class.
        """
        if self.classes:
            lows, highs = zip(*(each.likely_rates for each in self.classes.values()), strict=True)
            return min(lows), max(highs)
        if not self.alarms:
            return 0.0, 0.0
        low, high = (_beta_quantile(self.alarms, self.n_calibration, share) for share in (0.05, 0.95))
        return low, high

    @property
    def text(self) -> str:
        low, high = self.likely_rates
        calibrated, new, one = f"{self.n_calibration} others", "new normal images", "this detector"
        if self.n_groups is not None:
            calibrated, new = f"one image of each of {self.n_calibration} other groups", "images of new normal groups"
        text = f"fitted on {self.n_fit} images, calibrated on {calibrated}. "
        if self.classes:
            least = min(each.n_calibration for each in self.classes.values())
            text += f"Classes: {len(self.classes)}, each with {least} or more of these. "
            new, one = f"{new} of each class", "a class"
        if self.confidence is not None and self.promised_rate is not None:
            text += (
                f"With a confidence of {self.confidence:.4g}, at most {self.promised_rate:.1%} of {new} are flagged. "
            )
        text += (
            f"Expected false alarms: at most {self.bound:.1%} of {new}. For {one} the rate lies between "
            f"{low:.1%} and {high:.1%} in nine of ten cases."
        )
        if self.n_fit < FEW_IMAGES:
            text += f" Fewer than {FEW_IMAGES} images were fitted: mild changes may be missed. Add images."
        return text

    def next_rate_text(self, *, min_fit: int) -> str:
        """The number of images that would allow the next smaller rate of `auto`; empty for the smallest."""
        smaller = [rate for rate in AUTO_RATES if rate < self.false_alarm_rate]
        if not smaller:
            return ""
        held_out = images_needed(smaller[-1])
        needed = (
            f"{max(2 * held_out, held_out + min_fit)} images" if self.n_groups is None else f"{2 * held_out} groups"
        )
        needed += " of each class" * bool(self.classes)
        return f"The false-alarm rate is {self.false_alarm_rate:.0%}; {needed} would allow {smaller[-1]:.0%}."
