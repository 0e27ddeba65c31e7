"""What a report is about, checked before anything is drawn."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import isfinite, isnan

import numpy as np
from numpy.typing import NDArray

from discopatch.decision.explanation import Explanation
from discopatch.decision.prediction import Prediction


@dataclass(frozen=True, slots=True)
class Scored:
    """A prediction that is known to have a score."""

    name: str
    score: float
    p_value: float
    is_ood: bool

    @classmethod
    def of(cls, prediction: Prediction) -> "Scored":
        """Refuses what would make the report lie."""
        name, score, p_value = prediction.name, prediction.score, prediction.p_value
        if score is None:
            raise ValueError(f"{name!r} was refused, so there is nothing to look at closely: leave it out")
        if p_value is None or prediction.is_ood is None:
            raise ValueError(f"{name!r} has a score but no p-value or no verdict: predict with a calibrated detector")
        if not isfinite(score):
            raise ValueError(f"{name!r} has the score {score}: scores must be finite; the model is broken")
        if not 0 <= p_value <= 1:
            raise ValueError(f"{name!r} has the p-value {p_value}: it must lie between 0 and 1")
        return cls(name, float(score), float(p_value), bool(prediction.is_ood))


@dataclass(frozen=True, eq=False)
class ReportContent:
    """Everything that a report shows; it is refused where a number is missing or is none."""

    title: str
    predictions: Sequence[Prediction]
    calibration_scores: NDArray[np.float64]  # of normal images that were held out
    threshold: float  # scores above it are flagged; infinite where nothing can be
    false_alarm_rate: float
    close_ups: Sequence[Explanation]  # of the strangest images
    settings: Mapping[str, str]
    created: str  # ISO 8601

    def __post_init__(self) -> None:
        if not 0 < self.false_alarm_rate < 1:
            raise ValueError(f"false_alarm_rate {self.false_alarm_rate}: must lie between 0 and 1")
        if isnan(self.threshold):
            raise ValueError("threshold nan: calibrate again with finite scores")
        if self.calibration_scores.ndim != 1 or not np.isfinite(self.calibration_scores).all():
            raise ValueError("calibration_scores must be finite, of shape (n,): calibrate again with finite scores")
        for close_up in self.close_ups:
            Scored.of(close_up.prediction)
        _ = self.scored

    @cached_property
    def scored(self) -> list[Scored]:
        """The images with a score, strangest first."""
        scored = [Scored.of(prediction) for prediction in self.predictions if prediction.error is None]
        return sorted(scored, key=lambda each: -each.score)

    @cached_property
    def refused(self) -> list[Prediction]:
        """The images without a score, in their order."""
        return [prediction for prediction in self.predictions if prediction.error is not None]

    @cached_property
    def flagged(self) -> int:
        """How many images are unlike the normal ones."""
        return sum(each.is_ood for each in self.scored)

    @cached_property
    def smallest_p_value(self) -> float:
        """No image can have a smaller one, however strange it is."""
        return 1 / (len(self.calibration_scores) + 1)
