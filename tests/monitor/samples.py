"""Streams of made-up predictions, and a detector for them that is quick to fit."""

from collections.abc import Iterable
from functools import cache

import numpy as np
from numpy.typing import ArrayLike, NDArray

from discopatch import ComponentScore, Detector, Monitor, MonitorStatus, Prediction
from discopatch.calibration import p_values
from tests.samples import made_up_features

Floats = NDArray[np.float64]


@cache
def made_detector(calibration: int = 99, seed: int = 1) -> Detector:
    """Fitted on features, which is quick, with so many held-out images."""
    features, held_out = made_up_features(40), made_up_features(calibration, seed=seed)
    return Detector(head="statistics", false_alarm_rate=0.1).fit_features(features, calibration=held_out)


def normal_scores(detector: Detector, images: int, seed: int = 5) -> Floats:
    return detector.predict_features(made_up_features(images, seed=seed)).scores


def spread_of(detector: Detector) -> float:
    return float(detector.calibration_scores_.std())


def predictions_of(scores: ArrayLike, detector: Detector, names: Iterable[str] | None = None) -> list[Prediction]:
    values = np.asarray(scores, np.float64)
    given = names or [f"{place}.png" for place in range(len(values))]
    found = p_values(values, detector.calibration_scores_)
    pairs = zip(given, values.tolist(), found.tolist(), strict=True)
    return [Prediction(name, score, p, p <= 0.1) for name, score, p in pairs]


def with_components(prediction: Prediction, **z: float) -> Prediction:
    parts = tuple(ComponentScore(name, value, value > 3) for name, value in z.items())
    return Prediction(prediction.name, prediction.score, prediction.p_value, prediction.is_ood, components=parts)


def watch(monitor: Monitor, predictions: Iterable[Prediction]) -> MonitorStatus:
    for each in predictions:
        monitor.update(each)
    return monitor.status


REFUSED = Prediction("broken.png", None, None, None, "empty: 0 bytes")
