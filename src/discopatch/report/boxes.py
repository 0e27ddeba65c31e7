"""Unusual regions of flagged images as COCO annotations."""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from discopatch.results import Explanation, FittedDetector, PredictedImage
from discopatch.utils import write_atomically

CATEGORY = {"id": 1, "name": "anomaly", "supercategory": "anomaly"}


class BoxesBuilder:
    """Explains flagged images as they are scored, and keeps their regions."""

    def __init__(self, detector: FittedDetector) -> None:
        self.detector = detector
        self.images: list[dict[str, Any]] = []
        self.annotations: list[dict[str, Any]] = []

    def collect(self, predicted: Iterable[PredictedImage]) -> Iterator[PredictedImage]:
        """Yields every prediction; flagged ones are explained."""
        for each in predicted:
            if each.prediction.is_ood and each.image is not None:
                self._add(self.detector.explain(each.image))
            yield each

    def _add(self, explanation: Explanation) -> None:
        (height, width), number = explanation.size, len(self.images) + 1
        name = explanation.prediction.name
        self.images.append({"id": number, "file_name": name, "width": width, "height": height})
        for region in explanation.regions:
            self.annotations.append(
                {
                    "id": len(self.annotations) + 1,
                    "image_id": number,
                    "category_id": CATEGORY["id"],
                    "bbox": region.box,
                    "area": region.area,
                    "segmentation": [[value for point in region.contour for value in point]],
                    "iscrowd": 0,
                    "score": region.peak,
                }
            )

    def write(self, path: Path) -> None:
        """Writes the file atomically: the flagged images, and an annotation for each of their regions."""
        content = {"images": self.images, "annotations": self.annotations, "categories": [CATEGORY]}
        write_atomically(path, lambda partial: partial.write_text(json.dumps(content), encoding="utf-8"))
