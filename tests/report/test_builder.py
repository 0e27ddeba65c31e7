"""A report is collected while images are scored."""

import json
from pathlib import Path

import numpy as np
import pytest

from discopatch.images import NamedImage, Refusal, RefusalReason
from discopatch.report import BoxesBuilder, ReportBuilder
from discopatch.results import Explanation, PredictedImage, Prediction

PIXELS, SIZE = np.zeros((8, 8, 3), np.uint8), (16, 40)  # after the transform, and before it
BOX = [5, 3, 24, 7]  # of the region of the map below, in pixels before the transform
REFUSAL = Refusal("broken.png", RefusalReason.EMPTY, "the file has no bytes")
PREDICTED = [
    *(
        PredictedImage(Prediction(f"{n}.png", float(n % 4), 0.5, n % 4 > 0), NamedImage(f"{n}.png", PIXELS, SIZE), None)
        for n in range(6)
    ),
    PredictedImage(Prediction(REFUSAL.name, None, None, None, REFUSAL.error), None, REFUSAL),
]


class StubDetector:
    """Records the names of the explained images."""

    calibration_scores_ = np.linspace(0, 1, 19)
    threshold_, detection_rates_ = 1.0, ()
    false_alarm_rate_ = 0.1
    cautions_ = ("three images are copies",)

    def __init__(self) -> None:
        self.explained: list[str] = []

    class guarantee_:  # noqa: N801 - an attribute of a detector
        text = "about ten per cent"

    def settings(self) -> dict[str, object]:
        return {"false_alarm_rate": 0.1}

    def explain(self, image: NamedImage) -> Explanation:
        self.explained.append(image.name)
        prediction = next(each.prediction for each in PREDICTED if each.prediction.name == image.name)
        return Explanation(prediction, image.pixels, np.pad(np.full((2, 4), 2, np.float32), (1, 2)), (), (), SIZE)


@pytest.mark.parametrize(
    ("close_ups", "explained"),
    [(3, ["3.png", "2.png", "1.png"]), (0, []), (9, ["3.png", "2.png", "1.png", "5.png"])],
)
def test_every_prediction_is_handed_on_and_flagged_images_are_explained(
    close_ups: int, explained: list[str], tmp_path: Path
) -> None:
    builder, detector = ReportBuilder(close_ups), StubDetector()
    assert list(builder.collect(PREDICTED)) == [each.prediction for each in PREDICTED]
    builder.write(tmp_path / "report.html", detector, title="t", created="c")  # type: ignore[arg-type]
    assert detector.explained == explained, "highest first, and of equal scores the first"
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert page.count("data:image/webp") == 2 * len(explained)
    assert "about ten per cent" in page
    assert page.count("three images are copies") == 1


def test_boxes_have_the_layout_of_coco_and_only_flagged_images_are_explained(tmp_path: Path) -> None:
    detector, path = StubDetector(), tmp_path / "new" / "boxes.json"
    builder = BoxesBuilder(detector)  # type: ignore[arg-type]
    assert list(builder.collect(PREDICTED)) == PREDICTED
    assert detector.explained == ["1.png", "2.png", "3.png", "5.png"]
    builder.write(path)
    found = json.loads(path.read_text(encoding="utf-8"))
    assert [each.name for each in path.parent.iterdir()] == ["boxes.json"]
    assert found.keys() == {"images", "annotations", "categories"}
    assert [(each["id"], each["name"]) for each in found["categories"]] == [(1, "anomaly")]
    assert [each["file_name"] for each in found["images"]] == detector.explained
    assert {(each["width"], each["height"]) for each in found["images"]} == {SIZE[::-1]}
    assert [each["id"] for each in found["annotations"]] == [1, 2, 3, 4]
    assert [each["image_id"] for each in found["annotations"]] == [each["id"] for each in found["images"]]
    for each in found["annotations"]:
        assert (each["category_id"], each["iscrowd"], each["score"]) == (1, 0, 2.0)
        left, top, width, height = each["bbox"]
        assert each["bbox"] == BOX, "in pixels of the original image"
        assert width * height >= each["area"] > 0
        (polygon,) = each["segmentation"]
        assert len(polygon) % 2 == 0
        assert len(polygon) >= 6
        assert left <= min(polygon[::2]) < max(polygon[::2]) <= left + width
        assert top <= min(polygon[1::2]) < max(polygon[1::2]) <= top + height
