"""Where a score stands among the calibration scores and the highest so far, with ties broken at random.

Each score gets a random number, by which equal scores are ordered: pairs of both are exchangeable if scores are, and no
two are equal. The numbers are a hash of the seed and the place of the score, so that a monitor that was stopped and
resumed goes on as if it had not been.
"""

from hashlib import blake2b
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

CALIBRATION, STREAM = 0, 1  # what the random numbers are for


def tie_breaker(seed: int, of: int, number: int) -> float:
    """A number in [0, 1) with 53 random bits, the same for the same arguments on every machine."""
    key = b"".join(each.to_bytes(8, "little", signed=True) for each in (seed, of, number))
    return (int.from_bytes(blake2b(key, digest_size=8).digest(), "little") >> 11) / 2**53


class Place(NamedTuple):
    """Where the next scores of R streams stand."""

    below: Integers  # (R,) calibration scores that are below
    record: NDArray[np.bool_]  # (R,) whether it is among the highest so far


class Ranking:
    """Ranks the scores of R streams, each with its own n calibration scores (R, n)."""

    def __init__(self, calibration: Floats, ties: Floats, highest: int) -> None:
        self._calibration, self._ties = calibration, ties
        order = np.lexsort((ties, calibration), axis=1)[:, ::-1][:, :highest]
        self.highest = np.take_along_axis(calibration, order, 1)  # (R, highest), descending
        self.highest_ties = np.take_along_axis(ties, order, 1)

    def add(self, scores: Floats, ties: Floats) -> Place:
        """Places the next score of each stream (R,), with its random number, and keeps it if it is a high one."""
        score, tie = scores[:, None], ties[:, None]
        below = np.count_nonzero(self._calibration < score, axis=1)
        equal = self._calibration == score
        if equal.any():
            below = below + np.count_nonzero(equal & (self._ties < tie), axis=1)
        above = (score > self.highest[:, -1:]) | ((score == self.highest[:, -1:]) & (tie > self.highest_ties[:, -1:]))
        record = above[:, 0]
        if record.any():
            self.highest[record, -1], self.highest_ties[record, -1] = scores[record], ties[record]
            order = np.lexsort((self.highest_ties[record], self.highest[record]), axis=1)[:, ::-1]
            self.highest[record] = np.take_along_axis(self.highest[record], order, 1)
            self.highest_ties[record] = np.take_along_axis(self.highest_ties[record], order, 1)
        return Place(below, record)
