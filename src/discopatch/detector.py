"""Detector: normal images in, decisions about new ones out."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

import discopatch
from discopatch.decision import Explanation, Judgement, Judging, Prediction, Trust, p_values, threshold
from discopatch.decision.conformal import check_rate
from discopatch.decision.explanation import in_words
from discopatch.fitting import (
    FEWEST,
    FEWEST_TO_FIT,
    Fitted,
    Progress,
    Seen,
    adapted,
    check_calibration,
    check_enough,
    split,
)
from discopatch.images import Picture, PixelCache, Refusal, RefusalReport, open_cache, single
from discopatch.images.transform import check_same
from discopatch.images.workers import DEFAULT_WORKERS, Workers
from discopatch.model.weights import Weights
from discopatch.parameters import PARAMETERS, Parameters
from discopatch.scoring import Scorer, find_head
from discopatch.scoring.precision import check_precision
from discopatch.scoring.regions import heatmap, look_at_regions
from discopatch.scoring.scorer import chosen
from discopatch.storage import STORED, read_detector, write_detector
from discopatch.weights import DEFAULT, released

FITTED_ON_A_GPU = "load {path} where there is a GPU, or fit again with precision='float32'"


class NotFitted(RuntimeError):  # noqa: N818 - it says what is the matter
    """A detector was asked about images before it had seen normal ones."""


class Detector(Judging, Parameters):
    """Tells whether an image is like the normal ones that it was fitted on; what one may choose: see `Parameters`."""

    _fitted: Fitted | None = None
    _scorer: Scorer | None = None
    _adapted: Weights | None = None

    @classmethod
    def pretrained(cls, name: str = DEFAULT, **parameters: Any) -> Self:
        """With released weights, which lie inside the package; only `fit` is left to do."""
        released(name)
        return cls(name, **parameters)

    def fit(
        self,
        source: object,
        *,
        calibration: object | None = None,
        adapt_steps: int = 0,
        workers: Workers = DEFAULT_WORKERS,
        progress: Progress | None = None,
    ) -> Self:
        """Learns from normal images alone; nothing is trained unless `adapt_steps` says so.

        Up to a third of the images is held out to calibrate the promise, unless `calibration` brings others for that.
        With `adapt_steps` the discriminator is first trained on for so many steps, on the images that are not held
        out: minutes on a GPU, hours without. `progress` is called after every image.
        """
        check_rate(self.false_alarm_rate)
        find_head(self.head)
        check_precision(self.precision, chosen(self.device))
        self._forget()
        if not adapt_steps:
            return self._fit(source, calibration, RefusalReport(), workers, progress, fewest=FEWEST)
        with TemporaryDirectory(prefix="discopatch-") as folder:
            pictures = self._decoded(source, Path(folder), workers)
            fitting, held_out = self._split_to_adapt(len(pictures.names), calibration)
            self._adapted = adapted(
                self.loaded_weights, pictures.pixels[fitting], steps=adapt_steps, seed=self.seed, device=self.device
            )
            others = list(pictures.pixels[held_out]) if calibration is None else calibration
            refusals = replace(pictures.report, accepted=0)
            return self._fit(list(pictures.pixels[fitting]), others, refusals, workers, progress, fewest=FEWEST_TO_FIT)

    def _decoded(self, source: object, folder: Path, workers: Workers) -> PixelCache:
        transform = self.loaded_weights.transform
        if not isinstance(source, PixelCache):
            return open_cache(source, transform, folder, workers=workers)
        check_same(transform, source.transform)
        return source

    def _split_to_adapt(self, images: int, calibration: object | None) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        if calibration is None:
            return split(images, self.false_alarm_rate, seed=self.seed)
        check_enough(images, FEWEST)
        return np.arange(images), np.arange(0)

    def _fit(
        self,
        source: object,
        calibration: object | None,
        refusals: RefusalReport,
        workers: Workers,
        progress: Progress | None,
        *,
        fewest: int,
    ) -> Self:
        looks = self.scorer.inspect(self._pictures(source), workers=workers)
        seen = Seen.gather(looks, refusals, progress, seed=self.seed)
        check_enough(len(seen.evidence.logits), fewest)
        if calibration is None:
            normal, held_out = seen.split(self.false_alarm_rate, seed=self.seed)
        else:
            looks = self.scorer.inspect(self._pictures(calibration), workers=workers)
            brought = Seen.gather(looks, refusals, progress, seed=self.seed)
            normal, held_out = seen, brought.evidence
            check_calibration(len(held_out.logits), self.false_alarm_rate)
        self._fitted = Fitted.learn(self.scorer, self.head, normal, held_out, refusals, seed=self.seed)
        return self

    def judge(self, source: object, *, workers: Workers = DEFAULT_WORKERS) -> Iterator[Judgement]:
        """Predictions with what they are about, for those who want to show it."""
        fitted = self.fitted
        for batch in self.scorer.batches(self._pictures(source), workers=workers):
            for item in batch.each(self.scorer.scores(fitted.head, batch.evidence)):
                if isinstance(item, Refusal):
                    yield Judgement.refused(item)
                else:
                    picture, score = item
                    yield Judgement(self._decide(picture.name, score), picture.pixels, None)

    def explain(self, image: object) -> Explanation:
        """Where one image differs from normal ones, and in which words."""
        fitted = self.fitted
        item = single(self.scorer.inspect(self._pictures(image), workers=1))
        regions = look_at_regions(self.scorer, item.pixels)
        heat = heatmap(self.scorer, fitted.regions.heat(regions))
        known = dict(zip(fitted.head.names, fitted.head.changes(item.evidence)[0].tolist(), strict=True))
        reasons = in_words(known, fitted.regions.surprises(regions))
        (score,) = self.scorer.scores(fitted.head, item.evidence)
        return Explanation(self._decide(item.name, score), item.pixels, heat, reasons)

    @property
    def fitted(self) -> Fitted:
        """What was learnt, or an error that says how to learn it."""
        if self._fitted is None:
            raise NotFitted("this detector has seen no normal images yet: call fit, or Detector.load a fitted one")
        return self._fitted

    @property
    def threshold(self) -> float:
        """Scores above it are flagged."""
        return threshold(self.fitted.calibration, self.false_alarm_rate)

    @property
    def trust(self) -> Trust:
        """How far the promise can be trusted with so many images."""
        return Trust(self.fitted.images, len(self.fitted.calibration), self.false_alarm_rate)

    @property
    def loaded_weights(self) -> Weights:
        """The weights themselves: adapted ones, your own, or the released ones of that name."""
        if self._adapted is not None:
            return self._adapted
        return released(self.weights) if isinstance(self.weights, str) else self.weights

    @property
    def scorer(self) -> Scorer:
        """The discriminator, where it looks, and on which device; made when it is first needed."""
        if self._scorer is None or self._scorer.weights is not self.loaded_weights:
            self._scorer = Scorer(
                self.loaded_weights,
                patches=self.patches,
                sampling=self.sampling,
                seed=self.seed,
                device=self.device,
                batch_size=self.batch_size,
                precision=self.precision,
            )
        return self._scorer

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The arguments of the constructor, as scikit-learn wants them."""
        return {name: getattr(self, name) for name in PARAMETERS}

    def set_params(self, **parameters: Any) -> Self:
        """Changes arguments of the constructor; what was learnt with the old ones is forgotten."""
        for name in parameters.keys() - set(PARAMETERS):
            raise ValueError(f"a detector has no parameter {name!r}: choose among {', '.join(PARAMETERS)}")
        for name, value in parameters.items():
            setattr(self, name, value)
        self._forget()
        return self

    def settings(self) -> dict[str, Any]:
        """All that a result depends on, by name and digest."""
        weights = self.loaded_weights
        released_by_name = isinstance(self.weights, str) and self._adapted is None
        return {
            "discopatch": discopatch.__version__,
            "weights": self.weights if released_by_name else "custom",
            "weights_digest": weights.digest,
            "transform": weights.transform.to_dict(),
            "transform_digest": weights.transform.digest,
            **{name: getattr(self, name) for name in STORED},
            "images": self.fitted.images,
        }

    def save(self, path: Path | str) -> None:
        """Writes one safetensors file, atomically; weights that are not released go into it too."""
        write_detector(Path(path), self.fitted, self.loaded_weights, self.settings())

    @classmethod
    def load(cls, path: Path | str, *, device: str = "auto", batch_size: int = 8) -> Self:
        """Reads what `save` wrote; it scores as before, to the bit on one machine, or is refused with the remedy."""
        weights, parameters, fitted = read_detector(Path(path))
        check_precision(parameters["precision"], chosen(device), remedy=FITTED_ON_A_GPU.format(path=path))
        detector = cls(weights, **parameters, device=device, batch_size=batch_size)
        detector._fitted = fitted
        return detector

    def _forget(self) -> None:
        self._fitted = self._scorer = self._adapted = None

    def _decide(self, name: str, score: np.float64) -> Prediction:
        (p_value,) = p_values([score], self.fitted.calibration)
        return Prediction(name, float(score), float(p_value), bool(score > self.threshold))

    def _pictures(self, source: object) -> object:
        """A cache becomes its pictures, if they came through the right transform; any other source stays."""
        if not isinstance(source, PixelCache):
            return source
        check_same(self.loaded_weights.transform, source.transform)
        return (Picture(name, pixels) for name, pixels in zip(source.names, source.pixels, strict=True))
