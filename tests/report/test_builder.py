"""A report is collected while images are scored."""

import numpy as np
import pytest

from discopatch.images import NamedImage, Refusal, RefusalReason
from discopatch.report import ReportBuilder
from discopatch.results import Explanation, PredictedImage, Prediction

PIXELS = np.zeros((8, 8, 3), np.uint8)
REFUSAL = Refusal("broken.png", RefusalReason.EMPTY, "the file has no bytes")
PREDICTED = [
    *(
        PredictedImage(Prediction(f"{n}.png", float(n % 4), 0.5, n > 2), NamedImage(f"{n}.png", PIXELS), None)
        for n in range(6)
    ),
    PredictedImage(Prediction(REFUSAL.name, None, None, None, REFUSAL.error), None, REFUSAL),
]


class StubDetector:
    """Explains nothing, but remembers which images it is asked about."""

    calibration_scores_ = np.linspace(0, 1, 19)
    threshold_ = 1.0
    false_alarm_rate_ = 0.1

    def __init__(self) -> None:
        self.explained: list[str] = []

    class guarantee_:  # noqa: N801 - an attribute of a detector
        text = "about ten per cent"

    def settings(self) -> dict[str, object]:
        return {"false_alarm_rate": 0.1}

    def explain(self, image: NamedImage) -> Explanation:
        self.explained.append(image.name)
        prediction = next(each.prediction for each in PREDICTED if each.prediction.name == image.name)
        return Explanation(prediction, image.pixels, np.zeros((4, 4), np.float32), ())


@pytest.mark.parametrize(
    ("close_ups", "explained"),
    [(3, ["3.png", "2.png", "1.png"]), (0, []), (9, ["3.png", "2.png", "1.png", "5.png", "0.png", "4.png"])],
)
def test_every_prediction_is_handed_on_and_the_highest_scores_are_explained(
    close_ups: int, explained: list[str]
) -> None:
    builder, detector = ReportBuilder(close_ups), StubDetector()
    assert list(builder.collect(PREDICTED)) == [each.prediction for each in PREDICTED]
    content = builder.content(detector, title="t", created="c")  # type: ignore[arg-type]
    assert detector.explained == explained, "highest first, and of equal scores the first"
    assert [each.prediction.name for each in content.close_ups] == explained
    assert (len(content.scored), content.flagged, len(content.refused)) == (6, 3, 1)
    assert content.settings == {"false alarm rate": "0.1", "false-alarm guarantee": "about ten per cent"}
