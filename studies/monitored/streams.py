"""Simulated streams, many at once: how often normal ones raise an alarm, and how soon changed ones do."""

from collections.abc import Callable, Iterator
from copy import deepcopy
from typing import Any

import numpy as np
from numpy.typing import NDArray

from discopatch.monitor.evidence import Evidence, Ranking

Floats = NDArray[np.float64]
Row = dict[str, Any]
Change = Callable[[Floats, int, np.random.Generator], Floats]  # normal scores (R,), images since the change -> scores

AT_ONCE = 250  # streams that are simulated together
RATES = (0.01, 0.05)
JUMP, SLOPES = 0.01, np.array([-1.0, 0.0, 1.0])  # of the textbook martingale


def shifted(by: float) -> Change:
    return lambda scores, since, rng: scores + by


def far_off(share: float) -> Change:
    return lambda scores, since, rng: np.where(rng.random(len(scores)) < share, scores + 30, scores)


class Frozen:
    """The first changed score again and again, with or without a little noise."""

    def __init__(self, noise: float = 0.0) -> None:
        self.noise, self.scores = noise, np.zeros(0)

    def __call__(self, scores: Floats, since: int, rng: np.random.Generator) -> Floats:
        self.scores = scores if since == 0 else self.scores
        return self.scores + self.noise * rng.normal(size=len(scores))


CHANGES: dict[str, Callable[[], Change]] = {
    "0.25 sd higher": lambda: shifted(0.25),
    "0.5 sd higher": lambda: shifted(0.5),
    "1 sd higher": lambda: shifted(1.0),
    "2 sd higher": lambda: shifted(2.0),
    "0.5 sd lower": lambda: shifted(-0.5),
    "1 sd lower": lambda: shifted(-1.0),
    "frozen": Frozen,
    "frozen, noise of 0.02 sd": lambda: Frozen(0.02),
    "5 % far off": lambda: far_off(0.05),
    "0.1 sd more every 100 images": lambda: lambda scores, since, rng: scores + since / 1000,
}


class Streams:
    """R streams with n calibration scores of their own each, and what the monitor makes of them."""

    def __init__(self, calibration: Floats, rng: np.random.Generator) -> None:
        streams, n = calibration.shape
        self.rng, self.evidence = rng, Evidence(n, streams)
        self.below = np.zeros(streams, np.int64)  # calibration scores below the last score
        self.ranking = Ranking(calibration, rng.random(calibration.shape), self.evidence.alternatives.highest)

    def add(self, scores: Floats) -> Floats:
        """The log-evidence (R,) after the next score of each stream."""
        place = self.ranking.add(scores, self.rng.random(len(scores)))
        self.below = place.below
        self.evidence.update(self.evidence.alternatives.band_of_gap[place.below], place.record)
        return self.evidence.log_evidence


class Jumper:
    """The textbook conformal martingale, simple jumper, which takes p-values for independent."""

    def __init__(self, n: int, streams: int, rng: np.random.Generator) -> None:
        self.n, self.rng = n, rng
        self.capital = np.full((streams, len(SLOPES)), 1 / len(SLOPES))

    def add(self, below: NDArray[np.int64]) -> Floats:
        """The same after the next scores, which are above so many calibration scores."""
        p = (self.n - below + self.rng.random(len(below))) / (self.n + 1)
        self.capital = (1 - JUMP) * self.capital + JUMP * self.capital.mean(1, keepdims=True)
        self.capital *= 1 + SLOPES * (p[:, None] - 0.5)
        return np.asarray(np.log(self.capital.sum(1)))


def highest_evidence(
    n: int, images: int, chunk: int, *, streams: int = AT_ONCE, decimals: int | None = None, seed: int = 0
) -> dict[str, Floats]:
    """The highest log-evidence of each of some normal streams, by the monitor and by the textbook martingale."""
    rng = np.random.default_rng([seed, n, chunk, 0 if decimals is None else 1 + decimals])

    def draw(*shape: int) -> Floats:
        scores = rng.normal(size=shape)
        return scores if decimals is None else scores.round(decimals)

    calibration = draw(streams, n)
    watched, textbook = Streams(calibration, rng), Jumper(n, streams, rng)
    highest = {"monitor": np.zeros(streams), "textbook": np.zeros(streams)}
    for _ in range(images):
        highest["monitor"] = np.maximum(highest["monitor"], watched.add(draw(streams)))
        highest["textbook"] = np.maximum(highest["textbook"], textbook.add(watched.below))
    return highest


def alarms_of_detectors(n: int, *, detectors: int, streams: int, images: int, rate: float, seed: int = 0) -> Floats:
    """(detectors,): the share of normal streams with an alarm of each detector, with one calibration set for all."""
    found = np.zeros(detectors)
    for detector in range(detectors):
        rng = np.random.default_rng([seed, n, detector, 7])
        watched = Streams(np.tile(rng.normal(size=(1, n)), (streams, 1)), rng)
        highest = np.zeros(streams)
        for _ in range(images):
            highest = np.maximum(highest, watched.add(rng.normal(size=streams)))
        found[detector] = (highest >= -np.log(rate)).mean()
    return found


def delays(n: int, after: int, *, streams: int, most: int, rate: float, seed: int = 0) -> Iterator[tuple[str, Row]]:
    """For each kind of change: the median number of images until the alarm, and the share of streams with one.

    All changes follow the same normal images; streams that raised an alarm before are left out and counted.
    """
    rng = np.random.default_rng([seed, n, after])
    before = Streams(rng.normal(size=(streams, n)), rng)
    level, early = -np.log(rate), np.zeros(streams, np.bool_)
    for _ in range(after):
        early |= before.add(rng.normal(size=streams)) >= level
    for kind, make in CHANGES.items():
        watched, change, alarm = deepcopy(before), make(), np.full(streams, np.inf)
        watched.rng = np.random.default_rng([seed, n, after, len(kind)])
        for since in range(most):
            found = watched.add(change(watched.rng.normal(size=streams), since, watched.rng)) >= level
            alarm = np.where(found & np.isinf(alarm), since + 1, alarm)
            if np.isfinite(alarm).all():
                break
        kept = alarm[~early]
        yield kind, {"false": int(early.sum()), **summary(kept)}


def summary(delay: Floats) -> Row:
    """The median, None where fewer than half are found, the 90th percentile likewise, and the share that is found."""
    if not len(delay):
        return {"median": None, "p90": None, "found": 0.0, "streams": 0}
    middle, high = np.quantile(delay, [0.5, 0.9], method="inverted_cdf")
    return {
        "median": float(middle) if np.isfinite(middle) else None,
        "p90": float(high) if np.isfinite(high) else None,
        "found": float(np.isfinite(delay).mean()),
        "streams": len(delay),
    }
