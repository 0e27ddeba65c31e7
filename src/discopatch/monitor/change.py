"""The beginning of a change, and the component of the head that has moved, from the last few thousand images.

Nothing here decides whether there is an alarm. Given an alternative and the first
changed image, the likelihood of the images since then, over that of normal ones, is the product of the alternative's
factors. Mixed over the alternatives with their priors it is the posterior of the first changed image, if all images are
equally likely beforehand, but for the first of the stream, which has the weight that it has in `evidence.py`. The
result is the likeliest image, and the first and last of the fewest that together have 90 %.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from discopatch.monitor.evidence import ALIKE, AT_ONCE, SHARES, Evidence, log_sum_exp

Floats = NDArray[np.float64]

KEPT = 2048  # images
INSIDE = 0.9  # probability that the first changed image lies in the interval
ENOUGH = 30  # images before the change, to compare those after it with; with fewer z-scores are as those of normal ones
CLEAR = 3.0  # standard errors by which a component's mean has moved, from which on it is named


class ChangePoint(NamedTuple):
    """The first changed image, and an interval that contains it with a probability of 90 %."""

    image: int
    earliest: int
    latest: int


class Recent:
    """The last images that count, oldest first: their numbers, bands, whether they were records, and their z-scores."""

    def __init__(self, components: int) -> None:
        self.numbers = np.zeros(0, np.int64)
        self.bands = np.zeros(0, np.uint8)
        self.records = np.zeros(0, np.bool_)
        self.z_scores = np.zeros((0, components), np.float32)
        self._waiting: list[tuple[int, int, bool, tuple[float, ...]]] = []

    def add(self, number: int, band: int, record: bool, z_scores: tuple[float, ...]) -> None:
        self._waiting.append((number, band, record, z_scores))
        if len(self._waiting) >= KEPT:
            self.settle()

    def settle(self) -> None:
        """Appends the added images to the arrays, many at once."""
        if not self._waiting:
            return
        numbers, bands, records, z_scores = zip(*self._waiting, strict=True)
        components = self.z_scores.shape[1]
        z = np.array(z_scores, np.float32).reshape(len(numbers), components)
        self.numbers = np.concatenate([self.numbers, np.array(numbers, np.int64)])[-KEPT:]
        self.bands = np.concatenate([self.bands, np.array(bands, np.uint8)])[-KEPT:]
        self.records = np.concatenate([self.records, np.array(records, np.bool_)])[-KEPT:]
        self.z_scores = np.concatenate([self.z_scores, z])[-KEPT:]
        self._waiting = []


def change_interval(recent: Recent, evidence: Evidence) -> tuple[int, int, int] | None:
    """The places among the recent images of the first changed one and of both ends of its interval."""
    recent.settle()
    count = len(recent.bands)
    if not count:
        return None
    posterior = np.exp(log_posterior(recent, evidence))
    posterior /= posterior.sum()
    likeliest = np.argsort(-posterior, kind="stable")
    needed = int(np.searchsorted(np.cumsum(posterior[likeliest]), INSIDE)) + 1
    inside = likeliest[:needed]
    return int(likeliest[0]), int(inside.min()), int(inside.max())


def log_posterior(recent: Recent, evidence: Evidence) -> Floats:
    """(images,), up to a constant: of each recent image being the first that is changed."""
    alternatives, bands = evidence.alternatives, recent.bands.astype(np.int64)
    count, places = len(bands), np.arange(len(bands))
    seen = np.eye(len(alternatives.sizes))[bands]
    urn = evidence.urn[0] - seen[::-1].cumsum(0)[::-1]  # (images, K) before each image
    total = urn.sum(1)
    factors = alternatives.factors[:, bands].T  # (images, A)
    means = urn @ alternatives.factors.T / total[:, None]
    shifted = from_here_on(np.log(factors) - np.log(means))
    shares = np.array(SHARES)
    records = 1 - shares + shares * (recent.records * total / alternatives.highest)[:, None]
    near = np.ones((count, len(alternatives.near)))
    for column, around in enumerate(alternatives.near):
        inside = around[bands[:-1]]  # (images - 1, K), around the image before
        mass = (inside * urn[1:]).sum(1) / total[1:]
        near[1:, column] = 1 - ALIKE + ALIKE * inside[places[:-1], bands[1:]] / mass
    likelihood = np.concatenate([shifted, from_here_on(np.log(records)), from_here_on(np.log(near))], 1)
    found = log_sum_exp(likelihood + alternatives.log_priors)
    if evidence.images == count:
        found[0] += np.log1p(AT_ONCE * count)
    return np.asarray(found - found.max())


def from_here_on(values: Floats) -> Floats:
    """The sums of the rows (images, ...) from each image to the last."""
    return values[::-1].cumsum(0)[::-1]


def moved_component(recent: Recent, first: int) -> int | None:
    """The component whose z-score has another mean since that place among the recent images; None if none is clear."""
    recent.settle()
    z = recent.z_scores.astype(np.float64)
    before, after = z[:first], z[first:]
    if not z.shape[1] or not len(after) or not np.isfinite(z).all():
        return None
    mean, spread, known = np.zeros(z.shape[1]), np.ones(z.shape[1]), ENOUGH
    if len(before) >= ENOUGH:
        mean, spread, known = before.mean(0), np.maximum(before.std(0), 1e-6), len(before)
    moved = np.abs(after.mean(0) - mean) / spread / np.sqrt(1 / len(after) + 1 / known)
    largest = int(moved.argmax())
    return largest if moved[largest] > CLEAR else None
