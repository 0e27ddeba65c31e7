"""Whether the false-alarm rate that was asked for comes true, on many random splits of normal images."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from common import compared_heads
from discopatch.calibration import alarms_allowed, images_needed, threshold
from discopatch.encoders import Features
from discopatch.errors import TooFewImagesError
from discopatch.heads import CombinedHead, ComponentsHead, Head, ProbeShifts
from discopatch.heads.trials import Trials

CONFIDENCE = 0.99

Index = NDArray[np.intp]
Scores = Mapping[str, NDArray[np.float64]]  # by head


@dataclass(frozen=True, eq=False)
class Split:
    """Which images to fit on, which to calibrate with, which to test."""

    fit: Index
    calibration: Index
    test: Index


def random_splits(
    images: int, *, splits: int, calibration: int, fit: int = 0, always_fit: Sequence[int] = (), seed: int
) -> list[Split]:
    """Each a new random order of the images; those in `always_fit` are fitted in all of them, the rest is tested."""
    always = np.asarray(always_fit, np.intp)
    others = np.setdiff1d(np.arange(images), always)
    found = []
    for number in range(splits):
        order = np.random.default_rng([seed, number]).permutation(others)
        drawn, rest = np.split(order, [fit - len(always)]) if fit else (order[:0], order)
        fitted = np.sort(np.concatenate([always, drawn])) if fit else drawn
        found.append(Split(fitted, rest[:calibration], rest[calibration:]))
    return found


@dataclass(frozen=True, eq=False)
class Changes:
    """What known and made-up changes do to the first images, from which heads learn beside the images themselves."""

    shifts: ProbeShifts
    trials: Trials
    layer_sizes: tuple[int, ...]

    def fit_heads(self, features: Features, fitted: Index) -> dict[str, Head]:
        """All heads, fitted on those images, in ascending order; of the trials those count that are made of them."""
        own = np.isin(self.trials.rows, fitted)
        rows = np.searchsorted(fitted, self.trials.rows[own])
        trials = Trials(self.trials.features.select(own), rows, self.trials.of_place[own])
        chosen = features.select(fitted)
        components = ComponentsHead(layer_sizes=self.layer_sizes, trials=trials).fit(chosen, self.shifts)
        return {"components": components, **compared_heads(CombinedHead().fit(chosen, self.shifts))}


def fitted_scores(features: Features, changes: Changes, split: Split) -> Scores:
    """The scores of all images by heads that were fitted on those of the split alone."""
    return score_all(features, changes.fit_heads(features, split.fit))


def score_all(features: Features, heads: Mapping[str, Head]) -> Scores:
    return {name: head.score(features) for name, head in heads.items()}


def count_alarms(scores: NDArray[np.float64], split: Split, rate: float) -> int:
    """How many of the tested images lie above the threshold that the calibration images set."""
    return int(np.count_nonzero(scores[split.test] > threshold(scores[split.calibration], rate)))


def binomial_range(tests: int, rate: float) -> tuple[float, float]:
    """Between which shares of alarms 99 in 100 would lie if every test had exactly that chance of one."""
    from scipy.stats import binom

    low, high = binom.ppf([(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2], tests, rate)
    return float(low / tests), float(high / tests)


def conformal_range(tests: int, calibration: int, rate: float, *, splits: int = 1) -> tuple[float, float]:
    """The same, given that a threshold from few calibration images is itself uncertain.

    Beta-binomial, summed over splits; exact for random splits without ties, as only the order of the scores enters.
    """
    from scipy.stats import betabinom

    allowed = alarms_allowed(calibration, rate)
    once = betabinom.pmf(np.arange(tests + 1), tests, allowed, calibration + 1 - allowed)
    chances = np.ones(1)
    for _ in range(splits):
        chances = np.convolve(chances, once)
    low, high = np.searchsorted(np.cumsum(chances), [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return float(low / (tests * splits)), float(min(high, tests * splits) / (tests * splits))


def summarise_alarms(alarms: Sequence[int], *, tests: int, calibration: int, rate: float) -> dict[str, Any]:
    """The rate that was asked for, the rates that came, and the ranges in which they may lie, by split and pooled."""
    within = conformal_range(tests, calibration, rate)
    pooled = tests * len(alarms)
    return {
        "promised": rate,
        "calibration": calibration,
        "tests": tests,
        "alarms": list(alarms),
        "rates": [count / tests for count in alarms],
        "binomial": binomial_range(tests, rate),
        "conformal": within,
        "splits_within": sum(within[0] <= count / tests <= within[1] for count in alarms),
        "pooled": sum(alarms) / pooled,
        "pooled_binomial": binomial_range(pooled, rate),
        "pooled_conformal": conformal_range(tests, calibration, rate, splits=len(alarms)),
    }


def check_rates(scores: Sequence[Scores], splits: Sequence[Split], rates: Sequence[float]) -> dict[str, Any]:
    """By head and by each rate for which there are enough calibration images; each split has scores of its own."""
    calibration, tests = len(splits[0].calibration), len(splits[0].test)
    if tests < 1:
        raise TooFewImagesError(f"no images are left to test beside {calibration} to calibrate with: add images")

    def check(head: str, rate: float) -> dict[str, Any]:
        counts = [count_alarms(each[head], split, rate) for each, split in zip(scores, splits, strict=True)]
        return summarise_alarms(counts, tests=tests, calibration=calibration, rate=rate)

    possible = [rate for rate in rates if calibration >= images_needed(rate)]
    return {head: {str(rate): check(head, rate) for rate in possible} for head in scores[0]}
