"""How well scores tell two sets of images apart, and how sure that is."""

from collections.abc import Sequence
from dataclasses import dataclass
from zlib import crc32

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]
Counts = NDArray[np.float32]  # (resamples, images): how often each image was drawn

RESAMPLES = 1000
SURE = 0.95


def auroc(normal: ArrayLike, shifted: ArrayLike) -> float:
    """Probability that a shifted image scores higher than a normal one; a tie counts one half."""
    normal, shifted = np.sort(np.asarray(normal, float)), np.asarray(shifted, float)
    if not normal.size or not shifted.size:
        raise ValueError("AUROC needs at least one normal and one shifted score")
    if np.isnan(normal).any() or np.isnan(shifted).any():
        raise ValueError("AUROC of scores that are not numbers: find out which images gave NaN")
    below = np.searchsorted(normal, shifted, side="left")
    not_above = np.searchsorted(normal, shifted, side="right")
    return float((below + not_above).sum() / (2 * normal.size * shifted.size))


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


def estimate_auroc(normal: ArrayLike, shifted: ArrayLike, drawn: tuple[Counts, Counts]) -> Estimate:
    """AUROC with its resamples; `drawn` says which images each of them has, of the normal ones and of the shifted."""
    return Estimate(auroc(normal, shifted), resampled_auroc(normal, shifted, *drawn))


def resampled_auroc(normal: ArrayLike, shifted: ArrayLike, normal_drawn: Counts, shifted_drawn: Counts) -> Floats:
    """(resamples,): all at once, as AUROC is the mean over pairs of images of who scores higher."""
    first, second = np.asarray(normal, float)[:, None], np.asarray(shifted, float)[None]
    wins = np.where(first == second, np.float32(0.5), (first < second).astype(np.float32))
    won = ((normal_drawn @ wins) * shifted_drawn).sum(1, dtype=np.float64)
    result: Floats = won / (normal_drawn.sum(1) * shifted_drawn.sum(1))
    return result


def draw(images: int, *, seed: int, name: str = "", resamples: int = RESAMPLES) -> Counts:
    """As many images as there are, drawn with replacement; the same for every figure on the set of that name."""
    rng = np.random.default_rng([seed, crc32(name.encode())])
    return rng.multinomial(images, np.full(images, 1 / images), size=resamples).astype(np.float32)
