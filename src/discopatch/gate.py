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

from discopatch.calibration import ROUNDING
from discopatch.errors import ParameterError
from discopatch.groups import Rule, group_names
from discopatch.results import FittedDetector, Prediction

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
        self.fail_rate = fail_rate
        guarantee = detector.guarantee_
        self._n, self._alarms = guarantee.n_calibration, guarantee.alarms
        self._groups: Any = groups
        self._unknown_groups = False
        if isinstance(groups, str) and groups == "fitted":
            fitted = detector.settings()["groups"]
            self._groups = fitted if fitted in NAMED_GROUPS else None
            self._unknown_groups = self._groups != fitted
        elif isinstance(groups, str) and groups == "none":
            self._groups = None
        self._ranks = np.zeros(self._n + 1, np.int64)  # images by how many calibration scores are at least as high
        self._chosen: dict[Hashable, tuple[bytes, int]] = {}  # of each group, an image's place and rank
        self._added = self._read = 0

    def add(self, prediction: Prediction) -> None:
        group = self._group(prediction.name)
        self._added += 1
        if prediction.p_value is None:
            return
        self._read += 1
        rank = round(prediction.p_value * (self._n + 1)) - 1
        if self._groups is None:
            self._ranks[rank] += 1
            return
        # A random image of each group, as in calibration, and the same one in any order of the images.
        place = blake2b(prediction.name.encode(errors="surrogateescape")).digest()
        if group not in self._chosen or place < self._chosen[group][0]:
            self._chosen[group] = place, rank

    def _group(self, name: str) -> Hashable:
        if self._groups is None:
            return None
        if isinstance(self._groups, str) or callable(self._groups):
            return group_names([name], self._groups)[0]
        if self._added >= len(self._groups):
            raise ParameterError(f"{len(self._groups)} groups for more predictions than that: give one id for each")
        group: Hashable = self._groups[self._added]
        return group

    def result(self) -> FolderTest:
        """The decision about all images so far."""
        ranks = self._ranks.copy()
        for _, rank in self._chosen.values():
            ranks[rank] += 1
        found = FolderCounts(ranks, self._alarms)
        p_value = found.p_value
        return FolderTest(
            fails=p_value <= self.fail_rate * (1 + ROUNDING),
            p_value=p_value,
            images=found.images,
            flagged=found.counts[0],
            text=". ".join([found.text(self.fail_rate), *self._remarks(found.images)]),
        )

    def _remarks(self, counted: int) -> list[str]:
        """Remarks about groups."""
        if self._unknown_groups:
            return ["The detector was fitted with groups: give those of the folder too (--groups), if it has any"]
        if self._groups is None or counted == self._read:
            return []
        return [f"One image of each group counts: {counted:,} of {self._read:,}"]


class FolderCounts:
    """How many images of a folder are above each level, and how likely that is if they are normal.

    `ranks` (n + 1,) has the number of images with 0, 1, ... n calibration scores at least as high as theirs.
    """

    def __init__(self, ranks: NDArray[np.int64], alarms: int) -> None:
        n = len(ranks) - 1
        self.images = int(ranks.sum())
        self.n_calibration = n
        self._names = {alarms: "flagged"}
        for share, name in SHARES.items():
            self._names.setdefault(max(1, round(share * (n + 1))), name)
        levels = list(self._names)
        above = np.concatenate([[0], np.cumsum(ranks)])
        self.counts = [int(above[level]) for level in levels]
        self._tails = [tail_probabilities(self.images, level, n) for level in levels]
        self._reached = [float(tail[count]) for tail, count in zip(self._tails, self.counts, strict=True)]

    @property
    def p_value(self) -> float:
        """G(T) of the module's docstring."""
        return float(self._bound(np.array([min(self._reached)]))[0])

    def _bound(self, likely: NDArray[np.float64]) -> NDArray[np.float64]:
        """G(t) for every t: the chance of a normal folder that some level is as unlikely as t, or a bound of it."""
        total = np.zeros(len(likely))
        for tail in self._tails:
            first = np.searchsorted(-tail, -likely * (1 + ROUNDING))
            total += np.append(tail, 0)[first]
        return np.minimum(total, 1)

    def _needed(self, level: int, fail_rate: float) -> int | None:
        """The fewest images above that level with which a folder of this size fails."""
        enough = np.flatnonzero(self._bound(self._tails[level]) <= fail_rate * (1 + ROUNDING))
        return int(enough[0]) if enough.size else None

    def text(self, fail_rate: float) -> str:
        """The decision in a sentence, by the most unlikely level."""
        images = "1 image" if self.images == 1 else f"{self.images:,} images"
        if not self.images:
            return "no image to decide by"
        p_value, names = self.p_value, list(self._names.values())
        fails = p_value <= fail_rate * (1 + ROUNDING)
        level = int(np.argmin(self._reached)) if fails else 0
        needed = self._needed(level, fail_rate)
        text = f"the folder {'fails' if fails else 'passes'}: {self.counts[0]:,} of {images} flagged"
        text += f", {self.counts[level]:,} {names[level]}" * (level > 0)
        if needed is not None:
            text += f", where normal folders have {needed:,} or more in at most {100 * fail_rate:.3g} %"
        text += f" (p = {p_value:.2g})"
        if not fails and all(self._needed(each, fail_rate) is None for each in range(len(names))):
            text += (
                f"; with {self.n_calibration} calibration images no folder of {images} can fail at "
                f"{100 * fail_rate:.3g} %: test more images together, or let any flagged one decide (--fail-on any)"
            )
        return text


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
