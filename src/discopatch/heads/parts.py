"""Parts of the components head: their names, and what is usual of them in images that they were not fitted on."""

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
NORMAL_RATE = 0.05  # the share of normal images of which a component may speak
SMALLEST_LEVEL = 1.0  # standard deviations of normal images, from which one does
USUAL_WITH_PLACES = 0.93  # the share of places, and of regions, whose anomaly is 0: about one in ten has one of both


def part_scale(values: Array) -> tuple[Array, Array]:
    """Centre and spread of each column by a high quantile.

    A part with a heavy tail would drown the others otherwise; a higher one takes more images.
    """
    return centre_and_spread(values, UPPER, UPPER_SIGMAS)


def significance_level(z: Array, groups: GroupNumbers) -> float:
    """What the largest of the components (images, components) exceeds in few new images; columns of NaN do not count.

    Images of which a component is not known, as not all places are compared, are left out.
    """
    own = z[:, ~np.isnan(z).all(0)]
    known = ~np.isnan(own).any(1)
    level = usual_level(own[known].max(1), NORMAL_RATE, None if groups is None else groups[known])
    return max(level, SMALLEST_LEVEL)


def usual_distances(distances: Array) -> dict[str, Array | float]:
    """Centre and spread of the distances (images, positions) at each place, and the z-score that few exceed.

    Places at the border of an image are farther than others. So few images hardly tell how the distances at one place
    spread: half of it is the mean over all places.
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
    """(images,): the soft maximum of these parts, NaN where one is not known; all NaN without parts."""
    own = z[:, [COLUMNS[part] for part in parts]]
    found = np.full(len(z), np.nan)
    known = ~np.isnan(own).any(1)
    if parts:
        found[known] = soft_maximum(torch.from_numpy(own[known])).numpy()
    return found
