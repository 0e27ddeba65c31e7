"""Evidence that a stream of scores differs from the calibration scores: a test martingale.

**The null law is known exactly.** Let the n calibration scores and the scores of the stream be exchangeable, and break
ties at random (`Ranking`), so that no two are equal. Every order of the first n + t + 1 of them is then equally
likely. Given the order of the first n + t, the next one falls into each of the N = n + 1 + t places between them with
probability 1 / N, and so it does whatever that order is. A band of neighbouring calibration scores with w of the n + 1
gaps between them has w places at first, and one more for each image of the stream that has fallen into it:

    P(next band = b | past) = (w_b + images in b) / (n + 1 + t),

which is Polya's urn. That the calibration set is finite is in it; nothing is estimated, bounded or taken for
independent. (P-values against one fixed set are not independent, since all depend on that set: martingales that
multiply functions of them give more false alarms than they promise.) In the same way the next score is above the J-th
highest of all so far with probability J / N.

**Bets.** Let h >= 0 be a function of the next place that is chosen before it is known. Then h / E[h], the expectation
being that of the urn, has mean 1 given the past. So for each alternative m and each start tau the product of its
factors from image tau on is a martingale that begins with 1, and so is a mixture whose weights sum to 1:

    evidence = sum over m of prior_m * (sum over tau <= t of w_tau * factors of m from tau to t
                                        + sum over tau > t of w_tau)

With classes, each has an urn of its own. Given which class the next image is of, the bet on its place among those of
its class has mean 1, so that the product over images of all classes is a martingale too, for any sequence of classes.

It is never negative and has mean 1 at all times, so that P(it ever reaches 1 / rate) <= rate by Ville's inequality:
over calibration sets and streams together, for streams of any length. `tests/monitor/test_evidence.py` adds up all
streams of a few images and finds the mean 1.

The bets of an alternative do not depend on tau, so that its sum over all starts takes one step an image,
S <- (S + w_t) * factor, here in logarithms. The weights w_t = W(t) - W(t + 1) are those of
W(t) = (log c / log(c + t))^2, which falls so slowly that w_t is 1 / t but for powers of log t: that a change may have
begun at any of a million images costs about the logarithm of their number, and what is to hold at all times cannot
cost less.
"""

from collections.abc import Sequence
from hashlib import blake2b
from math import log, log1p
from statistics import NormalDist
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Direction = Literal["higher", "lower", "alike"]
Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

DIRECTIONS: tuple[Direction, ...] = ("higher", "lower", "alike")
DIRECTION_OF: dict[str, Direction] = {"far": "higher", "record": "higher", "narrow": "alike"}  # of other kinds
SHIFTS = (0.25, 0.5, 1.0, 2.0, 3.0)  # of all scores, in standard deviations, were they normally distributed
SHARES = (0.02, 0.05, 0.1, 0.3)  # of images that are far off
SPREAD = 0.5  # of scores that are too much alike, in standard deviations
NEAR = (0, 2)  # how many bands from the last image the next one is, if nothing changes any more
ALIKE = 0.9  # share of images that are that near
UNCHANGED = 0.02  # share of images that a shift spares
HIGHEST = 16  # scores of all so far, among which images that are far off come

# Of each alternative of a kind; all of them sum to 1.
PRIORS = {"higher": 0.1, "far": 0.0125, "record": 0.02, "lower": 0.03, "narrow": 0.04, "alike": 0.09}

MOST_IN_MIDDLE = 24  # bands have about 1 / 24 of the calibration scores at most
GROWTH = 1.35  # of the size of the bands, from each end
AT_ONCE = 0.15  # weight of a change that is there from the first image on
SLOWNESS = 1000  # the c of W

SEED, CALIBRATION, STREAM = 0, 0, 1  # of random numbers, and their uses

NORMAL = NormalDist()
LOWEST = -1e300  # logarithm of nothing


def band_sizes(n_calibration: int) -> Integers:
    """The number of the n + 1 gaps between calibration scores in each band: one at both ends, more in the middle."""
    total, size = n_calibration + 1, 1.0
    sizes: list[int] = []
    largest = max(1.0, total / MOST_IN_MIDDLE)
    while 2 * (sum(sizes) + round(size)) <= total:
        sizes.append(round(size))
        size = min(size * GROWTH, largest)
    middle = [rest] if (rest := total - 2 * sum(sizes)) else []
    return np.array([*sizes, *middle, *reversed(sizes)], np.int64)


def tilted(edges: Sequence[float], *, shift: float = 0.0, spread: float = 1.0) -> Floats:
    """The masses (K,) between edges in (0, 1) once normally distributed scores are shifted or less spread."""
    inside = [NORMAL.cdf((NORMAL.inv_cdf(edge) - shift) / spread) for edge in edges]
    return np.diff(np.array([0.0, *inside, 1.0]))


class Alternatives:
    """Models of a changed stream, for so many calibration images: M bets on the place of the next image.

    Those on bands come first, then those on the HIGHEST scores so far, one of each of SHARES, and those on images near
    the last one, one of each of NEAR.
    """

    def __init__(self, n_calibration: int) -> None:
        self.sizes = band_sizes(n_calibration)
        self.band_of_gap = np.repeat(np.arange(len(self.sizes)), self.sizes)  # (n + 1,), by calibration scores below
        self.highest = min(HIGHEST, n_calibration)
        place, masses = np.arange(len(self.sizes)), self.sizes / self.sizes.sum()
        self.near = np.array([abs(place[:, None] - place) <= most for most in NEAR])  # (2, K, K)
        edges = np.cumsum(masses)[:-1].tolist()
        shifted = [tilted(edges, shift=shift) for shift in (*SHIFTS, *(-shift for shift in SHIFTS))]
        rows = [UNCHANGED + (1 - UNCHANGED) * each / masses for each in shifted]
        rows += [1 - share + share * (place == place[-1]) / masses for share in SHARES]
        rows += [UNCHANGED + (1 - UNCHANGED) * tilted(edges, spread=SPREAD) / masses]
        self.factors = np.array(rows)  # (A, K), before they are divided by their mean
        shifts, shares = len(SHIFTS), len(SHARES)
        kinds = ["higher"] * shifts + ["lower"] * shifts + ["far"] * shares + ["narrow"]
        self.kinds = (*kinds, *["record"] * shares, *["alike"] * len(NEAR))  # of PRIORS
        self.log_priors = np.log([PRIORS[kind] for kind in self.kinds])
        self.directions = np.array([DIRECTIONS.index(DIRECTION_OF.get(kind, kind)) for kind in self.kinds])

    def log_bets(self, urn: Floats, band: Integers, record: NDArray[np.bool_], last: Integers | None) -> Floats:
        """(R, M) for R streams: the logarithms of the bets on images in these bands (R,).

        `urn` (R, K) counts the places of each band; `last` are the bands of the images before, if there were any.
        """
        places = urn.sum(1)
        means = urn @ self.factors.T / places[:, None]
        shares, streams = np.array(SHARES), np.arange(len(band))
        far = 1 - shares + shares * record[:, None] * (places / self.highest)[:, None]
        parts = [self.factors[:, band].T / means, far]
        for near in self.near:
            if last is None:
                parts.append(np.ones((len(band), 1)))
            else:
                around = near[last]
                mass = (urn * around).sum(1) / places
                parts.append((1 - ALIKE + ALIKE * around[streams, band] / mass)[:, None])
        return np.asarray(np.log(np.concatenate(parts, 1)))


def start_weight(images: int) -> float:
    """The w of a change that begins after so many images."""
    before, after = log(SLOWNESS + images), log(SLOWNESS + images + 1)
    falls = log1p(1 / (SLOWNESS + images))  # after - before, to the last digit
    return (1 - AT_ONCE) * (log(SLOWNESS) / (before * after)) ** 2 * falls * (before + after) + AT_ONCE * (images == 0)


def later_starts(images: int) -> float:
    """The sum of the w of all changes that begin after the first so many images, all of which are known."""
    return (1 - AT_ONCE) * (log(SLOWNESS) / log(SLOWNESS + images)) ** 2 if images else 1.0


class Evidence:
    """The martingale of one stream, or of R streams that are as long and have as many calibration scores."""

    def __init__(self, n_calibration: int, streams: int = 1) -> None:
        self.alternatives = Alternatives(n_calibration)
        self.images = 0
        self.urn = np.tile(self.alternatives.sizes.astype(np.float64), (streams, 1))  # (R, K) places of each band
        self.log_sums = np.full((streams, len(self.alternatives.kinds)), -np.inf)  # (R, M) log S
        self.last: Integers | None = None  # (R,) bands of the images before

    def update(self, band: Integers, record: NDArray[np.bool_]) -> None:
        """Takes the next image of each stream: its band (R,), and whether it is among the HIGHEST scores so far."""
        log_bets = self.alternatives.log_bets(self.urn, band, record, self.last)
        self.log_sums = log_add(self.log_sums, log(start_weight(self.images))) + log_bets
        self.urn[np.arange(len(band)), band] += 1
        self.last = band
        self.images += 1

    @property
    def log_evidence(self) -> Floats:
        """(R,), natural logarithms."""
        bets = log_sum_exp(self.log_sums + self.alternatives.log_priors)
        return log_add(bets, log(later_starts(self.images)))

    @property
    def log_by_direction(self) -> Floats:
        """(R, 3): the part of the evidence that the alternatives of each of DIRECTIONS have earned."""
        terms, of = self.log_sums + self.alternatives.log_priors, self.alternatives.directions
        return np.stack([log_sum_exp(terms[:, of == place]) for place in range(len(DIRECTIONS))], 1)


def log_add(values: Floats, other: float) -> Floats:
    """log(exp(values) + exp(other)) for any values and a finite other, faster than numpy's."""
    largest = np.maximum(values, other)
    return np.asarray(largest + np.log(np.exp(values - largest) + np.exp(other - largest)))


def log_sum_exp(values: Floats) -> Floats:
    """The logarithm of the sum of exponentials over the last axis; the lowest number where all are -inf."""
    largest = np.maximum(values.max(-1, keepdims=True), LOWEST)
    with np.errstate(divide="ignore"):
        return np.asarray(np.maximum(largest[..., 0] + np.log(np.exp(values - largest).sum(-1)), LOWEST))


def tie_breaker(of: int, number: int) -> float:
    """A number in [0, 1) with 53 random bits: a hash, so that a resumed monitor continues with the same numbers."""
    key = b"".join(each.to_bytes(8, "little", signed=True) for each in (SEED, of, number))
    return (int.from_bytes(blake2b(key, digest_size=8).digest(), "little") >> 11) / 2**53


class Ranking:
    """Ranks the scores of R streams, each with its own n calibration scores (R, n), with ties broken at random.

    Each score gets a random number, by which equal scores are ordered: pairs of both are exchangeable if scores are,
    and no two are equal.
    """

    def __init__(self, calibration: Floats, ties: Floats, highest: int) -> None:
        self._calibration, self._ties = calibration, ties
        order = np.lexsort((ties, calibration), axis=1)[:, ::-1][:, :highest]
        self.highest = np.take_along_axis(calibration, order, 1)  # (R, highest), descending
        self.highest_ties = np.take_along_axis(ties, order, 1)

    def add(self, scores: Floats, ties: Floats) -> tuple[Integers, NDArray[np.bool_]]:
        """Takes the next score of each stream (R,), with its random number.

        Returns how many calibration scores are below each, and whether it is among the highest scores so far.
        """
        score, tie = scores[:, None], ties[:, None]
        is_below = (self._calibration < score) | ((self._calibration == score) & (self._ties < tie))
        below = np.count_nonzero(is_below, axis=1)
        above = (score > self.highest[:, -1:]) | ((score == self.highest[:, -1:]) & (tie > self.highest_ties[:, -1:]))
        record = above[:, 0]
        if record.any():
            self.highest[record, -1], self.highest_ties[record, -1] = scores[record], ties[record]
            order = np.lexsort((self.highest_ties[record], self.highest[record]), axis=1)[:, ::-1]
            self.highest[record] = np.take_along_axis(self.highest[record], order, 1)
            self.highest_ties[record] = np.take_along_axis(self.highest_ties[record], order, 1)
        return below, record
