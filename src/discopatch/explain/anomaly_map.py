"""The anomaly map: the regions and places of an image, compared with those of normal images."""

from typing import ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from discopatch.encoders import Encoder, Features
from discopatch.heads.base import Array, GroupNumbers, ProbeShifts, Shapes
from discopatch.heads.basic import CombinedHead
from discopatch.images import Pixels

ANOMALY_MAP_SIZE = 64
GRID = 7  # overlapping regions along a side
N_REGIONS, AN_IMAGE = 320, (4, 16)  # regions to fit on: about so many in all, and between these per image
USUAL_SHARE = 0.9  # the share of normal regions whose anomaly is 0


class RegionModel(CombinedHead):
    """The combined head over single regions of normal images, and a threshold that few of them exceed.

    A region is scored as an image of its own. In one pass over the whole image the normalisation would make everything
    else look smooth beside a noisy corner.
    """

    shapes: ClassVar[Shapes] = {**CombinedHead.shapes, "threshold": ()}

    @classmethod
    def fit_images(
        cls, encoder: Encoder, pixels: Pixels, shifts: ProbeShifts, *, groups: GroupNumbers, usual: float, seed: int
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
        model, scores = cls().fit_and_score(normal, shifts, groups=numbers)
        return model.hold(threshold=np.quantile(scores, usual))

    def excess(self, regions: Features) -> Array:
        """(regions,): the score of each above the threshold, or 0."""
        return np.maximum(self.score(regions) - self.threshold.item(), 0)

    def anomaly_map(self, regions: Features, *, size: int, patch_size: int) -> NDArray[np.float32]:
        """(64, 64): the excess of GRID x GRID regions, interpolated linearly between their middles."""
        rows = interpolation_matrix(size, patch_size)
        return (rows @ self.excess(regions).reshape(GRID, GRID) @ rows.T).astype(np.float32)


def heat_of_places(place_map: Array) -> NDArray[np.float32]:
    """(64, 64): the positive part of the place map (side, side), interpolated linearly between the middles."""
    rows = interpolation_matrix(len(place_map), 1, count=len(place_map))
    return np.maximum(rows @ place_map @ rows.T, 0).astype(np.float32)


def interpolation_matrix(size: float, patch_size: float, *, count: int = GRID) -> Array:
    """(64, count): the interpolation from the middles of regions along a side to the cells of the map."""
    middles = (np.linspace(0, size - patch_size, count) + patch_size / 2) * ANOMALY_MAP_SIZE / size
    cells = np.arange(ANOMALY_MAP_SIZE, dtype=np.float64) + 0.5
    return np.stack([np.interp(cells, middles, region) for region in np.eye(count)], axis=1)
