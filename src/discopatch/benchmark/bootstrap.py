"""How sure a metric is: what it would have been with other images of the same kind."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar
from zlib import crc32

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]
Counts = NDArray[np.float32]  # (resamples, images): how often each image was drawn; whole numbers, exact to 2**24
Places = NDArray[np.int64]
Images = TypeVar("Images", int, Places)

RESAMPLES = 1000
SURE = 0.95
BLOCK = 2**22  # counts worked on at a time: 16 MB, of which some copies are made


@dataclass(frozen=True, eq=False)
class Estimate:
    """A figure, and what it would have been with other images of the same kind."""

    value: float
    samples: Floats  # (resamples,)

    @property
    def interval(self) -> tuple[float, float]:
        """Between which the middle 95 % of the resamples lie."""
        low, high = np.quantile(self.samples, [(1 - SURE) / 2, (1 + SURE) / 2])
        return float(low), float(high)

    @classmethod
    def mean(cls, estimates: Sequence["Estimate"]) -> "Estimate":
        """The mean of several figures: resample by resample, since they rest on the same images."""
        samples: Floats = np.mean([each.samples for each in estimates], axis=0)
        return cls(float(np.mean([each.value for each in estimates])), samples)


def difference(first: Estimate, second: Estimate) -> Estimate:
    """First minus second, resample by resample: luck with the images drawn, if the same for both, cancels out."""
    if first.samples.shape != second.samples.shape:
        raise ValueError(
            f"{first.samples.size} and {second.samples.size} resamples: estimate both figures from the same draws"
        )
    return Estimate(first.value - second.value, first.samples - second.samples)


def over_seeds(values: ArrayLike) -> tuple[float, float]:
    """Mean and standard deviation over seeds; the latter is 0 for a single one."""
    values = np.asarray(values, np.float64)
    if not values.size:
        raise ValueError("no seeds: give the value of at least one")
    return float(values.mean()), float(values.std(ddof=1)) if values.size > 1 else 0.0


def draw(images: int, *, seed: int, name: str = "", resamples: int = RESAMPLES) -> Counts:
    """As many images as there are, drawn with replacement; the same for every figure on the set of that name."""
    rng = np.random.default_rng([seed, crc32(name.encode())])
    drawn = rng.multinomial(images, np.full(images, 1 / images), size=resamples)
    return np.asfortranarray(drawn, np.float32)  # an image's counts side by side, since `resample` sorts images


def resample(
    normal: Floats, shifted: Floats, drawn: tuple[Counts, Counts], metrics: Sequence[str]
) -> dict[str, Floats]:
    """(resamples,) of each metric: what it is on scores repeated as often as their images were drawn.

    The scores are sorted once. How many of the images drawn lie below a score is then a cumulative sum of counts, and
    the metrics are sums over those, for many resamples at a time.
    """
    _check(normal, shifted, *drawn)
    ranks = _Ranks.of(normal, shifted)
    parts = [[_RESAMPLED[name](block) for name in metrics] for block in _blocks(ranks, *drawn)]
    return {name: np.concatenate(each) for name, each in zip(metrics, zip(*parts, strict=True), strict=True)}


def least_95_percent(images: Images) -> Images:
    """The smallest number that is 95 % of so many images, in whole numbers: 0.95 is no exact float."""
    return -(-19 * images // 20)


def _check(normal: Floats, shifted: Floats, normal_drawn: Counts, shifted_drawn: Counts) -> None:
    for what, scores, counts in (("normal", normal, normal_drawn), ("shifted", shifted, shifted_drawn)):
        if counts.shape[1:] != scores.shape:
            raise ValueError(f"{scores.size} {what} scores, but draws of {counts.shape[1]} images: draw({scores.size})")
    if len(normal_drawn) != len(shifted_drawn):
        raise ValueError(
            f"{len(normal_drawn)} resamples of normal images, {len(shifted_drawn)} of shifted: draw as many of both"
        )


@dataclass(frozen=True, eq=False)
class _Ranks:
    """Both sets in ascending order, and how many of one lie below a score of the other, or up to it with its ties."""

    normal: Places  # (N,): which image comes first, second, ...
    shifted: Places  # (S,)
    normal_below_shifted: Places  # (S,)
    normal_to_shifted: Places  # (S,)
    shifted_below_shifted: Places  # (S,)
    normal_to_normal: Places  # (N,)
    shifted_to_normal: Places  # (N,)

    @classmethod
    def of(cls, normal: Floats, shifted: Floats) -> "_Ranks":
        first, second = np.argsort(normal), np.argsort(shifted)
        normal, shifted = normal[first], shifted[second]
        return cls(
            normal=first,
            shifted=second,
            normal_below_shifted=np.searchsorted(normal, shifted, side="left"),
            normal_to_shifted=np.searchsorted(normal, shifted, side="right"),
            shifted_below_shifted=np.searchsorted(shifted, shifted, side="left"),
            normal_to_normal=np.searchsorted(normal, normal, side="right"),
            shifted_to_normal=np.searchsorted(shifted, normal, side="right"),
        )


class _Side:
    """The images of one set in ascending order, as often as some resamples (R) drew them."""

    def __init__(self, drawn: Counts, order: Places) -> None:
        self.counts = drawn.T.take(order, axis=0)  # (images, R)
        self.sums = np.zeros((len(order) + 1, len(drawn)), np.float32)  # row i: of the first i images
        for before, count, after in zip(self.sums[:-1], self.counts, self.sums[1:], strict=True):
            np.add(before, count, out=after)  # row by row: np.cumsum, which goes by columns, takes twice as long
        self.total = self.sums[-1]  # (R,)
        self.needed = least_95_percent(self.total.astype(np.int64)).astype(np.float32)

    def first(self, images: Places) -> Counts:
        """(len(images), R): how many were drawn of the first so many images."""
        return self.sums.take(images, axis=0)

    def after(self, images: Places) -> Counts:
        """(len(images), R): how many were drawn of all but the first so many."""
        found = self.first(images)
        np.subtract(self.total, found, out=found)
        return found

    def at(self, images: Places) -> Floats:
        """(R,): how many were drawn of the first so many images, which are as many as each resample says."""
        return self.sums[images, np.arange(images.size)].astype(np.float64)

    def reaching(self, count: Counts) -> Places:
        """(R,): the image with which so many have been drawn."""
        found: Places = (self.sums < count).sum(axis=0)
        return found - 1

    def mean(self, values: Counts) -> Floats:
        """(R,): of values for each image and resample, which are used up."""
        values *= self.counts
        result: Floats = values.sum(axis=0, dtype=np.float64) / self.total
        return result


class _Block(NamedTuple):
    """Some of the resamples."""

    ranks: _Ranks
    normal: _Side
    shifted: _Side


def _blocks(ranks: _Ranks, normal: Counts, shifted: Counts) -> Iterator[_Block]:
    size = max(1, BLOCK // (ranks.normal.size + ranks.shifted.size))
    for start in range(0, len(normal), size):
        part = slice(start, start + size)
        yield _Block(ranks, _Side(normal[part], ranks.normal), _Side(shifted[part], ranks.shifted))


def _auroc(block: _Block) -> Floats:
    ranks, normal, shifted = block
    below_twice = normal.first(ranks.normal_below_shifted)
    below_twice += normal.first(ranks.normal_to_shifted)
    result: Floats = shifted.mean(below_twice) / (2 * normal.total)
    return result


def _fpr95(block: _Block) -> Floats:
    ranks, normal, shifted = block
    threshold = shifted.reaching(shifted.total - shifted.needed + 1)
    result: Floats = (normal.total - normal.at(ranks.normal_below_shifted[threshold])) / normal.total
    return result


def _fpr95_in(block: _Block) -> Floats:
    ranks, normal, shifted = block
    threshold = normal.reaching(normal.needed)
    result: Floats = shifted.at(ranks.shifted_to_normal[threshold]) / shifted.total
    return result


def _aupr_in(block: _Block) -> Floats:
    ranks, normal, shifted = block
    return normal.mean(_precision(normal.first(ranks.normal_to_normal), shifted.first(ranks.shifted_to_normal)))


def _aupr_out(block: _Block) -> Floats:
    ranks, normal, shifted = block
    return shifted.mean(
        _precision(shifted.after(ranks.shifted_below_shifted), normal.after(ranks.normal_below_shifted))
    )


def _precision(hits: Counts, false_alarms: Counts) -> Counts:
    false_alarms += hits
    np.maximum(false_alarms, 1, out=false_alarms)  # where nothing was drawn there are no hits either
    hits /= false_alarms
    return hits


_RESAMPLED: dict[str, Callable[[_Block], Floats]] = {
    "auroc": _auroc,
    "fpr95": _fpr95,
    "fpr95_in": _fpr95_in,
    "aupr_in": _aupr_in,
    "aupr_out": _aupr_out,
}
