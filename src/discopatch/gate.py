"""Test of a folder: one decision about many images, with a false-alarm rate of its own.

A threshold for images flags some normal ones, so among many normal images there is nearly always a flagged one. Here
their number counts. Let n calibration images and m normal ones be exchangeable and X the number of those m whose score
is above the j-th largest calibration score. Every order of the n + m scores is equally likely, so that X is
BetaBinomial(m, j, n + 1 - j), whatever the distribution of the scores; where scores are tied, X is smaller.

The test looks at three levels j: that of the flagged images, a tenth and half of n + 1. They find a few images that
are far off and many that are a little off. Let T_j(x) = P(X_j >= x), T the smallest T_j of a folder, and
G(t) = sum over j of P(T_j(X_j) <= t). P(T <= t) <= G(t), since T <= t means that some T_j <= t, and G does not
decrease. So p = G(T) is a p-value, P(p <= a) <= a: the share of normal folders that fail is at most `fail_rate`.

This is so over calibration sets and folders together. One detector whose calibration images happen to be unusual
fails more normal folders than that, another one fewer; and images that are not exchangeable, such as the frames of one
burst, must count as one.
"""

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from discopatch.calibration import ROUNDING, alarms_allowed
from discopatch.errors import ParameterError
from discopatch.groups import Rule, group_names
from discopatch.results import FittedDetector, Prediction
from discopatch.utils import counted

FAIL_RATE = 0.01
SHARES = {0.1: "with scores like the highest tenth of normal ones", 0.5: "with scores above half of the normal ones"}
NAMED_GROUPS = ("folder", "name")  # rules that also apply to the names of new images

Groups = Rule | Literal["fitted", "none"] | Sequence[Hashable] | NDArray[Any]


@dataclass(frozen=True)
class FolderTest:
    """The result of the test of a folder; `text` is a sentence."""

    fails: bool
    p_value: float  # of the folder, if all its images were normal
    images: int  # that count: those that could be read, with groups one of each
    flagged: int  # of these
    text: str


def folder_test(
    predictions: Iterable[Prediction],
    detector: FittedDetector,
    *,
    fail_rate: float = FAIL_RATE,
    groups: Groups = "fitted",
) -> FolderTest:
    """Tests whether the predicted images, taken together, differ from normal ones.

    At most `fail_rate` of normal folders fail. With groups, one image of each counts: `fitted` takes the rule that the
    detector was fitted with (`folder` or `name`); or give a rule, one id for each prediction, or `none`. Refused
    images do not count.
    """
    gate = FolderGate(detector, fail_rate=fail_rate, groups=groups)
    for prediction in predictions:
        gate.add(prediction)
    return gate.result()


class FolderGate:
    """The test of a folder for predictions that come one by one: `add` each, then take the `result`."""

    def __init__(self, detector: FittedDetector, *, fail_rate: float = FAIL_RATE, groups: Groups = "fitted") -> None:
        if not 0 < fail_rate < 1:
            raise ParameterError(f"fail_rate is {fail_rate}: it must lie between 0 and 1, such as 0.01")
        self._groups: Any = groups
        self.fail_rate, self._unknown_groups = fail_rate, False
        if isinstance(groups, str) and groups in ("fitted", "none"):
            fitted = detector.settings()["groups"] if groups == "fitted" else None
            self._groups = fitted if fitted in NAMED_GROUPS else None
            self._unknown_groups = self._groups != fitted
        self._parts = detector.calibration_.parts
        # Of each class, images by how many calibration scores are at least as high.
        self._ranks = {name: np.zeros(len(part.scores) + 1, np.int64) for name, part in self._parts.items()}
        self._chosen: dict[Hashable, tuple[bytes, str | None, int]] = {}  # of each group, an image's place, class, rank
        self._added = self._read = 0

    def add(self, prediction: Prediction) -> None:
        """Counts an image; with groups, a random one of each, as in calibration, and the same in any order."""
        self._added += 1
        if prediction.p_value is None:
            return
        self._read += 1
        name = prediction.class_name
        rank = round(prediction.p_value * len(self._ranks[name])) - 1
        if self._groups is None:
            self._ranks[name][rank] += 1
            return
        if isinstance(self._groups, str) or callable(self._groups):
            group = group_names([prediction.name], self._groups)[0]
        elif self._added <= len(self._groups):
            group = self._groups[self._added - 1]
        else:
            raise ParameterError(f"{len(self._groups)} groups for more predictions than that: give one id for each")
        place = blake2b(prediction.name.encode(errors="surrogateescape")).digest()
        if group not in self._chosen or place < self._chosen[group][0]:
            self._chosen[group] = place, name, rank

    def result(self) -> FolderTest:
        """The decision about all images so far."""
        ranks = {name: own.copy() for name, own in self._ranks.items()}
        for _, name, rank in self._chosen.values():
            ranks[name][rank] += 1
        alarms = (alarms_allowed(len(part.scores), part.rate) for part in self._parts.values())
        found = FolderCounts(*zip(ranks.values(), alarms, strict=True))
        text = found.text(self.fail_rate)
        if self._unknown_groups:
            text += ". The detector was fitted with groups: give those of the folder too (--groups), if it has any"
        elif found.images < self._read:
            text += f". One image of each group counts: {found.images:,} of {self._read:,}"
        return FolderTest(found.fails(self.fail_rate), found.p_value, found.images, found.counts[0], text)


class FolderCounts:
    """How many images of a folder are above each level, and how likely that is if they are normal.

    Each class has its ranks (n + 1,), the number of images with 0, 1, ... n calibration scores at least as high as
    theirs, and its number of alarms. Classes are independent, so that the images above a level are added up.
    """

    def __init__(self, *classes: tuple[NDArray[np.int64], int]) -> None:
        ranks, alarms = zip(*classes, strict=True)
        self.images, self.n_calibration = sum(int(own.sum()) for own in ranks), sum(len(own) - 1 for own in ranks)
        levels = {alarms: "flagged"}
        for share, name in SHARES.items():
            levels.setdefault(tuple(max(1, round(share * len(own))) for own in ranks), name)
        self._names = list(levels.values())
        pairs = [list(zip(ranks, own, strict=True)) for own in levels]
        self.counts = [sum(int(own[:level].sum()) for own, level in each) for each in pairs]
        self._tails = [
            add_up([tail_probabilities(int(own.sum()), level, len(own) - 1) for own, level in each]) for each in pairs
        ]
        self._reached = [float(tail[count]) for tail, count in zip(self._tails, self.counts, strict=True)]
        self.p_value = float(self._bound(np.array([min(self._reached)]))[0])  # G(T) of the module's docstring

    def fails(self, fail_rate: float) -> bool:
        return self.p_value <= fail_rate * (1 + ROUNDING)

    def _bound(self, likely: NDArray[np.float64]) -> NDArray[np.float64]:
        """G(t) for every t: the chance of a normal folder that some level is as unlikely as t, or a bound of it."""
        total = np.zeros(len(likely))
        for tail in self._tails:
            first = np.searchsorted(-tail, -likely * (1 + ROUNDING))
            total += np.append(tail, 0)[first]
        return np.minimum(total, 1)

    def text(self, fail_rate: float) -> str:
        """The decision in a sentence, by the most unlikely level."""
        if not self.images:
            return "no image to decide by"
        images = counted(self.images, "image")
        enough = [np.flatnonzero(self._bound(tail) <= fail_rate * (1 + ROUNDING)) for tail in self._tails]
        fails = self.fails(fail_rate)
        level = int(np.argmin(self._reached)) if fails else 0
        text = f"the folder {'fails' if fails else 'passes'}: {self.counts[0]:,} of {images} flagged"
        text += f", {self.counts[level]:,} {self._names[level]}" * (level > 0)
        if enough[level].size:  # images above that level with which a folder of this size fails
            text += f", where normal folders have {enough[level][0]:,} or more in at most {100 * fail_rate:.3g} %"
        text += f" (p = {self.p_value:.2g})"
        if not fails and not any(each.size for each in enough):
            text += (
                f"; with {self.n_calibration} calibration images no folder of {images} can fail at "
                f"{100 * fail_rate:.3g} %: test more images together, or let any flagged one decide (--fail-on any)"
            )
        return text


def add_up(tails: Sequence[NDArray[np.float64]]) -> NDArray[np.float64]:
    """(m + 1,): P(X >= x) for the sum X of independent counts with these tails."""
    if len(tails) == 1:
        return tails[0]
    shares = np.ones(1)
    for tail in tails:
        shares = np.convolve(shares, np.maximum(tail - np.append(tail[1:], 0), 0))
    return np.minimum(np.cumsum(shares[::-1])[::-1], 1)


@lru_cache(maxsize=16)  # folders are often of one size
def tail_probabilities(images: int, level: int, n_calibration: int) -> NDArray[np.float64]:
    """(m + 1,): P(X >= x) for X ~ BetaBinomial(m, j, n + 1 - j), by counting the orders of n + m scores."""
    log_factorials = np.concatenate([[0.0], np.cumsum(np.log(np.arange(1, images + n_calibration + 1)))])

    def log_choose(total: NDArray[np.intp], chosen: NDArray[np.intp] | int) -> NDArray[np.float64]:
        result: NDArray[np.float64] = log_factorials[total] - log_factorials[chosen] - log_factorials[total - chosen]
        return result

    above = np.arange(images + 1)
    below = images - above
    orders = log_choose(above + level - 1, above) + log_choose(below + n_calibration - level, below)
    shares = np.exp(orders - log_choose(np.array([images + n_calibration]), images))
    tails: NDArray[np.float64] = np.minimum(np.cumsum(shares[::-1])[::-1], 1)
    tails.setflags(write=False)
    return tails
