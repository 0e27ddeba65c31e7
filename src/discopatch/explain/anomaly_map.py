"""The anomaly map: the regions and places of an image, compared with those of normal images."""

from collections.abc import Mapping
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from discopatch.encoders import Encoder, Features, FeatureSizes
from discopatch.heads.base import NO_SHIFTS, Array, GroupNumbers, ProbeShifts, read_tensors
from discopatch.heads.basic import CombinedHead
from discopatch.images import Pixels

ANOMALY_MAP_SIZE = 64
GRID = 7  # overlapping regions along a side
N_REGIONS, AN_IMAGE = 320, (4, 16)  # regions to fit on: about so many in all, and between these per image
USUAL_SHARE = 0.9  # the share of normal regions whose anomaly is 0


class RegionModel:
    """The combined head over single regions of normal images, and a threshold that few of them exceed.

    A region is scored as an image of its own. In one pass over the whole image the normalisation would make everything
    else look smooth beside a noisy corner.
    """

    def __init__(self, head: CombinedHead, threshold: float) -> None:
        self.head, self.threshold = head, threshold

    @classmethod
    def fit(
        cls,
        encoder: Encoder,
        pixels: Pixels,
        shifts: ProbeShifts = NO_SHIFTS,
        *,
        groups: GroupNumbers = None,
        usual: float = USUAL_SHARE,
        seed: int,
    ) -> Self:
        """A model from some regions of each of the normal images (B, size, size, 3).

        shifts: those of whole images, which serve for regions too.
        groups: numbers of the images that belong together.
        usual: the share of cross-fitted normal regions at or below the threshold.
        """
        rng, each = np.random.default_rng([seed, 7]), int(np.clip(N_REGIONS // len(pixels), *AN_IMAGE))
        chosen = [np.sort(rng.permutation(GRID**2)[:each]) for _ in pixels]
        normal = Features.concatenate(
            [encoder.extract_regions(image, GRID**2, places) for image, places in zip(pixels, chosen, strict=True)]
        )
        numbers = np.repeat(np.arange(len(pixels)) if groups is None else groups, each)
        head, scores = CombinedHead().fit_and_score(normal, shifts, groups=numbers)
        return cls(head, float(np.quantile(scores, usual)))

    def excess(self, regions: Features) -> Array:
        """(regions,): the score of each above the threshold, or 0."""
        return np.maximum(self.head.score(regions) - self.threshold, 0)

    def anomaly_map(self, regions: Features, *, size: int, patch_size: int) -> NDArray[np.float32]:
        """(64, 64): the excess of GRID x GRID regions, interpolated linearly between their middles."""
        rows = interpolation_matrix(size, patch_size)
        return (rows @ self.excess(regions).reshape(GRID, GRID) @ rows.T).astype(np.float32)

    def to_tensors(self) -> dict[str, Tensor]:
        return {**self.head.to_tensors(), "threshold": torch.tensor(self.threshold, dtype=torch.float64)}

    @classmethod
    def from_tensors(
        cls, tensors: Mapping[str, Tensor], probes: tuple[str, ...], sizes: FeatureSizes | None = None
    ) -> Self:
        """The stored model; WeightsError where a tensor does not fit."""
        own = {name: tensor for name, tensor in tensors.items() if name == "threshold"}
        threshold = read_tensors(cls.__name__, own, {"threshold": ()})["threshold"]
        others = {name: tensor for name, tensor in tensors.items() if name != "threshold"}
        return cls(CombinedHead.from_tensors(others, probes, sizes), float(threshold))


def heat_of_places(place_map: Array) -> NDArray[np.float32]:
    """(64, 64): the positive part of the place map (side, side), interpolated linearly between the middles."""
    rows = place_interpolation(len(place_map))
    return np.maximum(rows @ place_map @ rows.T, 0).astype(np.float32)


def place_interpolation(side: int) -> Array:
    """(64, side): the interpolation from the middles of places to the cells of the map along a side."""
    return interpolation_matrix(side, 1, count=side)


def interpolation_matrix(size: float, patch_size: float, *, count: int = GRID) -> Array:
    """(64, count): the interpolation from the middles of regions along a side to the cells of the map."""
    middles = (np.linspace(0, size - patch_size, count) + patch_size / 2) * ANOMALY_MAP_SIZE / size
    cells = np.arange(ANOMALY_MAP_SIZE, dtype=np.float64) + 0.5
    return np.stack([np.interp(cells, middles, region) for region in np.eye(count)], axis=1)
