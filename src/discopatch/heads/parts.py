"""Parts of the components head: their names, and their scales over images that they were not fitted on."""

import numpy as np
import torch

from discopatch.calibration import usual_level
from discopatch.heads.base import Array, GroupNumbers
from discopatch.heads.combined import centre_and_spread, soft_maximum

COMPONENTS: dict[str, tuple[str, ...]] = {  # the parts of each
    "acquisition": ("logit", "early", "probes"),
    "content": ("deep", "neighbours"),
    "place": ("places",),
}
PART_NAMES = tuple(part for parts in COMPONENTS.values() for part in parts)
COLUMNS = {part: column for column, part in enumerate(PART_NAMES)}

UPPER, UPPER_SIGMAS = 0.9, 1.2816  # a quantile, and how many standard deviations it is above a normal's median
NORMAL_RATE = 0.05  # share of normal images with a significant component
SMALLEST_LEVEL = 1.0  # of significance, in standard deviations of normal images
USUAL_WITH_PLACES = 0.93  # share of places, and of regions, without an anomaly: about one in ten has one of both


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


def with_largest_probe(measured: Array, centres: Array, spreads: Array) -> Array:
    """(images, parts): the largest of the standardised responses in the column of the probes."""
    parts, responses = measured[:, : len(PART_NAMES)].copy(), measured[:, len(PART_NAMES) :]
    if responses.shape[1]:
        parts[:, COLUMNS["probes"]] = ((responses - centres) / spreads).max(1)
    return parts


def component_values(z: Array, parts: list[str]) -> Array:
    """(images,): the soft maximum of these parts, NaN where one is NaN; all NaN without parts."""
    own = z[:, [COLUMNS[part] for part in parts]]
    found = np.full(len(z), np.nan)
    known = ~np.isnan(own).any(1)
    if parts:
        found[known] = soft_maximum(torch.from_numpy(own[known])).numpy()
    return found
