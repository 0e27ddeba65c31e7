"""Parts of a head: their scales over images that they were not fitted on, and how they are joined into one score."""

import numpy as np
import torch
from torch import Tensor

from discopatch.calibration import usual_level
from discopatch.heads.base import Array, GroupNumbers

COMPONENTS: dict[str, tuple[str, ...]] = {  # the parts of each, in the components head
    "acquisition": ("logit", "early", "probes"),
    "content": ("deep", "neighbours"),
    "place": ("places",),
}
PART_NAMES = tuple(part for parts in COMPONENTS.values() for part in parts)
COLUMNS = {part: column for column, part in enumerate(PART_NAMES)}

ONE_SIGMA = 0.8413  # the quantile one standard deviation above a normal distribution's median
UPPER, UPPER_SIGMAS = 0.9, 1.2816  # another quantile, and how many standard deviations it is above the median
NORMAL_RATE = 0.05  # share of normal images with a significant component
SMALLEST_LEVEL = 1.0  # of significance, in standard deviations of normal images
USUAL_WITH_PLACES = 0.93  # share of places, and of regions, without an anomaly: about one in ten has one of both


def soft_maximum(z: Tensor) -> Tensor:
    """(B, parts) to (B,): log(sum(exp(z))), in which small z-scores of several parts add up.

    The largest is subtracted before the exponential, which would overflow in float32.
    """
    largest = z.amax(1, keepdim=True)
    return largest[:, 0] + (z - largest).exp().sum(1).log()


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


def usual_distances(distances: Array) -> dict[str, Array | float]:
    """Centre and spread of the distances (images, positions) at each place, and the z-score that few exceed.

    Places at the border of an image are farther than others. The images are few, so that half of each spread is the
    mean over all places.
    """
    centres, own = part_scale(distances)
    spreads = (own + own.mean()) / 2 if own.size else own
    level = float(np.quantile((distances - centres) / spreads, USUAL_WITH_PLACES)) if own.size else 0.0
    return {"place_centres": centres, "place_spreads": spreads, "place_level": level}


def component_values(z: Array, counted: tuple[str, ...]) -> Array:
    """(images, components): the soft maximum of the parts of each that count, NaN without any or where one is NaN."""
    found = np.full((len(z), len(COMPONENTS)), np.nan)
    for column, parts in enumerate(COMPONENTS.values()):
        own = z[:, [COLUMNS[part] for part in parts if part in counted]]
        known = ~np.isnan(own).any(1) & bool(own.shape[1])
        if known.any():
            found[known, column] = soft_maximum(torch.from_numpy(own[known])).numpy()
    return found
