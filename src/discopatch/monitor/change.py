"""The beginning of a change, and the component of the head that has moved, from the last few thousand images.

Nothing here decides whether there is an alarm. Given an alternative and the first changed image, the likelihood of the
images since then, over that of normal ones, is the product of the alternative's bets. Mixed over the alternatives with
their priors it is the posterior of the first changed image, if all images are equally likely beforehand, but for the
first of the stream, which has the weight that it has in `evidence.py`.
"""

from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from discopatch.monitor.evidence import AT_ONCE, Evidence, Floats, log_sum_exp

KEPT = 2048  # images
INSIDE = 0.9  # probability that the first changed image lies in the interval
ENOUGH = 30  # images before the change, to compare those after it with; with fewer z-scores are as those of normal ones
CLEAR = 3.0  # standard errors by which a component's mean has moved, from which on it is named


class ChangePoint(msgspec.Struct, frozen=True):
    """The first changed image, and an interval that contains it with a probability of 90 %."""

    image: int
    earliest: int
    latest: int


def row_type(components: int, classes: int = 1) -> np.dtype[np.void]:
    """The fields of a recent image, for a detector with so many components and classes."""
    fields = [("number", "<i8"), ("band", "u1"), ("record", "?"), ("z_scores", "<f4", (components,))]
    return np.dtype([*fields, *[("class", "<u2")] * (classes > 1)])


def rows_of_classes(rows: NDArray[np.void]) -> NDArray[np.bool_]:
    """(classes, images): which images are of each class."""
    if "class" not in (rows.dtype.names or ()):
        return np.ones((1, len(rows)), bool)
    found: NDArray[np.bool_] = rows["class"] == np.arange(rows["class"].max(initial=0) + 1)[:, None]
    return found


def change_interval(rows: NDArray[np.void], evidence: Sequence[Evidence]) -> tuple[int, int, int]:
    """The places among the recent images of the likeliest first changed one, and of both ends of its interval."""
    posterior = np.exp(log_posterior(rows, evidence))
    posterior /= posterior.sum()
    likeliest = np.argsort(-posterior, kind="stable")
    needed = int(np.searchsorted(np.cumsum(posterior[likeliest]), INSIDE)) + 1
    inside = likeliest[:needed]
    return int(likeliest[0]), int(inside.min()), int(inside.max())


def log_posterior(rows: NDArray[np.void], evidence: Sequence[Evidence]) -> Floats:
    """(images,), up to a constant: of each recent image being the first that is changed; evidence of each class."""
    log_priors = evidence[0].alternatives.log_priors
    bets = np.empty((len(rows), len(log_priors)))
    for each, own in zip(evidence, rows_of_classes(rows), strict=False):
        alternatives, bands, records = each.alternatives, rows["band"][own].astype(np.int64), rows["record"][own]
        urn = each.urn[0] - sums_to_last(np.eye(len(alternatives.sizes))[bands])  # (images, K) before each image
        first = alternatives.log_bets(urn[:1], bands[:1], records[:1], None)
        others = alternatives.log_bets(urn[1:], bands[1:], records[1:], bands[:-1])
        bets[own] = np.concatenate([first, others])
    found = log_sum_exp(sums_to_last(bets) + log_priors)
    if max(each.images for each in evidence) == len(rows):
        found[0] += np.log1p(AT_ONCE * len(rows))
    return np.asarray(found - found.max())


def sums_to_last(values: Floats) -> Floats:
    """The sums of the rows (images, ...) from each image to the last."""
    return values[::-1].cumsum(0)[::-1]


def moved_component(z_scores: NDArray[np.float32], first: int) -> int | None:
    """The component whose z-scores (images, components) have another mean since that image; None if none is clear."""
    z = z_scores.astype(np.float64)
    before, after = z[:first], z[first:]
    if not z.shape[1] or not np.isfinite(z).all():
        return None
    mean, spread, known = np.zeros(z.shape[1]), np.ones(z.shape[1]), ENOUGH
    if len(before) >= ENOUGH:
        mean, spread, known = before.mean(0), np.maximum(before.std(0), 1e-6), len(before)
    moved = np.abs(after.mean(0) - mean) / spread / np.sqrt(1 / len(after) + 1 / known)
    largest = int(moved.argmax())
    return largest if moved[largest] > CLEAR else None
