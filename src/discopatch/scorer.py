"""An encoder and a head together: images in, scores out, each from its own image alone."""

from collections.abc import Iterable, Iterator
from copy import deepcopy
from functools import partial
from itertools import repeat
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from discopatch.encoders import Encoder, FeatureBatch, Features
from discopatch.encoders.cores import map_on_cores
from discopatch.heads import Head
from discopatch.images import DEFAULT_WORKERS, NamedImage, Refusal, Workers
from discopatch.results import ComponentScore, Decide, PredictedImage, Prediction, Predictor, component_scores


def uncalibrated(name: str, score: float, components: tuple[ComponentScore, ...] = ()) -> Prediction:
    """A prediction with neither a p-value nor a decision."""
    return Prediction(name, score, None, None, components=components)


class Scorer(Predictor):
    """Scores images; `decide` makes predictions of names, scores and components, without a calibration unless given.

    The head is put where the encoder is: on a GPU no product then waits for cores that are busy with decoding.
    """

    def __init__(self, encoder: Encoder, head: Head, decide: Decide = uncalibrated) -> None:
        self.encoder, self._decide = encoder, decide
        self.head = head if encoder.device.type == "cpu" else deepcopy(head).to(encoder.device)

    @property
    def component_names(self) -> tuple[str, ...]:
        return self.head.component_names

    def score_features(self, features: Features) -> NDArray[np.float64]:
        """(images,)"""
        return np.array([heard.score for heard in self.hear_features(features)], np.float64)

    def hear_features(self, features: Features) -> "list[Heard]":
        """What the head makes of each image; see `hear_one_by_one` for why a batch is not scored at once on a CPU."""
        if self.encoder.device.type == "cuda":
            return hear(self.head, features)
        return hear_one_by_one(self.head, features)

    def predict_images(self, images: object, *, workers: Workers = DEFAULT_WORKERS) -> Iterator[PredictedImage]:
        for batch in self.encoder.batches(images, workers=workers):
            yield from self._predict(batch)

    def predict_batches(
        self, sources: Iterable[object], *, workers: Workers = DEFAULT_WORKERS
    ) -> "Iterator[PredictedBatch]":
        """One source after another, in batches that end where a source does, with their features."""
        for batch in self.encoder.batches_of(sources, workers=workers):
            images = list(self._predict(batch))
            scored = np.array(
                [
                    each.refusal is None
                    for each, item in zip(images, batch.items, strict=True)
                    if isinstance(item, NamedImage)
                ],
                bool,
            )
            features = batch.features
            if features is not None and not scored.all():
                features = features.select(scored)
            yield PredictedBatch(images, features, batch.ends)

    def _predict(self, batch: FeatureBatch) -> Iterator[PredictedImage]:
        for item in batch.pair(self.hear_features(batch.features) if batch.features else ()):
            if isinstance(item, Refusal):
                yield PredictedImage.refused(item)
            else:
                image, heard = item
                yield PredictedImage.scored(image, heard.score, self._decide, heard.components)


class PredictedBatch(NamedTuple):
    """Predictions of images that passed together, and the features of those that have a score, in order."""

    images: list[PredictedImage]
    features: Features | None
    ends: bool  # whether their source has no more


class Heard(NamedTuple):
    """What a head makes of one image."""

    score: float
    components: tuple[ComponentScore, ...]
    place_map: NDArray[np.float64] | None  # (side, side), of a head to which places count


def hear(head: Head, features: Features) -> list[Heard]:
    """Of each image its score, and the components and the map of places of a head that tells of them."""
    scores, z, places = head.outputs(features)
    names, level = head.component_names, head.significance_level
    return [
        Heard(score, component_scores(names, row, level), place_map)
        for score, row, place_map in zip(
            scores.tolist(), z.tolist(), repeat(None, len(scores)) if places is None else places, strict=True
        )
    ]


def hear_one_by_one(head: Head, features: Features) -> list[Heard]:
    """Image by image: a batch rounds otherwise, and equal images would no longer have equal scores."""
    return [heard for (heard,) in map_on_cores(partial(hear, head), features.one_by_one())]


def score_one_by_one(head: Head, features: Features) -> NDArray[np.float64]:
    """(images,), as `hear_one_by_one` has them."""
    return np.array([heard.score for heard in hear_one_by_one(head, features)], np.float64)
