"""Where an image is unusual: each region by itself, compared with regions of normal images."""

from collections.abc import Mapping
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from discopatch.encoders import Encoder, Features
from discopatch.heads.base import NO_SHIFTS, Array, GroupNumbers, ProbeShifts, Stored, read_stored
from discopatch.heads.combined import CombinedHead
from discopatch.images import Pixels

ANOMALY_MAP_SIZE = 64
GRID = 7  # regions along a side, which overlap
N_REGIONS, AN_IMAGE = 320, (4, 16)  # regions to learn from: of all images about so many, of each between these
USUAL_SHARE = 0.9  # the share of normal regions whose anomaly is 0
STORED = {"threshold": Stored()}  # what a file holds beside the head


class RegionModel:
    """The combined head over single patches of normal images, and the score that few of them exceed.

    A patch is scored alone, as if it were the whole image: in one pass over the image the normalisation would let a
    noisy corner make all the rest look smooth.
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
        """From some regions of each of the normal images (B, size, size, 3), which may belong together in groups.

        How the probes move regions is taken from whole images. The threshold is that which the `usual` share does not
        exceed, of regions of images, or groups, which the scores do not come from.
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
        """(regions,): by how much the score of each exceeds the threshold, 0 where it does not."""
        return np.maximum(self.head.score(regions) - self.threshold, 0)

    def anomaly_map(self, regions: Features, *, size: int, patch_size: int) -> NDArray[np.float32]:
        """(64, 64): the excess of GRID x GRID regions, each at the middle of its region, linear between them."""
        rows = interpolation_matrix(size, patch_size)
        return (rows @ self.excess(regions).reshape(GRID, GRID) @ rows.T).astype(np.float32)

    def to_tensors(self) -> dict[str, Tensor]:
        return {**self.head.to_tensors(), "threshold": torch.tensor(self.threshold, dtype=torch.float64)}

    @classmethod
    def from_tensors(
        cls, tensors: Mapping[str, Tensor], probes: tuple[str, ...], *, statistics: int | None = None
    ) -> Self:
        own = {name: value for name, value in tensors.items() if name in STORED}
        others = {name: value for name, value in tensors.items() if name not in STORED}
        values = read_stored(cls.__name__, own, STORED, {})
        head = CombinedHead.from_tensors(others, probes, statistics=statistics)
        return cls(head, float(values["threshold"]))


def heat_of_places(place_map: Array) -> NDArray[np.float32]:
    """(64, 64): by how much the places (side, side) are beyond what is usual, each at its middle, linear between them.

    The level is taken off afterwards: in between no more is hot than at the places themselves.
    """
    rows = place_interpolation(len(place_map))
    return np.maximum(rows @ place_map @ rows.T, 0).astype(np.float32)


def place_interpolation(side: int) -> Array:
    """(64, side): from values at the middles of places to the cells of the map along a side."""
    return interpolation_matrix(side, 1, count=side)


def interpolation_matrix(size: float, patch_size: float, *, count: int = GRID) -> Array:
    """(64, count): from values at the middles of so many regions along a side to the cells of the map along it."""
    middles = (np.linspace(0, size - patch_size, count) + patch_size / 2) * ANOMALY_MAP_SIZE / size
    cells = np.arange(ANOMALY_MAP_SIZE, dtype=np.float64) + 0.5
    return np.stack([np.interp(cells, middles, region) for region in np.eye(count)], axis=1)
