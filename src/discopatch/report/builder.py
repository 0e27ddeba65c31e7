"""A report that is collected while images are scored."""

import heapq
from collections.abc import Iterable, Iterator
from itertools import count
from pathlib import Path

from discopatch.gate import FolderTest
from discopatch.images import NamedImage
from discopatch.report.content import ReportContent
from discopatch.report.page import write_report
from discopatch.results import FittedDetector, PredictedImage, Prediction


class ReportBuilder:
    """Keeps every prediction, and the pixels of the `close_ups` images with the highest scores."""

    def __init__(self, close_ups: int) -> None:
        self.close_ups = close_ups
        self.predictions: list[Prediction] = []
        self._highest: list[tuple[float, int, NamedImage]] = []  # a heap, the lowest score first
        self._arrivals = count()

    def collect(self, predicted: Iterable[PredictedImage]) -> Iterator[Prediction]:
        """Yields every prediction and keeps it."""
        for prediction, image, _ in predicted:
            self.predictions.append(prediction)
            if image is not None and prediction.score is not None:
                self._keep(prediction.score, image)
            yield prediction

    def _keep(self, score: float, image: NamedImage) -> None:
        place = (score, -next(self._arrivals))  # of equal scores the first stays
        has_room = len(self._highest) < self.close_ups
        if not has_room and not (self._highest and place > self._highest[0][:2]):
            return
        kept = NamedImage(image.name, image.pixels.copy())  # a copy, since the pixels may be part of a batch
        if has_room:
            heapq.heappush(self._highest, (*place, kept))
        else:
            heapq.heapreplace(self._highest, (*place, kept))

    def content(
        self, detector: FittedDetector, *, title: str, created: str, folder: FolderTest | None = None
    ) -> ReportContent:
        """The content of the page; the images with the highest scores are explained here, highest first."""
        images = [image for _, _, image in sorted(self._highest, key=lambda entry: entry[:2], reverse=True)]
        settings = {name.replace("_", " "): str(value) for name, value in detector.settings().items()}
        return ReportContent(
            title=title,
            predictions=self.predictions,
            calibration_scores=detector.calibration_scores_,
            threshold=detector.threshold_,
            false_alarm_rate=detector.false_alarm_rate_,
            close_ups=[detector.explain(image) for image in images],
            settings={**settings, "false-alarm guarantee": detector.guarantee_.text},
            created=created,
            folder=folder,
        )

    def write(
        self, path: Path, detector: FittedDetector, *, title: str, created: str, folder: FolderTest | None = None
    ) -> None:
        """Writes the report as one HTML file; `folder` is the decision about all images together."""
        write_report(path, self.content(detector, title=title, created=created, folder=folder))
