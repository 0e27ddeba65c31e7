"""Where an image is strange: each region by itself, compared with regions of normal images."""

from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from discopatch.images import Pixels
from discopatch.scoring.changes import displacements
from discopatch.scoring.combined import CombinedHead
from discopatch.scoring.evidence import Evidence
from discopatch.scoring.heads import Array, Arrays
from discopatch.scoring.scorer import Scorer

CELLS = 64  # side of a heatmap
APART, OVERLAPPING = 4, 7  # regions along a side: to learn from, and to look at
STILL_USUAL = 0.9  # the share of normal regions without heat
CHANGED = 2  # normal images on whose regions the known changes are tried


@dataclass(frozen=True, eq=False)
class Regions:
    """What single patches of normal images look like.

    A patch is judged alone, as if it were the whole image: in one pass over the image the normalisation would let a
    noisy corner make all the rest look smooth.
    """

    head: CombinedHead
    usual: float  # the score that few regions of normal images exceed

    @classmethod
    def fit(cls, scorer: Scorer, pixels: Pixels, *, seed: int) -> Self:
        """From a few normal images, (B, size, size, 3)."""

        def look(pictures: Pixels) -> Evidence:
            return Evidence.concatenate([scorer.inspect_patches(each, APART**2) for each in pictures])

        normal = look(pixels)
        head = CombinedHead().fit(normal, displacements(look, pixels[:CHANGED], seed=seed))
        return cls(head, float(np.quantile(head.score(normal), STILL_USUAL)))

    def heat(self, regions: Evidence) -> Array:
        """(regions,): how much stranger each is than usual, 0 where it is not."""
        return np.maximum(self.head.score(regions) - self.usual, 0)

    def surprises(self, regions: Evidence) -> dict[str, float]:
        """Each known change in standard deviations, every region heard as loudly as it is strange."""
        loudness = self.heat(regions) + 1e-9
        return dict(zip(self.head.names, loudness @ self.head.changes(regions) / loudness.sum(), strict=True))

    def arrays(self) -> Arrays:
        """To be stored."""
        return {**self.head.arrays(), "usual": np.array(self.usual)}

    @classmethod
    def from_arrays(cls, arrays: Arrays) -> Self:
        """The inverse of `arrays`."""
        return cls(CombinedHead.from_arrays(arrays), float(arrays["usual"]))


def look_at_regions(scorer: Scorer, pixels: Pixels) -> Evidence:
    """(size, size, 3) in uint8 -> the evidence of each region, row by row."""
    return scorer.inspect_patches(pixels, OVERLAPPING**2)


def heatmap(scorer: Scorer, heat: Array) -> NDArray[np.float32]:
    """(regions,), at which the scorer looked -> (64, 64)."""
    weights = scorer.weights
    return over_the_image(heat, size=weights.transform.size, patch_size=weights.discriminator.architecture.patch_size)


def over_the_image(regions: Array, *, size: int, patch_size: int) -> NDArray[np.float32]:
    """(regions,) -> (64, 64), each value at the middle of its region, straight lines between them."""
    places = regions.reshape(OVERLAPPING, OVERLAPPING)
    middles, cells = along_a_side(size, patch_size)
    rows = np.stack([np.interp(cells, middles, row) for row in places])
    return np.stack([np.interp(cells, middles, column) for column in rows.T], axis=1).astype(np.float32)


def along_a_side(size: int, patch_size: int) -> tuple[Array, Array]:
    """Where the middles of the regions lie, (7,), and those of the cells, (64,); in cells."""
    middles = (np.linspace(0, size - patch_size, OVERLAPPING) + patch_size / 2) * CELLS / size
    return middles, np.arange(CELLS, dtype=np.float64) + 0.5
