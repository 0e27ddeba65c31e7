"""What a person is told about many images, gathered while they pass."""

import heapq
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

from discopatch.decision import Judgement, Prediction
from discopatch.images import Picture, RefusalReport
from discopatch.report.content import ReportContent
from discopatch.report.page import write_report

if TYPE_CHECKING:  # an exported detector is reported about where there is no torch
    from discopatch.detector import Detector


@dataclass
class Findings:
    """For a report all predictions, and the pixels of the few strangest images; otherwise no more than counts."""

    close_ups: int
    for_report: bool = True
    flagged: int = 0
    predictions: list[Prediction] = field(default_factory=list)
    refusals: RefusalReport = field(default_factory=RefusalReport)
    _strangest: list[tuple[float, int, Picture]] = field(default_factory=list)
    _arrivals: Iterator[int] = field(default_factory=count)

    def gather(self, judgements: Iterable[Judgement]) -> Iterator[Prediction]:
        """Hands every prediction on as it comes."""
        for prediction, pixels, refusal in judgements:
            self.flagged += bool(prediction.is_ood)
            if self.for_report:
                self.predictions.append(prediction)
            if refusal is not None:
                self.refusals.add(refusal)
            elif pixels is not None and prediction.score is not None:
                self.refusals.accepted += 1
                if self.for_report:
                    self._keep(prediction.score, Picture(prediction.name, pixels))
            yield prediction

    def _keep(self, score: float, picture: Picture) -> None:
        place = (score, -next(self._arrivals), picture)  # of equal scores the first stays
        if len(self._strangest) < self.close_ups:
            heapq.heappush(self._strangest, place)
        elif self._strangest and place[:2] > self._strangest[0][:2]:
            heapq.heapreplace(self._strangest, place)

    def content(self, detector: "Detector", *, title: str, created: str) -> ReportContent:
        """The page's content; only now the strangest images are looked at closely."""
        pictures = [picture for _, _, picture in sorted(self._strangest, key=lambda each: each[:2], reverse=True)]
        settings = {name.replace("_", " "): str(value) for name, value in detector.settings().items()}
        return ReportContent(
            title=title,
            predictions=self.predictions,
            calibration_scores=detector.fitted.calibration,
            threshold=detector.threshold,
            false_alarm_rate=detector.false_alarm_rate,
            close_ups=[detector.explain(picture) for picture in pictures],
            settings={**settings, "trust": detector.trust.words},
            created=created,
        )

    def write(self, path: Path, detector: "Detector", *, title: str, created: str) -> None:
        """One HTML file."""
        write_report(path, self.content(detector, title=title, created=created))
