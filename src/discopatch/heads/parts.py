"""Parts of a head: their scales over images that they were not fitted on, and how they are joined into one score."""

from collections.abc import Sequence
from math import log

import numpy as np
import torch
from torch import Tensor

from discopatch.calibration import usual_level
from discopatch.heads.base import Array, GroupNumbers

COMPONENTS: dict[str, tuple[str, ...]] = {  # the parts of each, in the components head
    "acquisition": ("logit", "early", "probes", "embedding", "tones"),
    "content": ("deep", "neighbours"),
    "place": ("places",),
}
PART_NAMES = tuple(part for parts in COMPONENTS.values() for part in parts)
COLUMNS = {part: column for column, part in enumerate(PART_NAMES)}

ONE_SIGMA = 0.8413  # the quantile one standard deviation above a normal distribution's median
UPPER, UPPER_SIGMAS = 0.9, 1.2816  # another quantile, and how many standard deviations it is above the median
NORMAL_RATE = 0.05  # share of normal images with a significant component
# Places count where images look alike: what differs is then a place.
WEIGHTS = {"acquisition": 1.0, "content": 1.25, "place": 2.5}
SHARPNESS = 0.5  # of the soft maximum of parts; the lower, the more do several that are fairly rare add up
SMALLEST_LEVEL = 1.0  # of significance, in standard deviations of normal images

# Quantiles at which the tail of a part is fitted, and minus the logarithm of the share above each.
QUANTILES = (0.1, 0.5, 0.8)
RARITIES = tuple(-log(1 - each) for each in QUANTILES)
TAIL = 6  # numbers of a tail: median and upper quantile, slopes below and above the median, scale and shape
SHAPES = (0.05, 0.8)  # of a generalised Pareto tail: above 0, so that a value far beyond the data is bounded
USUAL_SHAPE, WEIGHT = 0.2, 10  # of few images, and the number of values above the quantile that count as much


def soft_maximum(z: Tensor) -> Tensor:
    """(B, parts) to (B,): log(sum(exp(z))), in which small z-scores of several parts add up.

    The largest is subtracted before the exponential, which would overflow in float32.
    """
    largest = z.amax(1, keepdim=True)
    return largest[:, 0] + (z - largest).exp().sum(1).log()


def join_parts(rare: Tensor, parts: Sequence[str]) -> tuple[Tensor, Tensor]:
    """Rarities (B, parts) of these parts to the score (B,) and the values of their components (B, components).

    A component is the soft maximum of its parts, and the score is that of the components, by their weights: more parts
    of a component do not make it count more. Parts have the order of `PART_NAMES`.
    """
    sizes = {name: sum(part in of for part in parts) for name, of in COMPONENTS.items()}
    sizes = {name: size for name, size in sizes.items() if size}
    total = sum(WEIGHTS[name] for name in sizes)
    components = [soft_maximum(SHARPNESS * own) - log(own.shape[1]) for own in rare.split(list(sizes.values()), 1)]
    weighted = [each + log(WEIGHTS[name] / total) for name, each in zip(sizes, components, strict=True)]
    return soft_maximum(torch.stack(weighted, 1)) / SHARPNESS, torch.stack(components, 1) / SHARPNESS


def centre_and_spread(values: Array, upper: float = ONE_SIGMA, sigmas: float = 1.0) -> tuple[Array, Array]:
    """Median, and one standard deviation from a quantile above it, column by column, both robust to outliers.

    The quantile `upper` is `sigmas` standard deviations above a normal distribution's median. NaN are left out. The
    spread is 1 of columns that do not vary, and the centre 0 of columns without values.
    """
    centres, spreads = np.zeros(values.shape[1]), np.ones(values.shape[1])
    for column, found in enumerate(values.T):
        known = found[~np.isnan(found)]
        if len(known):
            centres[column], above = np.quantile(known, [0.5, upper])
            if above > centres[column]:
                spreads[column] = (above - centres[column]) / sigmas
    return centres, spreads


def part_scale(values: Array) -> tuple[Array, Array]:
    """Centre and spread of each column by a high quantile, so that a part with a heavy tail does not dominate."""
    return centre_and_spread(values, UPPER, UPPER_SIGMAS)


def significance_level(z: Array, groups: GroupNumbers) -> float:
    """The level that the largest of the components (images, components) exceeds in few new images.

    Columns of NaN, and images with NaN in another column, are left out: not all places are compared.
    """
    own = z[:, ~np.isnan(z).all(0)]
    known = ~np.isnan(own).any(1)
    level = usual_level(own[known].max(1), NORMAL_RATE, None if groups is None else groups[known])
    return max(level, SMALLEST_LEVEL)


def fit_tails(values: Array) -> Array:
    """(images, parts) to (parts, TAIL): how rare a value of each part is, see `rarity`. NaN are left out.

    Linear between quantiles, and above the last a generalised Pareto tail by probability-weighted moments (Hosking and
    Wallis, 1987).
    """
    return np.stack([tail_of(found[~np.isnan(found)]) for found in values.T])


def tail_of(values: Array) -> Array:
    if not len(values):
        return np.array([0.0, 0.0, 1.0, 1.0, 1.0, USUAL_SHAPE])
    low, median, upper = np.quantile(values, QUANTILES)
    smallest = max(1e-6 * abs(median), 1e-9)
    slopes = np.diff(RARITIES) / np.maximum([median - low, upper - median], smallest)
    excess = np.sort(values[values > upper] - upper)
    count, mean = len(excess), max(float(excess.mean()), smallest) if len(excess) else smallest
    weighted = float(((1 - (np.arange(count) + 0.65) / count) * excess).mean()) if count else mean / 4
    shape = 2 - mean / max(mean - 2 * weighted, 1e-3 * mean)
    shape = (count * np.clip(shape, *SHAPES) + WEIGHT * USUAL_SHAPE) / (count + WEIGHT)
    return np.array([median, upper, *slopes, mean * (1 - shape), shape])


def rarity(values: Tensor, tails: Tensor) -> Tensor:
    """Values (B, parts) as minus the logarithm of the share of normal images with a larger one."""
    median, upper, below, between, scale, shape = tails.unbind(1)
    low = RARITIES[1] + torch.where(values < median, below, between) * (values.minimum(upper) - median)
    return low + torch.log1p(shape * (values - upper).clamp(min=0) / scale) / shape
