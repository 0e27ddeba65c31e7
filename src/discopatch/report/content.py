"""The content of a report, checked before anything is drawn."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import isfinite, isnan
from typing import Self

import numpy as np
from numpy.typing import NDArray

from discopatch.calibration import check_rate, images_needed
from discopatch.errors import ParameterError
from discopatch.gate import FolderTest
from discopatch.results import COMPONENT_WORDS, Explanation, Prediction


@dataclass(frozen=True, slots=True)
class ScoredImage:
    """A prediction that is known to have a finite score, a p-value and a decision."""

    name: str
    score: float
    p_value: float
    is_ood: bool
    significant: tuple[str, ...] = ()  # the names of the components that stand out, strongest first

    @classmethod
    def from_prediction(cls, prediction: Prediction) -> Self:
        name, score, p_value = prediction.name, prediction.score, prediction.p_value
        if score is None:
            raise ParameterError(f"{name!r} was refused, so there is nothing to explain: leave it out")
        if p_value is None or prediction.is_ood is None:
            raise ParameterError(f"{name!r} has a score but no p-value or decision: predict with a calibrated detector")
        if not isfinite(score):
            raise ParameterError(f"{name!r} has the score {score}: scores must be finite; the model is broken")
        if not 0 <= p_value <= 1:
            raise ParameterError(f"{name!r} has the p-value {p_value}: it must lie between 0 and 1")
        significant = tuple(each.name for each in prediction.significant)
        return cls(name, float(score), float(p_value), bool(prediction.is_ood), significant)


@dataclass(frozen=True, eq=False)
class ReportContent:
    """Everything that a report shows; ParameterError where a number is missing or is not one."""

    title: str
    predictions: Sequence[Prediction]
    calibration_scores: NDArray[np.float64]  # (n,) of held-out normal images
    threshold: float  # scores above it are flagged; infinite where nothing can be
    false_alarm_rate: float
    close_ups: Sequence[Explanation]  # of the most anomalous images
    settings: Mapping[str, str]
    created: str  # ISO 8601
    folder: FolderTest | None = None  # the decision about all images together

    def __post_init__(self) -> None:
        check_rate(self.false_alarm_rate)
        if isnan(self.threshold):
            raise ParameterError("threshold nan: calibrate again with finite scores")
        if self.calibration_scores.ndim != 1 or not np.isfinite(self.calibration_scores).all():
            raise ParameterError("calibration_scores must be finite, of shape (n,): calibrate again with finite scores")
        for close_up in self.close_ups:
            ScoredImage.from_prediction(close_up.prediction)
        _ = self.scored

    @cached_property
    def scored(self) -> list[ScoredImage]:
        """The images with a score, highest first."""
        scored = [ScoredImage.from_prediction(each) for each in self.predictions if each.error is None]
        return sorted(scored, key=lambda each: -each.score)

    @cached_property
    def scores(self) -> NDArray[np.float64]:
        """The scores alone, highest first."""
        return np.array([each.score for each in self.scored], np.float64)

    @cached_property
    def refused(self) -> list[Prediction]:
        """The images without a score, in their order."""
        return [prediction for prediction in self.predictions if prediction.error is not None]

    @cached_property
    def flagged(self) -> int:
        """How many images are out-of-distribution by their scores."""
        return sum(each.is_ood for each in self.scored)

    @cached_property
    def significant(self) -> dict[str, int]:
        """Of how many flagged images each component significant, by its words; empty for a head without components."""
        names = dict.fromkeys(component.name for each in self.predictions for component in each.components)
        return {
            COMPONENT_WORDS[name]: sum(each.is_ood and name in each.significant for each in self.scored)
            for name in names
        }

    @property
    def can_flag(self) -> bool:
        """Whether there are enough calibration scores for the false-alarm rate to flag anything at all."""
        return self.threshold < np.inf

    @property
    def expected_false_alarms(self) -> float:
        """The largest number of flagged images to expect, on average, if all images were normal."""
        return self.false_alarm_rate * len(self.scored) if self.can_flag else 0.0

    @property
    def calibration_images_needed(self) -> int:
        """The fewest calibration scores with which anything can be flagged."""
        return images_needed(self.false_alarm_rate)

    @property
    def smallest_p_value(self) -> float:
        """The p-value that no image can be below, whatever its score."""
        return 1 / (len(self.calibration_scores) + 1)
