"""An encoder and a head together: images in, scores out, each from its own image alone."""

from collections.abc import Callable, Iterator
from copy import deepcopy

import numpy as np
from numpy.typing import NDArray

from discopatch.encoders import Encoder, Features
from discopatch.heads import Head
from discopatch.images import DEFAULT_WORKERS, Refusal, Workers
from discopatch.results import PredictedImage, Prediction, Predictor


def uncalibrated(name: str, score: float) -> Prediction:
    """A prediction with neither a p-value nor a decision."""
    return Prediction(name, score, None, None)


class Scorer(Predictor):
    """Scores images; `decide` makes a prediction of an image's name and score, without a calibration unless given.

    The head is put where the encoder is: on a GPU no product then waits for cores that are busy with decoding.
    """

    def __init__(self, encoder: Encoder, head: Head, decide: Callable[[str, float], Prediction] = uncalibrated) -> None:
        self.encoder, self._decide = encoder, decide
        self.head = head if encoder.device.type == "cpu" else deepcopy(head).to(encoder.device)

    def score_features(self, features: Features) -> NDArray[np.float64]:
        """(images,); see `score_one_by_one` for why a batch is not scored at once on a CPU."""
        if self.encoder.device.type == "cuda":
            return self.head.score(features)
        return score_one_by_one(self.head, features)

    def predict_images(self, images: object, *, workers: Workers = DEFAULT_WORKERS) -> Iterator[PredictedImage]:
        for batch in self.encoder.batches(images, workers=workers):
            for item in batch.pair(self.score_features(batch.features).tolist() if batch.features else ()):
                if isinstance(item, Refusal):
                    yield PredictedImage.refused(item)
                else:
                    yield PredictedImage.scored(*item, self._decide)


def score_one_by_one(head: Head, features: Features) -> NDArray[np.float64]:
    """(images,), image by image: a batch rounds otherwise, and equal images would no longer have equal scores."""
    return np.concatenate([head.score(each) for each in features.one_by_one()])
