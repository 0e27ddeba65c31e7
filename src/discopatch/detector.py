"""Detector: normal images in, decisions about new ones out."""

import os
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

import discopatch
from discopatch.calibration import Guarantee, Rate, check_calibration, check_rate, p_value_among
from discopatch.decoders import (
    DecoderParity,
    check_allowed,
    check_available,
    check_decoders,
    measure_decoder,
    readable_twice,
)
from discopatch.encoders import (
    AnyWeights,
    ChosenNetworks,
    Encoder,
    Extracted,
    Features,
    Kind,
    OutsideNetwork,
    Patches,
    Precision,
    check_precision,
    load_networks,
    make_encoders,
    resolve_device,
)
from discopatch.errors import (
    FrozenError,
    ImageError,
    NoImagesError,
    NormalImagesWarning,
    NotFittedError,
    ParameterError,
)
from discopatch.explain import ReasonModel, RegionModel
from discopatch.explain.anomaly_map import GRID, heat_of_places
from discopatch.fitting import (
    MIN_FIT_IMAGES,
    MIN_IMAGES,
    FittedState,
    adapt,
    as_features,
    fit_features,
    fit_images,
    with_transform,
)
from discopatch.groups import Groups, check_groups, is_auto, is_given
from discopatch.heads import DEFAULT_HEAD, PROBES, Head, LogitHead, get_head
from discopatch.images import (
    DEFAULT_LIMITS,
    DEFAULT_WORKERS,
    Decoder,
    Limits,
    Refusal,
    RefusalReport,
    Transform,
    Workers,
    check_single,
    read_images,
    single,
)
from discopatch.model import Weights
from discopatch.model.patches import Sampling
from discopatch.normal_images import Progress
from discopatch.pretrained import DEFAULT_WEIGHTS, load_pretrained
from discopatch.results import (
    ComponentScore,
    Explanation,
    PredictedImage,
    Prediction,
    Predictions,
    Predictor,
    Reason,
    check_finite,
    explain_components,
)
from discopatch.scorer import Scorer, hear_one_by_one
from discopatch.storage import CUSTOM, PARAMETERS, read_detector, write_detector
from discopatch.streamed_fitting import AnyFeatures, FeatureStream, fit_stream

if TYPE_CHECKING:
    from discopatch.batch import BatchScorer
    from discopatch.export import Exported

FITTED_ON_FEATURES = "this detector was fitted on features, without images: call fit with normal images"
FITTED_ON_A_GPU = "load {path} where there is a GPU, or fit again with precision='float32'"
FROZEN = ("weights", *PARAMETERS)


class DetectorParameters:
    """What one may choose about a detector; kept as given and checked by `fit`.

    weights: the name of released weights, or weights of your own, as such or as their .safetensors file; of a network
        from outside KIND=PLACE, such as dinov2=FOLDER or onnx=FILE:OUTPUT,OUTPUT, resnet50 or efficientnet-lite0; or a
        list of several of these.
    head: what makes the score, one of `discopatch.heads.HEADS`.
    false_alarm_rate: the share of normal images that may be flagged; `auto` takes the smallest of 1, 2, 5 and 10 %
        for which at most half of the images are held out.
    patches: `dense` for one pass over the whole image, or a number of patches.
    sampling: where patches are cut: `random` places, the same in all images, or a `grid`.
    seed: seed of all random choices, such as which images are held out.
    device: `auto` takes a GPU where there is one.
    batch_size: images that pass the network together.
    precision: `bfloat16` is faster, on a GPU alone; a detector keeps the one that it was fitted in.
    decoder: what reads image files: `pillow`; `scaled`, with less work for large JPEG files; `nvimgcodec`, on a GPU. A
        detector reads by the one that it was fitted with, or by another that was compared with it then.
    max_pixels, max_bytes: images with more pixels and encoded images of more bytes are refused unread.
    """

    def __init__(
        self,
        weights: AnyWeights | Sequence[AnyWeights] = DEFAULT_WEIGHTS,
        *,
        head: str = DEFAULT_HEAD,
        false_alarm_rate: Rate = "auto",
        patches: Patches = "dense",
        sampling: Sampling = "random",
        seed: int = 0,
        device: str = "auto",
        batch_size: int = 8,
        precision: Precision = "float32",
        decoder: Decoder = "pillow",
        max_pixels: int = DEFAULT_LIMITS.max_pixels,
        max_bytes: int = DEFAULT_LIMITS.max_bytes,
    ) -> None:
        self.weights, self.head, self.false_alarm_rate = weights, head, false_alarm_rate
        self.patches, self.sampling, self.seed = patches, sampling, seed
        self.device, self.batch_size, self.precision = device, batch_size, precision
        self.decoder, self.max_pixels, self.max_bytes = decoder, max_pixels, max_bytes

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The arguments of the constructor."""
        return {name: getattr(self, name) for name in signature(DetectorParameters).parameters}


class Detector(Predictor, DetectorParameters):
    """Tells whether an image is like the normal ones that it was fitted on; parameters: see `DetectorParameters`.

    A fitted detector is frozen: its parameters can no longer be set, but for `device`, `batch_size`,
    `max_pixels` and `max_bytes`, and for a `decoder` that passed its comparison at fit. What was learnt is in
    attributes that end in an underscore.
    """

    _state: FittedState | None = None
    _scorer: Scorer | None = None

    def __setattr__(self, name: str, value: Any) -> None:
        if name in FROZEN and self._state is not None:
            remedy = "detector.with_rate(...) gives another operating point" * (name == "false_alarm_rate")
            raise FrozenError(
                f"this detector was fitted with {name}={getattr(self, name)!r}, which can no longer change: "
                + (remedy or f"make a new one, Detector(..., {name}=...), and fit it")
            )
        if name == "decoder" and self._state is not None:
            check_allowed(self._state.decoder, value, self._state.decoders)
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
        also_decoders: Sequence[Decoder] = (),
        workers: Workers = DEFAULT_WORKERS,
        progress: Progress | None = None,
    ) -> Self:
        """Learns from normal images alone; nothing is trained unless `adapt_steps` says so.

        Up to a third of the images is held out to calibrate the false-alarm rate, up to half where `auto` chose it or
        the rate needs it, unless `calibration` brings others for that.

        `groups` tells which images belong together, such as frames of one burst: they are on one side of every split,
        one image of each held-out group calibrates, and the false-alarm rate holds for images of new groups. It is
        `folder` (the parent folder), `name` (the name up to its trailing number), a function of the name, one id for
        each image of the source, or `auto` for the near-copies that are found. Without it they are only told of, in a
        NormalImagesWarning and in `cautions_`, as are images that drift in the order given.

        With `adapt_steps` the discriminator is first trained on for so many steps, on the images that are not held
        out: minutes on a GPU, hours without.

        `also_decoders` are compared with the detector's own on up to 64 of the images, read and scored by both. By
        those that pass (`decoders_` has all, with their numbers) the fitted detector may read images too.

        `progress` is called with (done, total) after every image; the total is None where the source does not tell it.
        A fit that fails leaves the detector as it was.
        """
        check_rate(self.false_alarm_rate)
        get_head(self.head)
        check_precision(self.precision, resolve_device(self.device))
        check_groups(groups)
        check_decoders([self.decoder, *also_decoders])
        check_available([self.decoder, *also_decoders], resolve_device(self.device))
        others = [each for each in dict.fromkeys(also_decoders) if each != self.decoder]
        files = images = readable_twice(images, self.limits) if others else images
        if calibration is not None and (is_given(groups) or is_auto(groups)):
            raise ParameterError(
                "these groups decide what is held out: leave out calibration, or give groups='folder', 'name' or a "
                "function of the name, which tell the groups of calibration images too"
            )
        weights, name, networks = self._requested()
        rate, refusals, min_images, kind = self.false_alarm_rate, RefusalReport(), MIN_IMAGES, None
        own_split = bool(adapt_steps) and calibration is None
        if adapt_steps:
            if weights is None:
                raise ParameterError(f"adapt_steps train a discriminator: name one in weights, {DEFAULT_WEIGHTS!r}")
            kind = groups if isinstance(groups, str) else None
            weights, images, calibration, rate, groups, refusals = adapt(
                weights,
                images,
                groups=groups,
                calibration=calibration,
                steps=adapt_steps,
                rate=rate,
                seed=self.seed,
                device=self.device,
                workers=workers,
                limits=self.limits,
                decoder=self.decoder,
            )
            name, min_images = None, MIN_FIT_IMAGES
        encoder = self._make_encoder(weights, networks, self._parameters(), get_head(self.head).needs)
        found, rate = fit_images(
            encoder,
            images,
            head=self.head,
            rate=rate,
            seed=self.seed,
            groups=groups,
            calibration=calibration,
            own_split=own_split,
            min_images=min_images,
            refusals=refusals,
            workers=workers,
            progress=progress,
        )
        parameters = {**self._parameters(), "false_alarm_rate": rate}
        state = FittedState(
            parameters, weights, name, **found, refusals=refusals, networks=networks, decoder=self.decoder
        )
        scorer = Scorer(encoder, state.head)
        measured = tuple(
            measure_decoder(each, scorer, files, state.calibration_scores, workers=workers, limits=self.limits)
            for each in others
        )
        return self._accept(replace(state, groups=kind or state.groups, decoders=measured))

    def fit_features(
        self, features: AnyFeatures, *, groups: Groups | None = None, calibration: AnyFeatures | None = None
    ) -> Self:
        """Learns from features of normal images: those of `extract_features`, or an array (images, dimensions).

        They may also be stored, as the folder that `discopatch score --features` wrote or as Parquet with columns
        `statistics`, `logits` and `pooled`, at a path or an address; or a `FeatureStream`. Then they need not fit in
        memory, and places do not count.

        `groups` are one id an image, or `auto`. Probes need images, so a detector that was fitted so has none, and it
        cannot explain.
        """
        check_rate(self.false_alarm_rate)
        head, chosen = get_head(self.head), load_networks(self.weights)
        given = self._opened(features, head, chosen)
        apart = None if calibration is None else self._opened(calibration, head, chosen)
        options: dict[str, Any] = {
            "layer_sizes": (
                chosen.weights.discriminator.architecture.layer_sizes if chosen.weights and not chosen.outside else ()
            ),
            "rate": self.false_alarm_rate,
            "seed": self.seed,
        }
        if isinstance(given, FeatureStream):
            if groups is not None:
                raise ParameterError(f"{given.name} is read in parts, which know no groups: leave groups out")
            found, rate = fit_stream(self.head, given, calibration=apart, **options)
        else:
            if isinstance(apart, FeatureStream):
                raise ParameterError(f"{apart.name} is too large beside features in memory: give it as an array")
            found, rate = fit_features(self.head, given, groups=groups, calibration=apart, **options)
        parameters = {**self._parameters(), "false_alarm_rate": rate}
        check_decoders([self.decoder])
        return self._accept(
            FittedState(parameters, chosen.weights, chosen.name, **found, networks=chosen.outside, decoder=self.decoder)
        )

    def _opened(self, features: AnyFeatures, head: Head, chosen: ChosenNetworks) -> Features | FeatureStream:
        """The features in memory where they are small, and else as a stream."""
        from discopatch.batch.stored_features import ScoredFeatures, open_features

        if isinstance(features, str | os.PathLike):
            features = open_features(features, head.needs)
            if isinstance(features, ScoredFeatures):
                transform = Transform() if chosen.weights is None else chosen.weights.transform
                read = replace(transform, decoder=self.decoder)
                features.check_encoder(chosen.weights, chosen.outside, self._parameters(), read)
        if isinstance(features, FeatureStream):
            held = features.read_small()
            return features if held is None else as_features(held, head)
        return as_features(features, head)

    def _parameters(self) -> dict[str, Any]:
        """Those that a fit depends on."""
        return {name: getattr(self, name) for name in PARAMETERS}

    def _requested(self) -> ChosenNetworks:
        """The networks that `weights` names, if the head can score what they give."""
        chosen = load_networks(self.weights)
        if chosen.weights is None and isinstance(get_head(self.head), LogitHead):
            raise ParameterError(
                f"head={self.head!r} scores by the logit, which a discriminator alone has: "
                f"choose head={DEFAULT_HEAD!r}, or name one in weights, {DEFAULT_WEIGHTS!r}"
            )
        return chosen

    def _accept(self, state: FittedState, *, warn: bool = True) -> Self:
        self._scorer, self._state = None, state
        for caution in state.cautions if warn else ():
            warnings.warn(caution, NormalImagesWarning, stacklevel=3)
        return self

    def extract_features(self, images: object, *, workers: Workers = DEFAULT_WORKERS) -> Features:
        """The features of all images, also before a fit; an image that cannot be read is an error."""
        if self._state is None:
            weights, _, networks = load_networks(self.weights)
            encoder = self._make_encoder(weights, networks, self.get_params(), get_head(self.head).needs)
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
        heard = hear_one_by_one(self.head_, given)
        if not np.isfinite([each.score for each in heard]).all():
            raise ParameterError(
                "some of these features have no finite score: give finite features of the same encoder"
            )
        return Predictions(self._decide(str(row), each.score, each.components) for row, each in enumerate(heard))

    def predict_images(self, images: object, *, workers: Workers = DEFAULT_WORKERS) -> Iterator[PredictedImage]:
        scorer = self.scorer_
        return scorer.predict_images(with_transform(images, scorer.encoder), workers=workers)

    def explain(self, image: object) -> Explanation:
        """Where one image differs from normal ones, in which way, and which components of the head say so."""
        check_single(image)
        encoder, region_model = self.encoder_, self.regions_
        source = with_transform(image, encoder)
        with closing(read_images(source, transform=encoder.transform, workers=1, limits=self.limits)) as stream:
            found = single(stream)
        item = Extracted(found.name, found.pixels, encoder.start(found.pixels[None])())
        regions = encoder.extract_regions(item.pixels, GRID**2)
        anomaly_map = region_model.anomaly_map(regions, size=encoder.transform.size, patch_size=encoder.patch_size)
        likely = self.reasons_.reasons(item.pixels)
        reasons = tuple(Reason(name, z, PROBES[name].text) for name, z in likely.items())
        (heard,) = self.scorer_.hear_features(item.features)
        check_finite(item.name, heard.score)
        prediction = self._decide(item.name, heard.score, heard.components)
        if heard.place_map is not None:
            anomaly_map += heat_of_places(heard.place_map)
        components = explain_components(prediction, reasons, heard.place_map)
        return Explanation(prediction, item.pixels, anomaly_map, reasons, components)

    def _decide(self, name: str, score: float, components: tuple[ComponentScore, ...] = ()) -> Prediction:
        state = self.state_
        p_value = p_value_among(score, state.ordered_scores)
        return Prediction(name, score, p_value, score > state.threshold, components=components)

    def with_rate(self, false_alarm_rate: float) -> Self:
        """The same fitted detector at another false-alarm rate; nothing is fitted again."""
        state = self.state_
        check_rate(false_alarm_rate)
        check_calibration(len(state.calibration_scores), false_alarm_rate)
        other = type(self)(**{**self.get_params(), "false_alarm_rate": false_alarm_rate})
        state = replace(state, parameters={**state.parameters, "false_alarm_rate": false_alarm_rate})
        return other._accept(state, warn=False)

    @property
    def state_(self) -> FittedState:
        """All that the detector is, or NotFittedError."""
        if self._state is None:
            raise NotFittedError("this detector has not been fitted: call fit with normal images, or discopatch.load")
        return self._state

    @property
    def threshold_(self) -> float:
        """Scores above it are flagged."""
        return self.state_.threshold

    @property
    def false_alarm_rate_(self) -> float:
        """The rate in force: the one asked for, or what `auto` chose."""
        return self.state_.false_alarm_rate

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
        return Guarantee(state.n_fit, len(state.calibration_scores), self.false_alarm_rate_, state.n_groups)

    @property
    def cautions_(self) -> tuple[str, ...]:
        """What was noticed about the normal images: near-copies, copies, drift."""
        return self.state_.cautions

    @property
    def transform_(self) -> Transform:
        """What images come through now: the transform of the fit, read by the detector's decoder."""
        return replace(self.state_.transform, decoder=self.decoder)

    @property
    def decoders_(self) -> tuple[DecoderParity, ...]:
        """Other decoders, as they were compared with the fitted one."""
        return self.state_.decoders

    @property
    def component_names(self) -> tuple[str, ...]:
        """Those of a fitted head that tells of its components."""
        return () if self._state is None else self._state.head.component_names

    @property
    def head_(self) -> Head:
        return self.state_.head

    @property
    def regions_(self) -> RegionModel:
        if self.state_.regions is None:
            raise NotFittedError(FITTED_ON_FEATURES)
        return self.state_.regions

    @property
    def reasons_(self) -> ReasonModel:
        """What tells which known change an image looks like."""
        if self.state_.reasons is None:
            raise NotFittedError(FITTED_ON_FEATURES)
        return self.state_.reasons

    @property
    def weights_(self) -> Weights:
        """The discriminator's weights themselves, after an adaptation the adapted ones."""
        if self.state_.weights is None:
            raise ParameterError(f"this detector has no discriminator: name one in weights, {DEFAULT_WEIGHTS!r}")
        return self.state_.weights

    @property
    def encoder_(self) -> Encoder:
        return self.scorer_.encoder

    @property
    def scorer_(self) -> Scorer:
        """The encoder and the fitted head on the detector's device; made when first needed."""
        state, wanted = self.state_, (resolve_device(self.device), self.batch_size, self.decoder)
        scorer = self._scorer
        if scorer is None or run_options(scorer.encoder) != wanted:
            encoder = self._make_encoder(state.weights, state.networks, state.parameters, state.head.needs)
            self._scorer = scorer = Scorer(encoder, state.head, self._decide)
        scorer.encoder.limits = self.limits
        return scorer

    def scorer_with(self, kinds: Collection[Kind]) -> Scorer:
        """A scorer, with the same scores, whose encoder also gives these kinds of features, for who stores them."""
        scorer = self.scorer_
        if set(kinds) <= scorer.encoder.kinds:
            return scorer
        state = self.state_
        wanted = scorer.encoder.kinds.union(kinds)
        encoder = self._make_encoder(state.weights, state.networks, state.parameters, wanted)
        return Scorer(encoder, state.head, self._decide)

    @property
    def limits(self) -> Limits:
        """What images are refused unread."""
        return Limits(max_pixels=self.max_pixels, max_bytes=self.max_bytes)

    def _make_encoder(
        self,
        weights: Weights | None,
        networks: Sequence[OutsideNetwork],
        parameters: Mapping[str, Any],
        kinds: Collection[Kind],
    ) -> Encoder:
        """An encoder of these kinds of features."""
        chosen = {name: parameters[name] for name in ("patches", "sampling", "seed", "precision")}
        return make_encoders(
            ChosenNetworks(weights, None, tuple(networks)),
            **chosen,
            device=self.device,
            batch_size=self.batch_size,
            limits=self.limits,
            kinds=kinds,
            decoder=self.decoder,
        )

    def settings(self) -> dict[str, Any]:
        """All that a result depends on, by name and digest."""
        state = self.state_
        names = {network.name: network.digest for network in state.networks}
        transform = self.transform_
        return {
            "discopatch": discopatch.__version__,
            "weights": None if state.weights is None else state.weights_name or CUSTOM,
            "weights_digest": None if state.weights is None else state.weights.digest,
            **({"networks": names} if names else {}),
            "transform": transform.to_dict(),
            "transform_digest": transform.digest,
            **state.parameters,
            "images": state.n_fit,
            "groups": state.groups,
            "n_groups": state.n_groups,
        }

    def save(self, path: Path | str) -> None:
        """Writes one safetensors file, atomically; weights that are not released go into it too.

        Networks from outside do not: the file has their places and digests. An address, hf://owner/name or hub:///path,
        gets a model card too; see `discopatch.hub.push` for its options.
        """
        from discopatch.hub import is_address, push

        if is_address(path):
            push(self, path)
        else:
            write_detector(Path(path), self.state_, self.settings())

    @classmethod
    def load(
        cls,
        path: Path | str,
        *,
        weights: str | Sequence[str] = (),
        device: str = "auto",
        batch_size: int = 8,
        decoder: Decoder | None = None,
        max_pixels: int = DEFAULT_LIMITS.max_pixels,
        max_bytes: int = DEFAULT_LIMITS.max_bytes,
    ) -> Self:
        """The detector that `save` wrote; it scores as before, to the bit on one machine, or is refused.

        `weights` say where networks from outside lie now, such as dinov2=FOLDER, if they are not where they were.
        Another `decoder` than the fit's is refused unless it was compared with that at fit, and passed.
        """
        from discopatch.hub import locate

        path = locate(path).path
        state = read_detector(path, [weights] if isinstance(weights, str) else weights)
        remedy = FITTED_ON_A_GPU.format(path=path)
        check_precision(state.parameters["precision"], resolve_device(device), remedy=remedy)
        own = [] if state.weights is None else [state.weights_name or state.weights]
        names = [*own, *(network.name for network in state.networks)]
        detector = cls(
            names[0] if len(names) == 1 else names,
            **state.parameters,
            device=device,
            batch_size=batch_size,
            decoder=state.decoder,
            max_pixels=max_pixels,
            max_bytes=max_bytes,
        )
        detector._accept(state, warn=False)
        if decoder is not None:
            detector.decoder = decoder
        check_available([detector.decoder], resolve_device(device))
        return detector

    def export(self, folder: Path | str, *, format: str = "onnx", int8: bool = False, **options: Any) -> "Exported":
        """Writes a folder for runtimes without torch; see `discopatch.export.export_detector` for the options."""
        from discopatch.export import export_detector

        return export_detector(self, folder, format=format, int8=int8, **options)

    def map_batches(
        self, *, image: str = "image", keep_image: bool = False, prefix: str = "", cores: int | None = None
    ) -> "BatchScorer":
        """A function of batches (columns by name, as arrays) for pipelines of one's own in Ray Data, Daft or Spark.

        It carries this detector along to the workers, and adds columns with the results; see
        `discopatch.batch.BatchScorer` for the options. Networks from outside must lie on the workers too.
        """
        from discopatch.batch import BatchScorer
        from discopatch.batch.packed import PackedDetector

        return BatchScorer(
            PackedDetector.save(self),
            image=image,
            keep_image=keep_image,
            prefix=prefix,
            cores=cores,
            device=self.device,
            batch_size=self.batch_size,
            decoder=self.decoder,
            max_pixels=self.max_pixels,
            max_bytes=self.max_bytes,
        )


def run_options(encoder: Encoder) -> tuple[object, ...]:
    """What of a fitted detector's encoder may still change."""
    return encoder.device, encoder.batch_size, encoder.transform.decoder
