"""The report on scored images: one self-contained HTML file."""

import heapq
from collections.abc import Iterable, Iterator
from pathlib import Path

from discopatch.gate import FolderTest
from discopatch.images import NamedImage
from discopatch.report.content import ReportContent
from discopatch.report.page import write_report
from discopatch.results import FittedDetector, PredictedImage, Prediction

__all__ = ["ReportBuilder", "ReportContent", "write_report"]


class ReportBuilder:
    """Keeps every prediction, and the pixels of the `close_ups` images with the highest scores."""

    def __init__(self, close_ups: int) -> None:
        self.close_ups = close_ups
        self.predictions: list[Prediction] = []
        self._highest: list[tuple[float, int, NamedImage]] = []  # a heap, the lowest score first

    def collect(self, predicted: Iterable[PredictedImage]) -> Iterator[Prediction]:
        """Yields every prediction and keeps it."""
        for prediction, image, _ in predicted:
            self.predictions.append(prediction)
            if image is not None and prediction.score is not None:
                self._keep(prediction.score, image)
            yield prediction

    def _keep(self, score: float, image: NamedImage) -> None:
        place = score, -len(self.predictions)  # of equal scores the first stays
        if len(self._highest) == self.close_ups and not (self._highest and place > self._highest[0][:2]):
            return  # the pixels of a GPU are not fetched
        kept = NamedImage(image.name, image.pixels.copy())  # a copy, since the pixels may be part of a batch
        heapq.heappush(self._highest, (*place, kept))
        if len(self._highest) > self.close_ups:
            heapq.heappop(self._highest)

    def write(
        self, path: Path, detector: FittedDetector, *, title: str, created: str, folder: FolderTest | None = None
    ) -> None:
        """Explains the images with the highest scores, and writes the report as one HTML file.

        `folder` is the decision about all images together.
        """
        settings = {name.replace("_", " "): str(value) for name, value in detector.settings().items()}
        content = ReportContent(
            title=title,
            predictions=self.predictions,
            calibration_scores=detector.calibration_scores_,
            threshold=detector.threshold_,
            false_alarm_rate=detector.false_alarm_rate_,
            close_ups=[detector.explain(image) for _, _, image in sorted(self._highest, reverse=True)],
            settings={**settings, "false-alarm guarantee": detector.guarantee_.text},
            created=created,
            folder=folder,
        )
        write_report(path, content)
