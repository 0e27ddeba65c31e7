"""The content of a report."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from discopatch.calibration import DetectionRate, images_needed
from discopatch.gate import FolderTest
from discopatch.results import COMPONENT_WORDS, Explanation, Prediction


@dataclass(frozen=True, eq=False)
class ReportContent:
    """Everything that a report shows."""

    title: str
    predictions: Sequence[Prediction]
    calibration_scores: NDArray[np.float64]  # (n,) of held-out normal images
    threshold: float  # scores above it are flagged
    false_alarm_rate: float
    close_ups: Sequence[Explanation]  # of flagged images, highest scores first
    settings: Mapping[str, str]
    created: str  # ISO 8601
    folder: FolderTest | None = None  # the decision about all images together
    detection_rates: Sequence[DetectionRate] = ()
    cautions: Sequence[str] = ()  # about the normal images

    @cached_property
    def scored(self) -> list[Prediction]:
        """The images with a score, highest first."""
        scored = [(each.score, each) for each in self.predictions if each.score is not None]
        return [each for _, each in sorted(scored, key=lambda pair: -pair[0])]

    @cached_property
    def scores(self) -> NDArray[np.float64]:
        """The scores, highest first."""
        return np.array([each.score for each in self.scored], np.float64)

    @cached_property
    def refused(self) -> list[Prediction]:
        return [each for each in self.predictions if each.score is None]

    @cached_property
    def flagged(self) -> int:
        return sum(bool(each.is_ood) for each in self.scored)

    @cached_property
    def significant(self) -> dict[str, int]:
        """The number of flagged images in which each component is significant, by its description."""
        names = dict.fromkeys(component.name for each in self.predictions for component in each.components)
        flagged = [{component.name for component in each.significant} for each in self.scored if each.is_ood]
        return {COMPONENT_WORDS[name]: sum(name in each for each in flagged) for name in names}

    @cached_property
    def reasons(self) -> dict[str, str]:
        """What stands out in each flagged image, by its name: as explained, or else its significant components."""
        flagged = (each for each in self.scored if each.is_ood)
        texts = {each.name: [COMPONENT_WORDS[one.name] for one in each.significant] for each in flagged}
        texts |= {each.prediction.name: [one.text for one in each.findings] for each in self.close_ups}
        return {name: "; ".join(each) for name, each in texts.items()}

    @property
    def can_flag(self) -> bool:
        """Whether there are enough calibration scores to flag anything at this rate."""
        return self.threshold < np.inf

    @property
    def expected_false_alarms(self) -> float:
        """The largest expected number of flagged images if all were normal."""
        return self.false_alarm_rate * len(self.scored) if self.can_flag else 0.0

    @property
    def calibration_images_needed(self) -> int:
        """The fewest calibration scores with which anything can be flagged."""
        return images_needed(self.false_alarm_rate)

    @property
    def smallest_p_value(self) -> float:
        return 1 / (len(self.calibration_scores) + 1)
