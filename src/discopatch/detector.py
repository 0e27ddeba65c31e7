"""Detector: fitted on normal images, it decides whether new images are like them."""

import hashlib
import json
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import closing
from copy import deepcopy
from dataclasses import asdict, replace
from functools import partial
from inspect import signature
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch

from discopatch import accepting
from discopatch.accepting import PLACES
from discopatch.calibration import Calibration, Rate, check_confidence, check_rate
from discopatch.classes import Classes, check_classes, needed_by
from discopatch.encoders import (
    AnyWeights,
    ChosenNetworks,
    Compare,
    Encoder,
    Features,
    Kind,
    Patches,
    Precision,
    check_decoder,
    check_precision,
    load_networks,
    make_encoders,
    pack_maps,
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
from discopatch.explain.anomaly_map import enlarge
from discopatch.explain.reasons import ReasonModel
from discopatch.fitting import (
    MAX_IMAGES,
    FitParameters,
    FittedState,
    Resolution,
    check_resolution,
    choose_levels,
    fit_images,
    possible_transforms,
)
from discopatch.groups import Groups, check_groups, is_auto, is_given
from discopatch.heads import DEFAULT_HEAD, PROBES, Head, LogitHead, PlaceModel, get_head
from discopatch.heads.examples import NOTABLE
from discopatch.heads.modes import Accepted
from discopatch.images import (
    DEFAULT_LIMITS,
    DEFAULT_WORKERS,
    Decoder,
    Refusal,
    RefusalReport,
    Transform,
    Workers,
    list_source,
    read_images,
    single,
)
from discopatch.images.levels import Choice, check_levels
from discopatch.images.transform import Ignore
from discopatch.model import Weights
from discopatch.model.patches import Sampling
from discopatch.normal_images import Progress
from discopatch.pretrained import DEFAULT_WEIGHTS
from discopatch.resolution import choose_resolution
from discopatch.results import (
    Explanation,
    FittedDetector,
    PredictedBatch,
    Prediction,
    Reason,
    check_finite,
    explain_components,
    image_caution,
)
from discopatch.scorer import Scorer
from discopatch.storage import describe, read_detector, write_detector
from discopatch.utils import locked
from discopatch.version import __version__

FITTED = tuple(FitParameters.__dataclass_fields__)  # names of the parameters that a fit depends on
SIGNATURE_SUFFIX = ".minisig"  # of the file of a signature, as minisign names it
FROZEN = ("weights", "false_alarm_rate", *FITTED)


class Detector(FittedDetector):
    """Detects images that differ from the normal images that it was fitted on.

    A fitted detector is frozen: only `device`, `batch_size`, `decoder`, `max_pixels` and `max_bytes` can be set.
    Attributes that end in an underscore exist after a fit.

    Parameters
    ----------
    weights
        The name of released weights (natural-v3, natural-v2, natural-small-v2, paper-v1), a `Weights` object, a
        .safetensors file that `discopatch train` wrote, a network of transformers as KIND=FOLDER (dinov2=FOLDER),
        or a network as an `OutsideNetwork`; or a list of several.
    head
        The model of normal features: components, combined, statistics, logit or sigmoid.
    false_alarm_rate
        The largest share of normal images that are flagged, on average. `auto` takes the smallest of 1, 2, 5 and 10 %
        for which at most half of the images are held out.
    confidence
        With 0.95, at most `false_alarm_rate` of new normal images are flagged by 95 of 100 detectors that are fitted
        like this one. By default the rate holds on average over such detectors, and fewer images are held out.
    patches
        `dense` for one pass over the whole image, or a number of patches.
    sampling
        Where patches are cut: at `random` places, the same in all images, or on a `grid`.
    seed
        Seed of all random choices, such as which images are held out.
    reason_images
        Number of normal images that are changed in known ways to learn reasons; 0 leaves reasons out.
    detection_images
        Number of held-out images on which each made-up change is tried for `detection_rates_`; 0 leaves them out.
    resolution
        The pixels along the short side of an image that the network sees, at most those of the normal images. `auto`
        begins at 256 and goes on to 384, 512, 768 and 1024 as long as more small made-up changes are found; it stays at
        256 with fewer than 36 images, and with groups other than `folder` and `name`. `crop` takes the centre square of
        256 x 256, as the paper does.
    levels
        The values of images of more than 8 bits that become black and white: `auto` chooses them by the normal images,
        `window` takes the window of each DICOM file, (low, high) gives them.
    bands
        Of images of many bands, the one that becomes grey or the three that become red, green and blue, from 1. By
        default the first.
    device
        `auto` takes a GPU where there is one.
    batch_size
        Images that pass the network together; by default 8 on a CPU, and on a GPU up to 128 as its memory allows.
    precision
        `float32`, or `bfloat16`, which is faster and needs a GPU. A detector keeps the one that it was fitted in.
    decoder
        What decodes image files: `pillow`; `scaled`, which is faster for large JPEG files; `nvimgcodec`, on a GPU.
    max_pixels, max_bytes
        Images with more pixels, and encoded images with more bytes, are refused before they are decoded.

    Examples
    --------
    >>> detector = Detector(false_alarm_rate=0.05).fit("normal/")
    >>> detector.predict("new/").to_pandas()
    """

    _state: FittedState | None = None
    _scorer: Scorer | None = None
    _made_for: tuple[torch.device, int | None, str] | None = None  # what the scorer was made for
    _places: Encoder | None = None

    def __init__(
        self,
        weights: AnyWeights | Sequence[AnyWeights] = DEFAULT_WEIGHTS,
        *,
        head: str = DEFAULT_HEAD,
        false_alarm_rate: Rate = "auto",
        confidence: float | None = None,
        patches: Patches = "dense",
        sampling: Sampling = "random",
        seed: int = 0,
        reason_images: int = 16,
        detection_images: int = 12,
        resolution: Resolution = "auto",
        levels: Choice = "auto",
        bands: tuple[int, ...] | None = None,
        device: str = "auto",
        batch_size: int | None = None,
        precision: Precision = "float32",
        decoder: Decoder = "pillow",
        max_pixels: int = DEFAULT_LIMITS.max_pixels,
        max_bytes: int = DEFAULT_LIMITS.max_bytes,
    ) -> None:
        self.weights, self.head, self.false_alarm_rate = weights, head, false_alarm_rate
        self.confidence = confidence
        self.patches, self.sampling, self.seed = patches, sampling, seed
        self.reason_images, self.detection_images = reason_images, detection_images
        self.resolution, self.levels, self.bands = resolution, levels, bands
        self.device, self.batch_size, self.precision = device, batch_size, precision
        self.decoder, self.max_pixels, self.max_bytes = decoder, max_pixels, max_bytes

    def __setattr__(self, name: str, value: Any) -> None:
        if name in FROZEN and self._state is not None:
            remedy = "detector.with_rate(...) returns a detector with another rate" * (name == "false_alarm_rate")
            raise FrozenError(
                f"this detector was fitted with {name}={getattr(self, name)!r}, which can no longer change: "
                + (remedy or f"make a new one, Detector(..., {name}=...), and fit it")
            )
        object.__setattr__(self, name, value)

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The arguments of the constructor."""
        return {name: getattr(self, name) for name in signature(type(self)).parameters}

    def fit(
        self,
        images: object,
        *,
        groups: Groups | None = None,
        classes: Classes | None = None,
        calibration: object | None = None,
        examples: object | None = None,
        ignore: Ignore | None = None,
        exclude: Collection[str] = (),
        workers: Workers = DEFAULT_WORKERS,
        progress: Progress | None = None,
    ) -> Self:
        """Fits the head on normal images; the network is not trained.

        Up to a third of the images is held out to calibrate the false-alarm rate, up to half where the rate needs it.
        A fit that fails leaves the detector as it was.

        Parameters
        ----------
        images
            Normal images: a folder, a path, a pattern, a shard, a table, an address, arrays, or a list of these.
        groups
            Which images belong together, such as frames of one burst: `folder`, `name` (the name up to its trailing
            number), a function of the name, one id for each image, or `auto` for near-copies that are found. Groups
            are held out as wholes, and the false-alarm rate holds for images of new groups. Without `groups`,
            near-copies only cause a NormalImagesWarning.
        classes
            Which images are of one kind, such as one product: `folder`, a function of the name, or one class for each
            image. The false-alarm rate then holds for each class. Images are assigned to a class by their content.
        calibration
            Other normal images to calibrate on. No image is then held out.
        examples
            Images of defects that are to be found, such as known misses. What they have in common counts more, the
            more of them there are; the false-alarm rate stays. For the components head.
        ignore
            Pixels that change neither score nor map: an image file or an array, other than 0 where pixels are ignored,
            or rectangles (left, top, width, height) in pixels of the normal images.
        exclude
            Names of images to leave out, such as `Audit.exclude`. A name that no image has is an error.
        workers
            Threads, or `Processes`, that decode images.
        progress
            Called with the number of images done and the total, which is None where the source does not have it.
        """
        check_rate(self.false_alarm_rate)
        check_confidence(self.confidence)
        head = get_head(self.head)
        check_precision(self.precision, resolve_device(self.device))
        check_resolution(self.resolution)
        check_levels(self.levels, self.bands)
        check_groups(groups)
        check_classes(classes)
        check_decoder(self.decoder, resolve_device(self.device))
        for name in ("reason_images", "detection_images"):
            if getattr(self, name) < 0:
                raise ParameterError(f"{name} is {getattr(self, name)}: give 0 for none, or a larger number")
        if calibration is not None and (is_given(groups) or is_auto(groups)):
            raise ParameterError(
                "these groups decide what is held out: leave out calibration, or give groups='folder', 'name' or a "
                "function of the name, which also apply to calibration images"
            )
        if examples is not None and self.head != DEFAULT_HEAD:
            raise ParameterError(f"examples are for head={DEFAULT_HEAD!r}: leave them out, or take that head")
        if len(exclude) and (is_given(groups) or is_given(classes)):
            raise ParameterError("groups and classes have one id for each image: leave out exclude, and those images")
        networks = load_networks(self.weights)
        if networks.weights is None and isinstance(head, LogitHead):
            raise ParameterError(
                f"head={self.head!r} scores by the logit of a discriminator: choose head={DEFAULT_HEAD!r}, or name "
                f"one in weights, {DEFAULT_WEIGHTS!r}"
            )
        parameters = FitParameters(**{name: getattr(self, name) for name in FITTED})
        make_encoder = partial(self._make_encoder, networks, parameters)
        make_encoder(networks.transform, head.needs)  # checks the parameters before images are read
        source = list_source(images).repeatable(self.limits)
        source = source.without(exclude, self.limits) if len(exclude) else source
        resolution = self.resolution if self.patches == "dense" else "crop"
        levels = choose_levels(source, self.levels, self.bands, self.limits)
        own = replace(networks.transform, decoder=self.decoder, levels=levels)
        transforms = possible_transforms(source, own, resolution, ignore=ignore, limits=self.limits)
        in_order = groups is None or (isinstance(groups, str) and groups != "auto")
        chosen = choose_resolution(
            lambda transform: make_encoder(transform, PLACES, compare=pack_maps, dense=True),
            source,
            transforms if "places" in head.needs and in_order else transforms[:1],
            in_groups=groups is not None,
            needed=0
            if calibration is not None or isinstance(self.false_alarm_rate, str)
            else needed_by(self.false_alarm_rate, self.confidence),
            limits=self.limits,
            seed=self.seed,
        )
        fitted = fit_images(
            partial(make_encoder, chosen.transform),
            source,
            parameters,
            rate=self.false_alarm_rate,
            measured=chosen.measured,
            groups=groups,
            classes=classes,
            calibration=calibration,
            examples=examples,
            workers=workers,
            progress=progress,
        )
        fitted = replace(fitted, resolutions=chosen.steps)
        self._accept(FittedState(parameters, networks, chosen.transform, fitted))
        for caution in fitted.cautions:
            warnings.warn(caution, NormalImagesWarning, stacklevel=2)
        return self

    def _accept(self, state: FittedState) -> Self:
        self._scorer, self._places, self._state = None, None, state
        return self

    def extract_features(self, images: object, *, workers: Workers = DEFAULT_WORKERS) -> Features:
        """The features of all images, also before a fit; an image that cannot be read raises ImageError."""
        if self._state is None:
            parameters = FitParameters(**{name: getattr(self, name) for name in FITTED})
            networks = load_networks(self.weights)
            encoder = self._make_encoder(networks, parameters, networks.transform, get_head(self.head).needs)
        else:
            encoder = self.encoder_
        found = []
        for item in encoder.extract(images, workers=workers):
            if isinstance(item, Refusal):
                raise ImageError(item.reason, f"{item.name}: {item.error}")
            found.append(item[1])
        if not found:
            raise NoImagesError("no image to extract features from: give at least one")
        return Features.concatenate(found)

    def predict_batches(
        self, sources: Iterable[object], *, workers: Workers = DEFAULT_WORKERS
    ) -> Iterator[PredictedBatch]:
        return self.scorer_.predict_batches(sources, workers=workers)

    def explain(self, image: object) -> Explanation:
        """The prediction of one image with its anomaly map, reasons and significant components."""
        encoder = self.encoder_
        with closing(read_images(image, transform=encoder.transform, workers=1, limits=self.limits)) as stream:
            found = single(stream)
        features = encoder.start(found.pixels[None])()
        (output,) = self.scorer_.outputs(features)
        check_finite(found.name, output.score)
        if "places" not in self.head_.needs:
            features = self._mapper().extract_pixels(found.pixels[None])
        likely = {} if self.reasons_ is None else self.reasons_.reasons(found.pixels, encoder.embed)
        reasons = tuple(Reason(name, z, PROBES[name].text) for name, z in likely.items())
        if (z := self.head_.likeness(features)) is not None and z > NOTABLE:
            reasons = (*reasons, Reason("examples", z, "like the examples of defects"))
        caution = image_caution(found, self.state_.fitted.aspects)
        prediction = Prediction.make(
            found.name, output.score, self.calibration_, output.components, caution, output.number
        )
        anomaly_map = enlarge(features.places[0], self.places_.level.item(), found.pixels.shape[:2])
        components = explain_components(prediction, reasons, anomaly_map)
        return Explanation(prediction, found.pixels, anomaly_map, reasons, components, found.size)

    def accept(self, images: object) -> Self:
        """A detector to which these images, and images like them, are normal; for false alarms.

        No score rises and the calibration stays, so that the guarantee holds however the images are chosen. Images
        that differ from them in other ways than normal images do from each other are still flagged.
        """
        found = []
        with closing(read_images(images, transform=self.transform_, limits=self.limits)) as stream:
            for item in stream:
                if isinstance(item, Refusal):
                    raise ImageError(item.reason, f"nothing was accepted: {item.name}: {item.error}")
                found.append(item)
        encoder = self._encoder_of([kind for kind in self.head_.needs if kind != "places"])
        return self._new(accepting.accept(self.state_, found, encoder, self._encoder_of(PLACES, dense=True)))

    def take_back(self, *names: str) -> Self:
        """A detector without the accepted images of these names or digests."""
        return self._new(accepting.take_back(self.state_, names))

    def update(
        self,
        images: object,
        *,
        groups: Groups | None = None,
        workers: Workers = DEFAULT_WORKERS,
        progress: Progress | None = None,
    ) -> Self:
        """A detector to which new normal images are normal too, such as those of a new season or batch of material.

        A random part of the images is remembered beside the normal images of the fit. The others calibrate, so that
        the false-alarm rate holds for images like the new ones, instead of images like the old ones. Parameters are
        those of `fit`.
        """
        check_groups(groups)
        if self.classes_:
            raise ParameterError("a detector with classes cannot be updated: fit it again, on old and new images")
        source = list_source(images).repeatable(self.limits).draw(MAX_IMAGES)
        state = accepting.update(
            self.state_, source, self._encoder_of, groups=groups, workers=workers, progress=progress
        )
        found = self._new(state)
        for caution in found.cautions_:
            warnings.warn(caution, NormalImagesWarning, stacklevel=2)
        return found

    @property
    def accepted_(self) -> tuple[Accepted, ...]:
        """The images that were accepted after the fit, and updates, in their order."""
        return tuple(each.source for each in self.state_.fitted.modes)

    def _new(self, state: FittedState) -> Self:
        """A detector with another state."""
        return type(self)(**self.get_params())._accept(state)

    def _encoder_of(self, kinds: Collection[Kind], *, compare: Compare | None = None, dense: bool = False) -> Encoder:
        """An encoder of the fitted detector's networks; places are compared by `compare`, if it is given."""
        state = self.state_
        return self._make_encoder(
            state.networks, state.parameters, self.transform_, kinds, compare=compare, dense=dense
        )

    def with_rate(self, false_alarm_rate: float) -> Self:
        state = self.state_.with_rate(false_alarm_rate)
        rate = {"false_alarm_rate": false_alarm_rate, "confidence": None}
        return type(self)(**{**self.get_params(), **rate})._accept(state)

    @property
    def state_(self) -> FittedState:
        """The fitted state, or NotFittedError."""
        if self._state is None:
            raise NotFittedError("this detector has not been fitted: call fit with normal images, or discopatch.load")
        return self._state

    @property
    def calibration_(self) -> Calibration:
        return self.state_.fitted.calibration

    @property
    def refusals_(self) -> RefusalReport:
        """The images given to `fit` that could not be read."""
        return self.state_.fitted.refusals

    @property
    def head_(self) -> Head:
        """The fitted head."""
        return self.state_.fitted.head

    @property
    def places_(self) -> PlaceModel:
        """The comparison of places with those of normal images."""
        return self.state_.fitted.places

    @property
    def reasons_(self) -> ReasonModel | None:
        """The model of known changes, for reasons."""
        return self.state_.fitted.reasons

    @property
    def component_names(self) -> tuple[str, ...]:
        return () if self._state is None else self.head_.component_names

    @property
    def transform_(self) -> Transform:
        return replace(self.state_.transform, decoder=self.decoder)

    @property
    def weights_(self) -> Weights:
        """The weights of the discriminator."""
        if self.state_.networks.weights is None:
            raise ParameterError(f"this detector has no discriminator: name one in weights, {DEFAULT_WEIGHTS!r}")
        return self.state_.networks.weights

    @property
    def encoder_(self) -> Encoder:
        """The encoder on the detector's device."""
        return self.scorer_.encoder

    @property
    def scorer_(self) -> Scorer:
        """The encoder and the fitted head on the detector's device; made on first use."""
        state, scorer = self.state_, self._scorer
        wanted = resolve_device(self.device), self.batch_size, self.decoder
        if scorer is None or self._made_for != wanted:
            encoder = self._encoder_of(state.fitted.head.needs, compare=self.places_)
            scorer = Scorer(encoder, state.fitted.head, state.fitted.calibration, state.fitted.aspects)
            self._scorer, self._made_for = scorer, wanted
        scorer.encoder.limits = self.limits
        return scorer

    def _mapper(self) -> Encoder:
        """The encoder of z-scores of places, for a head that does not need them."""
        if self._places is None or self._places.device != self.encoder_.device:
            self._places = self._encoder_of(PLACES, compare=self.places_, dense=True)
        return self._places

    def _make_encoder(
        self,
        networks: ChosenNetworks,
        parameters: FitParameters,
        transform: Transform,
        kinds: Collection[Kind],
        *,
        compare: Compare | None = None,
        dense: bool = False,
    ) -> Encoder:
        device = resolve_device(self.device)
        return make_encoders(
            networks,
            compare=deepcopy(compare).to(device)
            if isinstance(compare, PlaceModel) and device.type != "cpu"
            else compare,
            patches="dense" if dense else parameters.patches,
            sampling=parameters.sampling,
            seed=parameters.seed,
            precision=parameters.precision,
            kinds=kinds,
            device=device,
            batch_size=self.batch_size,
            limits=self.limits,
            transform=transform,
        )

    @property
    def digest_(self) -> str:
        state = self.state_
        parameters = asdict(state.parameters)
        content = {
            **{name: parameters[name] for name in ("head", "patches", "sampling", "seed", "precision")},
            "weights": None if state.networks.weights is None else state.networks.weights.digest,
            "networks": [network.digest for network in state.networks.outside],
            "transform": self.transform_.digest,
            "probes": list(self.head_.probes),
        }
        if self.accepted_:
            content["accepted"] = [each.digest for each in self.accepted_]
        digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode())
        fitted = self.head_.to_tensors()
        if "places" in self.head_.needs:
            fitted |= {f"places.{name}": values for name, values in self.places_.to_tensors().items()}
        for name, values in sorted(fitted.items()):
            digest.update(f"{name} {tuple(values.shape)}".encode())
            digest.update(np.ascontiguousarray(values.cpu().double().numpy(), "<f8").tobytes())
        return digest.hexdigest()[:16]

    def settings(self) -> dict[str, Any]:
        """Everything that a result depends on, by name and digest."""
        return {"discopatch": __version__, **describe(self.state_, self.transform_)}

    def save(self, path: Path | str) -> None:
        """Writes one safetensors file, atomically.

        Weights that are not released are stored in it. Networks from outside are not: the file has their places and
        digests.
        """
        write_detector(Path(path), self.state_, __version__)

    @classmethod
    def load(
        cls,
        path: Path | str,
        *,
        networks: str | Sequence[str] = (),
        device: str = "auto",
        batch_size: int | None = None,
        decoder: Decoder | None = None,
        max_pixels: int = DEFAULT_LIMITS.max_pixels,
        max_bytes: int = DEFAULT_LIMITS.max_bytes,
    ) -> Self:
        """The detector that `save` wrote. It scores as before, to the bit on one machine.

        `networks` are the places of networks from outside, such as dinov2=FOLDER, if they have moved.
        """
        state = read_detector(Path(path), [networks] if isinstance(networks, str) else networks)
        remedy = f"load {path} where there is a GPU, or fit again with precision='float32'"
        check_precision(state.parameters.precision, resolve_device(device), remedy=remedy)
        check_decoder(decoder or state.transform.decoder, resolve_device(device))
        own = [] if state.networks.weights is None else [state.networks.name or state.networks.weights]
        names = [*own, *(network.name for network in state.networks.outside)]
        detector = cls(
            names[0] if len(names) == 1 else names,
            **asdict(state.parameters),
            false_alarm_rate=state.fitted.promised_rate or state.fitted.calibration.rate,
            device=device,
            batch_size=batch_size,
            decoder=decoder or state.transform.decoder,
            max_pixels=max_pixels,
            max_bytes=max_bytes,
        )
        return detector._accept(state)


def change_file(path: Path, change: Callable[[Detector], Detector], **load: Any) -> Detector:
    """Replaces the detector in a file by another one, and returns that; processes that do so take turns.

    `load` has keywords of `Detector.load`.
    """
    if path.with_name(f"{path.name}{SIGNATURE_SUFFIX}").exists():
        raise ParameterError(f"{path} is signed: change a copy without {path.name}{SIGNATURE_SUFFIX}, and sign that")
    with locked(path.with_name(f".{path.name}.lock")):
        changed = change(Detector.load(path, **load))
        changed.save(path)
    return changed
