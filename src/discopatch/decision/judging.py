"""The questions that one asks about many images, of a detector as of an export."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from discopatch.decision.prediction import Prediction
from discopatch.images import Pixels, Refusal
from discopatch.images.workers import DEFAULT_WORKERS, Workers


class Judgement(NamedTuple):
    """A prediction, and the image as the model saw it or the reason why it did not."""

    prediction: Prediction
    pixels: Pixels | None
    refusal: Refusal | None

    @classmethod
    def refused(cls, refusal: Refusal) -> Self:
        """Of an image without a score."""
        return cls(Prediction(refusal.name, None, None, None, refusal.error), None, refusal)


class Judging(ABC):
    """Whoever judges images one by one can be asked for all of them."""

    @abstractmethod
    def judge(self, source: object, *, workers: Workers = DEFAULT_WORKERS) -> Iterator[Judgement]:
        """Predictions with what they are about, for those who want to show it."""

    def score(self, source: object, *, workers: Workers = DEFAULT_WORKERS) -> NDArray[np.float64]:
        """(images,), higher for more out-of-distribution; NaN where an image was refused."""
        found = [each.score for each in self.predictions(source, workers=workers)]
        return np.array([np.nan if score is None else score for score in found], np.float64)

    def predict(self, source: object, *, workers: Workers = DEFAULT_WORKERS) -> list[Prediction]:
        """A prediction for every image of the source, in its order; a bad file is one with an error."""
        return list(self.predictions(source, workers=workers))

    def predictions(self, source: object, *, workers: Workers = DEFAULT_WORKERS) -> Iterator[Prediction]:
        """The same one by one, in constant memory."""
        return (prediction for prediction, _, _ in self.judge(source, workers=workers))
