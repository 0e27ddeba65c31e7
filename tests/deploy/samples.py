"""A tiny detector, and an engine that lies by a known amount."""

from functools import cache

import numpy as np

from discopatch import Detector
from discopatch.deploy.engines import Answer
from discopatch.deploy.parity import Original
from discopatch.images import Pixels
from tests.scoring.samples import of_one_camera, tiny_weights

SIZE = 64  # of the pictures that the tiny weights want


@cache
def tiny_detector() -> Detector:
    """Fitted once for all tests, which only read it."""
    return Detector(tiny_weights(), false_alarm_rate=0.1, device="cpu").fit(of_one_camera(60), workers=1)


def pixels_of(count: int, *, seed: int = 1) -> Pixels:
    """New pictures of the same camera, as the transform leaves them."""
    return np.stack([each.pixels for each in of_one_camera(count, seed=seed)])


class Lying:
    """Says what the detector says, and a little more, in spreads of its calibration scores."""

    def __init__(self, detector: Detector, by: float) -> None:
        self.original, self.by = Original(detector), by

    def __call__(self, pixels: Pixels, *, heat: bool = False) -> Answer:
        score = self.original.scores(pixels) + self.by * self.original.spread
        at_least = (self.original.fitted.calibration >= score[:, None]).sum(1)
        return Answer(score, at_least, np.stack([self.original.heat(each) for each in pixels]) if heat else None)
