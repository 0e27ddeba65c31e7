"""An encoder and a head together: images in, scores out, each from its own image alone."""

from collections.abc import Iterator
from copy import deepcopy

import numpy as np
from numpy.typing import NDArray

from discopatch.encoders import Encoder, Features
from discopatch.heads import Head
from discopatch.images import DEFAULT_WORKERS, NamedImage, Refusal, Workers
from discopatch.results import PredictedImage, Prediction, Predictor


class Scorer(Predictor):
    """Scores without a calibration: predictions have neither a p-value nor a decision.

    The head is put where the encoder is: on a GPU no product then waits for cores that are busy with decoding.
    """

    def __init__(self, encoder: Encoder, head: Head) -> None:
        self.encoder = encoder
        self.head = head if encoder.device.type == "cpu" else deepcopy(head).to(encoder.device)

    def score_features(self, features: Features) -> NDArray[np.float64]:
        """(images,); see `score_one_by_one` for why a batch is not scored at once on a CPU."""
        if self.encoder.device.type == "cuda":
            return self.head.score(features)
        return score_one_by_one(self.head, features)

    def score_images(
        self, images: object, *, workers: Workers = DEFAULT_WORKERS
    ) -> Iterator[tuple[NamedImage, float] | Refusal]:
        """Every image of the source with its score, in order, or its refusal."""
        for batch in self.encoder.batches(images, workers=workers):
            yield from batch.pair(self.score_features(batch.features).tolist() if batch.features else ())

    def predict_images(self, images: object, *, workers: Workers = DEFAULT_WORKERS) -> Iterator[PredictedImage]:
        for item in self.score_images(images, workers=workers):
            if isinstance(item, Refusal):
                yield PredictedImage.refused(item)
            else:
                image, score = item
                yield PredictedImage(Prediction(image.name, score, None, None), image.pixels, None)


def score_one_by_one(head: Head, features: Features) -> NDArray[np.float64]:
    """(images,), image by image: a batch rounds otherwise, and equal images would no longer have equal scores."""
    return np.concatenate([head.score(each) for each in features.one_by_one()])
