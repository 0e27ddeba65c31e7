"""Streams of made-up predictions, and a stand-in for a fitted detector with given calibration scores."""

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from discopatch import Monitor, Prediction
from discopatch.calibration import Calibration, Guarantee, p_values
from discopatch.monitor import MonitorStatus
from discopatch.results import ComponentScore

REFUSED = Prediction("broken.png", None, None, None, "empty: 0 bytes")


class MadeDetector:
    """The attributes of a fitted detector that a monitor uses."""

    def __init__(
        self, calibration: int = 99, *, seed: int = 1, names: tuple[str, ...] = (), groups: Any = None
    ) -> None:
        self.calibration_scores_ = np.sort(np.random.default_rng(seed).normal(size=calibration))
        self.component_names, self._groups = names, groups

    @property
    def calibration_(self) -> Calibration:
        return Calibration(self.calibration_scores_, 0.1)

    @property
    def guarantee_(self) -> Guarantee:
        """That of groups of three normal images, as many as calibration images twice."""
        count = len(self.calibration_scores_)
        return Guarantee(3 * count, count, 0.1, 2 * count)

    def settings(self) -> dict[str, Any]:
        return {"groups": self._groups}


def monitor_of(detector: MadeDetector, *arguments: Any, **options: Any) -> Monitor:
    return Monitor(detector, *arguments, **options)  # type: ignore[arg-type]


def predictions_of(scores: ArrayLike, detector: MadeDetector, names: Iterable[str] | None = None) -> list[Prediction]:
    values = np.asarray(scores, np.float64)
    given = names or [f"{place}.png" for place in range(len(values))]
    found = p_values(values, detector.calibration_scores_)
    pairs = zip(given, values.tolist(), found.tolist(), strict=True)
    return [Prediction(name, score, p, p <= 0.1) for name, score, p in pairs]


def changing(detector: MadeDetector, normal: int, changed: int, by: float) -> list[Prediction]:
    """Normal scores, and then scores that are higher by so many standard deviations."""
    scores = np.random.default_rng(5).normal(size=normal + changed)
    scores[normal:] += by
    return predictions_of(scores, detector)


def with_components(prediction: Prediction, **z: float) -> Prediction:
    parts = tuple(ComponentScore(name, value, value > 3) for name, value in z.items())
    return Prediction(prediction.name, prediction.score, prediction.p_value, prediction.is_ood, components=parts)


def watch(monitor: Monitor, predictions: Iterable[Prediction]) -> MonitorStatus:
    for each in predictions:
        monitor.update(each)
    return monitor.status
