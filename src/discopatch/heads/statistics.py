"""The statistics head: how far an image's layer statistics lie from those of normal images."""

from typing import Self

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from discopatch.encoders import Features
from discopatch.heads.base import NO_SHIFTS, STATISTICS, GroupNumbers, Head, ProbeShifts, Size
from discopatch.heads.gaussian import ShrunkGaussian

SMALLEST_DISTANCE = 1e-9  # of an image that is the mean itself, so that its logarithm is a number
SMALLEST_SCALE = 0.01  # of a mean or a log-variance: one percent, below which a difference is no difference


class StatisticsHead(Head):
    """A Gaussian over the mean and log-variance of every channel before each normalisation, over one image.

    These are what the normalisation removes from the image, and what the logit therefore cannot depend on: the level,
    the contrast, the noise. Score: the logarithm of the squared Mahalanobis distance a dimension, 0 for what is usual.
    """

    def __init__(self) -> None:
        super().__init__()
        self.gaussian = ShrunkGaussian()

    def fit(self, features: Features, shifts: ProbeShifts = NO_SHIFTS, *, groups: GroupNumbers = None) -> Self:
        head = type(self)()
        head.gaussian = fit_distance(features.statistics)
        return head

    def forward(self, logits: Tensor, statistics: Tensor) -> Tensor:
        return log_distance(self.gaussian, statistics)


def fit_distance(statistics: NDArray[np.floating], size: Size = STATISTICS) -> ShrunkGaussian:
    """From (images, d): all statistics of an image, or some of them, of which there are `size`."""
    return ShrunkGaussian.fit(statistics, smallest_scale=SMALLEST_SCALE, size=size)


def log_distance(gaussian: ShrunkGaussian, statistics: Tensor) -> Tensor:
    """(B, d) to (B,)."""
    distance: Tensor = gaussian(statistics)
    return distance.clamp(min=SMALLEST_DISTANCE).log()
