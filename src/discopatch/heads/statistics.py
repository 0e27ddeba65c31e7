"""The statistics head: the distance of an image's layer statistics from those of normal images."""

from typing import Self

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from discopatch.encoders import Features, FeatureSizes
from discopatch.errors import WeightsError
from discopatch.heads.base import NO_SHIFTS, GroupNumbers, Head, ProbeShifts
from discopatch.heads.gaussian import ShrunkGaussian

SMALLEST_DISTANCE = 1e-9  # of an image at the mean, so that the logarithm is finite
SMALLEST_SCALE = 0.01  # standard deviation of a mean or a log-variance: one percent


class StatisticsHead(Head):
    """A Gaussian over the mean and log-variance of every channel before each normalisation, over one image.

    The normalisation removes these from the image, so that the logit does not depend on them: level, contrast, noise.
    The score is the logarithm of the squared Mahalanobis distance per dimension, about 0 for normal images.
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

    def check_sizes(self, sizes: FeatureSizes) -> None:
        check_statistics(len(self.gaussian.mean), sizes)


def check_statistics(found: int, sizes: FeatureSizes) -> None:
    if found != sizes.statistics:
        raise WeightsError(f"it takes {found} statistics, and its networks give {sizes.statistics}")


def fit_distance(statistics: NDArray[np.floating]) -> ShrunkGaussian:
    """The Gaussian of statistics (images, d)."""
    return ShrunkGaussian.fit(statistics, smallest_scale=SMALLEST_SCALE)


def log_distance(gaussian: ShrunkGaussian, statistics: Tensor) -> Tensor:
    """(B, d) to (B,)."""
    distance: Tensor = gaussian(statistics)
    return distance.clamp(min=SMALLEST_DISTANCE).log()
