"""What a fit looks for in normal images before it trusts them: copies, an order that matters, images used twice."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from discopatch.encoders import Features
from discopatch.errors import ParameterError, TooFewImagesError
from discopatch.groups import MANY, pairwise_distances
from discopatch.heads import Head
from discopatch.metrics import auroc
from discopatch.normal_images import NormalImages

MAX_ORDERED = 1024  # images whose order is looked at, evenly taken
PERMUTATIONS = 999
DRIFT_P_VALUE = 0.01  # the share of folders without drift that are taken for one that drifts
NOTABLE_DRIFT = 0.7  # AUROC of the last third against the first, below which a drift does not matter
MAX_COMPARED = 2048  # images of each side that are compared
NEARER = 0.5  # of the distance of normal images from their nearest: below it an image is a near-copy of another


@dataclass(frozen=True)
class Drift:
    """The last third of the images differs from the first."""

    p_value: float  # of so large a difference in a random order
    auroc: float  # 1: a detector of the first third alone would find every image of the last one unusual

    @property
    def text(self) -> str:
        return (
            "normal is not one thing here: in the order given, the last third of the images differs from the first "
            f"(a detector of the first third alone tells them apart with an AUROC of {self.auroc:.2f}). False alarms "
            "hold for new images that come from the whole range; if images drift, fit on recent ones, and if they are "
            "of several kinds, fit a detector for each"
        )


def find_drift(features: Features, head: Head, groups: NDArray[np.intp], *, seed: int) -> Drift | None:
    """Whether the last third of images, in their order, differs from the first by more than a random order explains.

    The difference of the two thirds' mean statistics is compared with that in random orders, in which the images of a
    group stay together: an exact test. How much it matters is for the head to say: fitted on two thirds of the first
    third, it scores what is left of it, and the last.
    """
    every = np.unique(np.linspace(0, len(groups) - 1, MAX_ORDERED).astype(int))
    features, groups = features.select(every), groups[every]
    statistics = np.asarray(features.statistics, np.float64)
    if not statistics.shape[1] or np.isclose(statistics, statistics[0]).all():
        return None
    standard = (statistics - statistics.mean(0)) / np.maximum(statistics.std(0), 1e-9)
    orders, third = random_orders(groups, seed=seed), len(groups) // 3
    contrast = np.zeros(orders.shape)
    np.put_along_axis(contrast, orders[:, :third], 1, axis=1)
    np.put_along_axis(contrast, orders[:, -third:], -1, axis=1)
    differences = ((contrast @ (standard @ standard.T)) * contrast).sum(1)  # squared lengths
    p_value = float((differences >= differences[0] * (1 - 1e-9)).mean())
    if p_value > DRIFT_P_VALUE:
        return None
    first, kept = np.arange(third), np.arange(third) % 3 == 0
    fitted = head.fit(features.select(first[~kept]))
    before, after = fitted.score(features.select(first[kept])), fitted.score(features.select(slice(-third, None)))
    found = Drift(p_value, auroc(before, after))
    return found if found.auroc >= NOTABLE_DRIFT else None


def random_orders(groups: NDArray[np.intp], *, seed: int) -> NDArray[np.intp]:
    """(1 + PERMUTATIONS, n): the order as it is, then random ones in which each group stays together."""
    rng = np.random.default_rng([seed, 2])
    numbers = np.unique(groups, return_inverse=True)[1]
    places = [rng.permutation(numbers.max() + 1)[numbers] for _ in range(PERMUTATIONS)]
    return np.stack([np.arange(len(groups)), *(np.argsort(place, kind="stable") for place in places)])


def check_distinct(digests: Sequence[bytes], names: Sequence[str], *, needed: int) -> str | None:
    """TooFewImagesError where nearly all images are copies of the same few; a sentence where many are copies."""
    counts = Counter(digests)
    copies = len(digests) - len(counts)
    most, times = counts.most_common(1)[0]
    example = names[digests.index(most)]
    if len(counts) < needed and copies:
        raise TooFewImagesError(
            f"{len(digests)} images, but only {len(counts)} different ones ({example} is there {times} times); "
            f"at least {needed} are needed to know what is normal: add images that were taken one by one"
        )
    if copies < MANY * len(digests):
        return None
    return (
        f"{copies} of {len(digests)} images are exact copies of others ({example} is there {times} times): "
        "leave copies out, or a few images count for many"
    )


def check_not_fitted(held_out: NormalImages, fitted: NormalImages) -> None:
    """Raises ParameterError if images to calibrate on are among those to fit, by their digests or as near-copies."""
    known = set(fitted.digests)
    if same := sum(digest in known for digest in held_out.digests):
        raise ParameterError(
            f"{same} of {len(held_out)} calibration images are also fitted, so that their scores are too low: "
            "give others, or leave calibration out"
        )
    if copies := count_near_copies(held_out.features.statistics, fitted.features.statistics):
        raise ParameterError(
            f"{copies} of {len(held_out)} calibration images are near-copies of fitted ones, so that their scores are "
            "too low: give images of other scenes, or leave calibration out and say groups='auto' (--groups auto)"
        )


def count_near_copies(new: NDArray[np.floating], known: NDArray[np.floating]) -> int:
    """How many of the rows of (m, d) are nearer to one of (n, d) than those are to one another; 0 if it is a chance."""
    known, new = known[:MAX_COMPARED], new[:MAX_COMPARED]
    distances = pairwise_distances(np.concatenate([known, new]))
    np.fill_diagonal(distances, np.inf)
    usual, nearest = np.split(distances[:, : len(known)].min(1), [len(known)])
    if np.median(nearest) < NEARER * np.median(usual):
        return int((nearest < np.median(usual)).sum())
    copies = int((nearest < NEARER * np.quantile(usual, 0.05)).sum())
    return copies if copies >= max(2, 0.05 * len(new)) else 0
