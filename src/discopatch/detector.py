"""Detector: normal images in, decisions about new ones out."""

from collections.abc import Iterator
from dataclasses import replace
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

import discopatch
from discopatch.calibration import (
    Groups,
    Guarantee,
    check_calibration,
    check_enough,
    check_rate,
    p_values,
    split_images,
    threshold,
)
from discopatch.encoders import DiscriminatorEncoder, Features, Patches, Precision, check_precision, resolve_device
from discopatch.errors import FrozenError, ImageError, NoImagesError, NotFittedError, ParameterError
from discopatch.fitting import (
    MIN_FIT_IMAGES,
    MIN_IMAGES,
    FittedState,
    Progress,
    adapt,
    as_features,
    fit_images,
    make_encoder,
    with_transform,
)
from discopatch.heads import PROBES, Head, RegionModel, get_head
from discopatch.heads.probes import notable_probes
from discopatch.heads.regions import GRID
from discopatch.images import DEFAULT_WORKERS, Refusal, RefusalReport, Workers, single
from discopatch.model import Weights
from discopatch.model.patches import Sampling
from discopatch.pretrained import DEFAULT_WEIGHTS, load_pretrained
from discopatch.results import Explanation, PredictedImage, Prediction, Predictions, Predictor, Reason
from discopatch.scorer import Scorer, score_one_by_one
from discopatch.storage import CUSTOM, PARAMETERS, read_detector, write_detector

if TYPE_CHECKING:
    from discopatch.export import Exported

FITTED_ON_A_GPU = "load {path} where there is a GPU, or fit again with precision='float32'"
FROZEN = ("weights", *PARAMETERS)


class DetectorParameters:
    """What one may choose about a detector; kept as given and checked by `fit`.

    weights: the name of released weights, or weights of your own.
    head: what makes the score, one of `discopatch.heads.HEADS`.
    false_alarm_rate: the share of normal images that may be flagged.
    patches: `dense` for one pass over the whole image, or a number of patches.
    sampling: where patches are cut: `random` places, the same in all images, or a `grid`.
    seed: seed of all random choices, such as which images are held out.
    device: `auto` takes a GPU where there is one.
    batch_size: images that pass the network together.
    precision: `bfloat16` is faster, on a GPU alone; a detector keeps the one that it was fitted in.
    """

    def __init__(
        self,
        weights: str | Weights = DEFAULT_WEIGHTS,
        *,
        head: str = "combined",
        false_alarm_rate: float = 0.01,
        patches: Patches = "dense",
        sampling: Sampling = "random",
        seed: int = 0,
        device: str = "auto",
        batch_size: int = 8,
        precision: Precision = "float32",
    ) -> None:
        self.weights, self.head, self.false_alarm_rate = weights, head, false_alarm_rate
        self.patches, self.sampling, self.seed = patches, sampling, seed
        self.device, self.batch_size, self.precision = device, batch_size, precision

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The arguments of the constructor."""
        return {name: getattr(self, name) for name in signature(DetectorParameters).parameters}


class Detector(Predictor, DetectorParameters):
    """Tells whether an image is like the normal ones that it was fitted on; parameters: see `DetectorParameters`.

    A fitted detector is frozen: its parameters can no longer be set, but for `device` and `batch_size`. What was
    learnt is in attributes that end in an underscore.
    """

    _state: FittedState | None = None
    _scorer: Scorer | None = None

    def __setattr__(self, name: str, value: Any) -> None:
        if name in FROZEN and self._state is not None:
            remedy = "detector.at(false_alarm_rate=...) gives another operating point" * (name == "false_alarm_rate")
            raise FrozenError(
                f"this detector was fitted with {name}={getattr(self, name)!r}, which can no longer change: "
                + (remedy or f"make a new one, Detector(..., {name}=...), and fit it")
            )
        object.__setattr__(self, name, value)

    @classmethod
    def pretrained(cls, name: str = DEFAULT_WEIGHTS, **parameters: Any) -> Self:
        """A detector with released weights, which are inside the package; only `fit` is left to do."""
        load_pretrained(name)
        return cls(name, **parameters)

    def fit(
        self,
        images: object,
        *,
        groups: Groups | None = None,
        calibration: object | None = None,
        adapt_steps: int = 0,
        workers: Workers = DEFAULT_WORKERS,
        progress: Progress | None = None,
    ) -> Self:
        """Learns from normal images alone; nothing is trained unless `adapt_steps` says so.

        Up to a third of the images is held out to calibrate the false-alarm rate, unless `calibration` brings others
        for that. `groups` gives one id for each image of the source, such as its scene: similar images that belong
        together are then on one side of the split, and the false-alarm rate holds for images of new groups.
        With `adapt_steps` the discriminator is first trained on for so many steps, on the images that are not held
        out: minutes on a GPU, hours without. `progress` is called with (done, total) after every image; the total is
        None where the source does not tell it. A fit that fails leaves the detector as it was.
        """
        check_rate(self.false_alarm_rate)
        get_head(self.head)
        check_precision(self.precision, resolve_device(self.device))
        if groups is not None and (calibration is not None or adapt_steps):
            raise ParameterError("groups decide what is held out: leave out calibration and adapt_steps")
        weights, name = self._requested_weights()
        refusals, min_images = RefusalReport(), MIN_IMAGES
        if adapt_steps:
            weights, images, calibration, refusals = adapt(
                weights,
                images,
                calibration=calibration,
                steps=adapt_steps,
                rate=self.false_alarm_rate,
                seed=self.seed,
                device=self.device,
                workers=workers,
            )
            name, min_images = None, MIN_FIT_IMAGES
        parameters = self._parameters()
        head, regions, scores, n_fit = fit_images(
            make_encoder(weights, parameters, device=self.device, batch_size=self.batch_size),
            images,
            head=self.head,
            rate=self.false_alarm_rate,
            seed=self.seed,
            groups=groups,
            calibration=calibration,
            min_images=min_images,
            refusals=refusals,
            workers=workers,
            progress=progress,
        )
        return self._accept(FittedState(parameters, weights, name, head, regions, scores, n_fit, refusals))

    def fit_features(
        self, features: Features | NDArray[np.floating], *, calibration: Features | NDArray[np.floating] | None = None
    ) -> Self:
        """Learns from features of normal images: those of `extract_features`, or an array (images, dimensions).

        Probes need images, so the combined head has no probes then, and a detector that was fitted so cannot explain.
        """
        check_rate(self.false_alarm_rate)
        head = get_head(self.head)
        normal = as_features(features, head)
        check_enough(len(normal.logits), MIN_IMAGES)
        if calibration is None:
            count, rate = len(normal.logits), self.false_alarm_rate
            fit, others = split_images(count, rate, seed=self.seed, min_fit=MIN_FIT_IMAGES)
            normal, held_out = normal.select(fit), normal.select(others)
        else:
            held_out = as_features(calibration, head)
        check_calibration(len(held_out.logits), self.false_alarm_rate)
        head = head.fit(normal)
        scores = np.sort(score_one_by_one(head, held_out))
        weights, name = self._requested_weights()
        return self._accept(FittedState(self._parameters(), weights, name, head, None, scores, len(normal.logits)))

    def _parameters(self) -> dict[str, Any]:
        """Those that a fit depends on."""
        return {name: getattr(self, name) for name in PARAMETERS}

    def _requested_weights(self) -> tuple[Weights, str | None]:
        if isinstance(self.weights, str):
            return load_pretrained(self.weights), self.weights
        return self.weights, None

    def _accept(self, state: FittedState) -> Self:
        self._scorer, self._state = None, state
        return self

    def extract_features(self, images: object, *, workers: Workers = DEFAULT_WORKERS) -> Features:
        """The features of all images, also before a fit; an image that cannot be read is an error."""
        if self._state is None:
            weights, _ = self._requested_weights()
            encoder = make_encoder(weights, self.get_params(), device=self.device, batch_size=self.batch_size)
        else:
            encoder = self.encoder_
        found = []
        for item in encoder.extract(with_transform(images, encoder), workers=workers):
            if isinstance(item, Refusal):
                raise ImageError(item.reason, f"{item.name}: {item.error}")
            found.append(item.features)
        if not found:
            raise NoImagesError("nothing to extract features of: give at least one image")
        return Features.concatenate(found)

    def predict_features(self, features: Features | NDArray[np.floating]) -> Predictions:
        """A prediction for every row of features, in order; names are row numbers."""
        given = as_features(features, self.head_)
        scores = score_one_by_one(self.head_, given)
        return Predictions(self._decide(str(row), score) for row, score in enumerate(scores.tolist()))

    def predict_images(self, images: object, *, workers: Workers = DEFAULT_WORKERS) -> Iterator[PredictedImage]:
        scorer = self.scorer_
        return scorer.predict_images(with_transform(images, scorer.encoder), workers=workers)

    def explain(self, image: object) -> Explanation:
        """Where one image differs from normal ones, and in which way."""
        encoder, region_model = self.encoder_, self.regions_
        item = single(encoder.extract(with_transform(image, encoder), workers=1))
        regions = encoder.extract_regions(item.pixels, GRID**2)
        anomaly_map = region_model.anomaly_map(regions, size=encoder.transform.size, patch_size=encoder.patch_size)
        z = dict(zip(self.head_.probes, self.head_.probe_scores(item.features)[0].tolist(), strict=True))
        notable = notable_probes(z, region_model.probe_z(regions))
        reasons = tuple(Reason(name, value, PROBES[name].text) for name, value in notable.items())
        (score,) = self.scorer_.score_features(item.features).tolist()
        return Explanation(self._decide(item.name, score), item.pixels, anomaly_map, reasons)

    def _decide(self, name: str, score: float) -> Prediction:
        (p_value,) = p_values([score], self.calibration_scores_)
        return Prediction(name, score, float(p_value), score > self.threshold_)

    def at(self, *, false_alarm_rate: float) -> Self:
        """The same fitted detector at another false-alarm rate; nothing is fitted again."""
        state = self.state_
        check_calibration(len(state.calibration_scores), false_alarm_rate)
        other = type(self)(**{**self.get_params(), "false_alarm_rate": false_alarm_rate})
        return other._accept(replace(state, parameters={**state.parameters, "false_alarm_rate": false_alarm_rate}))

    @property
    def state_(self) -> FittedState:
        """All that the detector is, or NotFittedError."""
        if self._state is None:
            raise NotFittedError("this detector has not been fitted: call fit with normal images, or discopatch.load")
        return self._state

    @property
    def threshold_(self) -> float:
        """Scores above it are flagged."""
        return threshold(self.calibration_scores_, self.state_.parameters["false_alarm_rate"])

    @property
    def calibration_scores_(self) -> NDArray[np.float64]:
        """The ascending scores of the normal images that were held out."""
        return self.state_.calibration_scores

    @property
    def n_fit_(self) -> int:
        """How many images were fitted, those held out not counted."""
        return self.state_.n_fit

    @property
    def refusals_(self) -> RefusalReport:
        """Which of the images given to `fit` could not be read."""
        return self.state_.refusals

    @property
    def guarantee_(self) -> Guarantee:
        """The false-alarm rate, and how many images it rests on."""
        state = self.state_
        return Guarantee(state.n_fit, len(state.calibration_scores), state.parameters["false_alarm_rate"])

    @property
    def head_(self) -> Head:
        return self.state_.head

    @property
    def regions_(self) -> RegionModel:
        if self.state_.regions is None:
            raise NotFittedError("this detector was fitted on features, without images: call fit with normal images")
        return self.state_.regions

    @property
    def weights_(self) -> Weights:
        """The weights themselves, after an adaptation the adapted ones."""
        return self.state_.weights

    @property
    def encoder_(self) -> DiscriminatorEncoder:
        encoder = self.scorer_.encoder
        assert isinstance(encoder, DiscriminatorEncoder)
        return encoder

    @property
    def scorer_(self) -> Scorer:
        """The encoder and the fitted head on the detector's device; made when first needed."""
        state, wanted = self.state_, (resolve_device(self.device), self.batch_size)
        scorer = self._scorer
        if scorer is None or (scorer.encoder.device, scorer.encoder.batch_size) != wanted:
            encoder = make_encoder(state.weights, state.parameters, device=self.device, batch_size=self.batch_size)
            self._scorer = scorer = Scorer(encoder, state.head, self._decide)
        return scorer

    def settings(self) -> dict[str, Any]:
        """All that a result depends on, by name and digest."""
        state = self.state_
        return {
            "discopatch": discopatch.__version__,
            "weights": state.weights_name or CUSTOM,
            "weights_digest": state.weights.digest,
            "transform": state.weights.transform.to_dict(),
            "transform_digest": state.weights.transform.digest,
            **state.parameters,
            "images": state.n_fit,
        }

    def save(self, path: Path | str) -> None:
        """Writes one safetensors file, atomically; weights that are not released go into it too."""
        write_detector(Path(path), self.state_, self.settings())

    @classmethod
    def load(cls, path: Path | str, *, device: str = "auto", batch_size: int = 8) -> Self:
        """The detector that `save` wrote; it scores as before, to the bit on one machine, or is refused."""
        state = read_detector(Path(path))
        remedy = FITTED_ON_A_GPU.format(path=path)
        check_precision(state.parameters["precision"], resolve_device(device), remedy=remedy)
        detector = cls(state.weights_name or state.weights, **state.parameters, device=device, batch_size=batch_size)
        return detector._accept(state)

    def export(self, folder: Path | str, *, format: str = "onnx", int8: bool = False, **options: Any) -> "Exported":
        """Writes a folder for runtimes without torch; see `discopatch.export.export_detector` for the options."""
        from discopatch.export import export_detector

        return export_detector(self, folder, format=format, int8=int8, **options)
