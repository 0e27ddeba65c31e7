"""Whether the promised false-alarm rate is kept, on many random splits of normal images."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from discopatch.decision.conformal import TooFewImages, alarms_allowed, images_needed, threshold
from discopatch.scoring.combined import CombinedHead
from discopatch.scoring.evidence import Displacements, Evidence
from discopatch.scoring.heads import Head, LogitHead

SURE = 0.99

Indices = NDArray[np.intp]
Range = tuple[float, float]
Scores = Mapping[str, NDArray[np.float64]]  # by head


@dataclass(frozen=True, eq=False)
class Split:
    """Which images to fit on, which to calibrate with, which to test."""

    fit: Indices
    calibration: Indices
    test: Indices


def random_splits(
    images: int, *, splits: int, calibration: int, fit: int = 0, always_fit: Sequence[int] = (), seed: int
) -> list[Split]:
    """Each a new random order of the images; those in `always_fit` are fitted in all of them, the rest is tested."""
    others = np.setdiff1d(np.arange(images), np.asarray(always_fit, np.intp))
    drawn = fit - len(always_fit)
    found = []
    for number in range(splits):
        order = np.random.default_rng([seed, number]).permutation(others)
        fitted = np.concatenate([np.asarray(always_fit, np.intp), order[:drawn]]) if fit else order[:0]
        left = order[drawn:] if fit else order
        found.append(Split(np.sort(fitted), left[:calibration], left[calibration:]))
    return found


def side_by_side(head: CombinedHead) -> dict[str, Head]:
    """The heads that are compared: what the combined one is made of, and itself."""
    return {"logit": LogitHead(), "statistics": head.statistics, "combined": head}


def fitted_scores(evidence: Evidence, displacements: Displacements, split: Split) -> Scores:
    """Scores of all images by heads that were fitted on those of the split alone."""
    head = CombinedHead().fit(evidence.of(split.fit), displacements)
    return {name: each.score(evidence) for name, each in side_by_side(head).items()}


def count_alarms(scores: NDArray[np.float64], split: Split, rate: float) -> int:
    """How many of the tested images lie above the threshold that the calibration images set."""
    return int(np.count_nonzero(scores[split.test] > threshold(scores[split.calibration], rate)))


def binomial_range(tests: int, rate: float) -> Range:
    """Between which shares of alarms 99 in 100 would lie if every test had exactly that chance of one."""
    from scipy.stats import binom

    low, high = binom.ppf([(1 - SURE) / 2, (1 + SURE) / 2], tests, rate)
    return float(low / tests), float(high / tests)


def conformal_range(tests: int, calibration: int, rate: float, *, splits: int = 1) -> Range:
    """The same, knowing that a threshold from few calibration images is itself uncertain.

    Beta-binomial, summed over splits; exact for random splits without ties, as only the order of the scores enters.
    """
    from scipy.stats import betabinom

    allowed = alarms_allowed(calibration, rate)
    once = betabinom.pmf(np.arange(tests + 1), tests, allowed, calibration + 1 - allowed)
    chances = np.ones(1)
    for _ in range(splits):
        chances = np.convolve(chances, once)
    reached = np.cumsum(chances)
    low, high = np.searchsorted(reached, [(1 - SURE) / 2, (1 + SURE) / 2])
    return float(low / (tests * splits)), float(min(high, tests * splits) / (tests * splits))


def summary(alarms: Sequence[int], *, tests: int, calibration: int, rate: float) -> dict[str, Any]:
    """What was promised, what came, and what may come, split by split and pooled."""
    splits = len(alarms)
    within = conformal_range(tests, calibration, rate)
    return {
        "promised": rate,
        "calibration": calibration,
        "tests": tests,
        "alarms": list(alarms),
        "rates": [count / tests for count in alarms],
        "binomial": binomial_range(tests, rate),
        "conformal": within,
        "splits_within": sum(within[0] <= count / tests <= within[1] for count in alarms),
        "pooled": sum(alarms) / (tests * splits),
        "pooled_binomial": binomial_range(tests * splits, rate),
        "pooled_conformal": conformal_range(tests, calibration, rate, splits=splits),
    }


def kept_promises(scores: Sequence[Scores], splits: Sequence[Split], rates: Sequence[float]) -> dict[str, Any]:
    """By head, and by each rate that so many calibration images can promise; each split has scores of its own."""
    calibration, tests = len(splits[0].calibration), len(splits[0].test)
    if tests < 1:
        raise TooFewImages(f"no images are left to test beside {calibration} to calibrate with: add images")

    def kept(head: str, rate: float) -> dict[str, Any]:
        counts = [count_alarms(each[head], split, rate) for each, split in zip(scores, splits, strict=True)]
        return summary(counts, tests=tests, calibration=calibration, rate=rate)

    promised = [rate for rate in rates if calibration >= images_needed(rate)]
    return {head: {str(rate): kept(head, rate) for rate in promised} for head in scores[0]}
