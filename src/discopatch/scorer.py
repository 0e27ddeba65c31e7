"""Scorer: an encoder and a head together. A score depends on its own image alone."""

from collections.abc import Iterable, Iterator
from copy import deepcopy
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from discopatch.calibration import Calibration
from discopatch.encoders import Encoder, FeatureBatch, Features, map_on_cores
from discopatch.heads import Head
from discopatch.images import DEFAULT_WORKERS, Refusal, Workers
from discopatch.results import Aspects, ComponentScore, PredictedBatch, PredictedImage, Predictor, component_scores


class ImageOutput(NamedTuple):
    """The output of a head for one image, in plain Python."""

    score: float
    components: tuple[ComponentScore, ...]
    number: int = 0  # of its class


class Scorer(Predictor):
    """Scores images; without a calibration, predictions have neither a p-value nor a decision.

    The head is moved to the encoder's device.
    """

    def __init__(
        self, encoder: Encoder, head: Head, calibration: Calibration | None = None, aspects: Aspects | None = None
    ) -> None:
        self.encoder, self.calibration, self.aspects = encoder, calibration, aspects
        self.head = head if encoder.device.type == "cpu" else deepcopy(head).to(encoder.device)
        encoder.score_by(self.head.judge, self.head.needs)

    @property
    def component_names(self) -> tuple[str, ...]:
        return self.head.component_names

    def outputs(self, features: Features) -> list[ImageOutput]:
        """The head's output for each image. On a CPU images pass the head one by one.

        Batching changes the last floating-point digits, and equal images would no longer have equal scores.
        """
        if features.scores.size and self.encoder.scored_by == self.head.judge:
            scores, z = features.scores[:, 0], features.scores[:, 1:]
        elif self.encoder.device.type == "cuda":
            scores, z = self.head.outputs(features)
        else:
            found = map_on_cores(self.head.outputs, features.one_by_one())
            scores, z = (np.concatenate(each) for each in zip(*found, strict=True))
        names, level = self.head.component_names, self.head.significance_level
        rows = zip(scores.tolist(), z.tolist(), strict=True)
        last = len(names)
        return [
            ImageOutput(score, component_scores(names, row[:last], level), *map(int, row[last:])) for score, row in rows
        ]

    def score_features(self, features: Features) -> NDArray[np.float64]:
        """The scores (images,)."""
        return np.array([each.score for each in self.outputs(features)], np.float64)

    def predict_batches(
        self, sources: Iterable[object], *, workers: Workers = DEFAULT_WORKERS
    ) -> Iterator[PredictedBatch]:
        for batch in self.encoder.batches(sources, workers=workers):
            yield PredictedBatch(list(self._predict(batch)), batch.ends)

    def _predict(self, batch: FeatureBatch) -> Iterator[PredictedImage]:
        for item in batch.pair(self.outputs(batch.features) if batch.features else ()):
            if isinstance(item, Refusal):
                yield PredictedImage.refused(item)
            else:
                image, (score, components, number) = item
                yield PredictedImage.scored(image, score, self.calibration, components, self.aspects, number)
