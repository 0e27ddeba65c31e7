"""The methods of a benchmark, ENCODER/METHOD, such as discopatch/components, natural-v1-64/logit, resnet50/knn:k=10."""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import ClassVar, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor

from discopatch.bench.baselines import (
    BASELINES,
    LOCAL,
    NO_CLASSES,
    PENULTIMATE,
    STATISTICS,
    Array,
    Baseline,
    Classifier,
    ClassifierBaseline,
    FeatureDict,
    Local,
    Setting,
    get_baseline,
    make_baseline,
    parse_options,
)
from discopatch.bench.labels import split_discriminator
from discopatch.bench.networks import BACKBONES, Backbone, is_fetched, load_backbone
from discopatch.bench.pool import PART
from discopatch.encoders import DiscriminatorEncoder, Features, Kind
from discopatch.errors import ParameterError
from discopatch.fitting import N_PROBED, N_SAMPLED
from discopatch.heads import (
    HEADS,
    ComponentsHead,
    Head,
    LogitHead,
    ProbeShifts,
    get_head,
    make_trials,
    measure_shifts,
)
from discopatch.heads.trials import Trials
from discopatch.images import Pixels
from discopatch.model import DiscriminatorOutput, Weights
from discopatch.pretrained import PAPER_WEIGHTS, PRETRAINED, SMALL_WEIGHTS, load_pretrained

OURS = "discopatch"  # with the weights of the run; other released weights go by their names
PATCH_COUNTS = (4, 16, 32, 64, 128, 512)
PAPER_RULE = f"{OURS}-64/logit"  # the paper's scoring rule on the weights of the run
PAPER_METHOD = f"{PAPER_WEIGHTS}-64/sigmoid"  # its scoring rule on weights by its recipe
LOGITS = "logits"  # the kind of features (images, positions) that only the discriminator offers
WITHOUT_PLACES = "components:place=no"  # local features, which are the largest, are neither extracted nor stored
REFERENCES = (f"{OURS}/components", f"{OURS}/{WITHOUT_PLACES}")  # the first of them is compared with all others
WITH_PROBES = ("combined", "components")  # the heads that learn how known changes move images
HEAD_KINDS: dict[str, Kind] = {LOGITS: "logits", STATISTICS: "statistics", PENULTIMATE: "pooled", LOCAL: "places"}
SHARED = ("knn", "local")  # the baselines that discriminators have, too


class MethodName(NamedTuple):
    """A method: the encoder that extracts features, and the head or baseline that scores them, with its options."""

    encoder: str
    method: str  # such as energy or ash:variant=b:percentile=65

    def __str__(self) -> str:
        return f"{self.encoder}/{self.method}"


@dataclass(frozen=True, eq=False)
class HeadBaseline:
    """One of our heads with the interface of all baselines; features that are not among its needs it does not get.

    device: of its products, once it is fitted.
    """

    head: Head
    needs: tuple[str, ...]
    shifts: ProbeShifts = field(default_factory=dict)
    device: str | torch.device = "cpu"

    def fit(self, normal: FeatureDict) -> Self:
        """A fitted head may need less: parts of it that do not count are left out."""
        head = self.head.fit(to_features(normal, self.needs), self.shifts).to(self.device)
        return replace(self, head=head, needs=tuple(kind for kind in self.needs if HEAD_KINDS[kind] in head.needs))

    def score(self, features: FeatureDict) -> Array:
        return self.head.score(to_features(features, self.needs))


def to_features(found: FeatureDict, kinds: Collection[str]) -> Features:
    """Those kinds as our heads take them; all others are empty."""
    none = np.empty((len(found[STATISTICS]), 0))
    logits, statistics, pooled = (
        np.asarray(found[kind] if kind in kinds else none, np.float32) for kind in (LOGITS, STATISTICS, PENULTIMATE)
    )
    return Features(logits, statistics, pooled, found[LOCAL] if LOCAL in kinds else None)


class BenchEncoder(ABC):
    """A frozen network that extracts features, and what it has of the methods that score them.

    kinds: those of the features that it extracts.
    classifier: its last layer; without classes for a discriminator.
    device: where it computes.
    """

    methods: ClassVar[tuple[str, ...]]  # their names
    head_needs: ClassVar[tuple[str, ...]]  # the kinds of features that all our heads score

    def __init__(
        self,
        name: str,
        digest: str,
        parameters: int,
        *,
        kinds: tuple[str, ...],
        classifier: Classifier,
        device: torch.device,
        seed: int,
    ) -> None:
        self.name, self.digest, self.parameters = name, digest, parameters
        self.kinds, self.classifier, self.device, self._seed = kinds, classifier, device, seed
        self.forget()

    def forget(self) -> None:
        """Forgets what was measured on samples."""
        self._shifts: dict[bytes, ProbeShifts] = {}
        self._trials: dict[tuple[bytes, tuple[str, ...]], Trials] = {}

    @property
    @abstractmethod
    def layer_sizes(self) -> tuple[int, ...]:
        """How many of the statistics are each layer's, the first layer first."""

    @abstractmethod
    def extract(self, pixels: Pixels, kinds: Collection[str]) -> FeatureDict:
        """(images, size, size, 3) -> those kinds of features."""

    def refusal(self, method: str) -> str:
        """Why it cannot extract what the method needs; empty where it can."""
        name = method_id(method)
        if name not in self.methods:
            return f"it has the methods {', '.join(self.methods)} alone"
        kind = ClassifierBaseline if name in HEADS else baseline_class(method)
        return "" if set(self.needs(method)) <= set(self.kinds) else kind.without

    def needs_classes(self, method: str) -> bool:
        """Whether the method is fitted on the classes of the images, too."""
        return method_id(method) not in HEADS and baseline_class(method).needs_classes

    def settings(self, method: str, images: int) -> dict[str, Setting]:
        """The method's options as they are when it is fitted on so many images.

        An option that so many images do not allow is a ParameterError: its name would say what was not done.
        """
        if method_id(method) in HEADS:
            return {}
        found = make_baseline(method, self.classifier).settings(images)
        for option, given in parse_options(method)[1].items():
            if found[option] != given:
                raise ParameterError(
                    f"{method}: {images:,} images to fit on allow no {option} above {found[option]}: choose a smaller "
                    "one, or fit on more images"
                )
        return found

    def needs(self, method: str) -> tuple[str, ...]:
        """The kinds of features that the method scores."""
        if method_id(method) not in HEADS:
            return baseline_class(method).needs
        if method_id(method) != "components":
            return self.head_needs
        left_out = (LOCAL,) if method == WITHOUT_PLACES else ()
        return (
            *self.head_needs,
            *(kind for kind in (PENULTIMATE, LOCAL) if kind in self.kinds and kind not in left_out),
        )

    def method(self, name: str, samples: Pixels) -> Baseline:
        """The method, not fitted yet; what changes make of `samples`, the first normal images, is measured once.

        Our heads take as many of them as in the fit of a detector.
        """
        head, needs = method_id(name), self.needs(name)
        if head not in HEADS:
            found = make_baseline(name, self.classifier)
            return replace(found, device=self.device) if isinstance(found, Local) else found
        shifts = self._shifts_of(samples[:N_PROBED]) if head in WITH_PROBES else {}
        if head != "components":
            return HeadBaseline(get_head(head), needs, shifts)
        trials = self._trials_of(samples[:N_SAMPLED], needs)
        components = ComponentsHead(layer_sizes=self.layer_sizes, trials=trials, seed=self._seed)
        return HeadBaseline(components, needs, shifts, self.device)

    def _shifts_of(self, samples: Pixels) -> ProbeShifts:
        key = digest_of(samples)
        if key not in self._shifts:
            self._shifts[key] = measure_shifts(self._extractor((STATISTICS,)), samples, seed=self._seed)
        return self._shifts[key]

    def _trials_of(self, samples: Pixels, kinds: tuple[str, ...]) -> Trials:
        key = digest_of(samples), kinds
        if key not in self._trials:
            rows = np.arange(len(samples))
            self._trials[key] = make_trials(self._extractor(kinds), samples, rows, seed=self._seed)
        return self._trials[key]

    def _extractor(self, kinds: tuple[str, ...]) -> Callable[[Pixels], Features]:
        return lambda pixels: to_features(self.extract(pixels, kinds), kinds)


class DiscriminatorBenchEncoder(BenchEncoder):
    """The discriminator, in one dense pass over the image or at random patches, which have no maps of the image."""

    methods = (*HEADS, *SHARED)
    head_needs = (LOGITS, STATISTICS)

    def __init__(
        self, name: str, weights: Weights, *, patches: int | None, seed: int, device: str, batch_size: int
    ) -> None:
        self.encoder = DiscriminatorEncoder(
            weights, patches=patches or "dense", seed=seed, device=device, batch_size=batch_size
        )
        settings = f"{weights.digest} {patches} {seed if patches else 0}"
        super().__init__(
            name,
            hashlib.sha256(settings.encode()).hexdigest()[:16],
            sum(each.numel() for each in weights.discriminator.parameters()),
            kinds=(LOGITS, STATISTICS, PENULTIMATE, *(() if patches else (LOCAL,))),
            classifier=NO_CLASSES,
            device=self.encoder.device,
            seed=seed,
        )

    @property
    def layer_sizes(self) -> tuple[int, ...]:
        return self.encoder.layer_sizes

    def extract(self, pixels: Pixels, kinds: Collection[str]) -> FeatureDict:
        parts = [self._select(output, kinds) for output in self.encoder.outputs(pixels)]
        return {kind: torch.cat([part[kind] for part in parts]).numpy() for kind in kinds}

    def _select(self, output: DiscriminatorOutput, kinds: Collection[str]) -> dict[str, Tensor]:
        features: dict[str, Callable[[], Tensor]] = {
            LOGITS: lambda: output.logits.reshape(len(output.statistics), -1),
            STATISTICS: lambda: output.statistics,
            PENULTIMATE: lambda: self.encoder.extractor.mean_features(output),
            LOCAL: lambda: self.encoder.extractor.places(output),
        }
        return {kind: features[kind]().cpu() for kind in kinds}


class ClassifierBenchEncoder(BenchEncoder):
    """A classifier that was trained with labels on other images."""

    methods = (*BASELINES, *(name for name in HEADS if not issubclass(HEADS[name], LogitHead)))
    head_needs = (STATISTICS,)

    def __init__(self, backbone: Backbone, *, seed: int = 0) -> None:
        self.backbone = backbone
        super().__init__(
            backbone.name,
            backbone.digest,
            backbone.parameters,
            kinds=backbone.kinds,
            classifier=backbone.classifier,
            device=backbone.device,
            seed=seed,
        )

    @property
    def layer_sizes(self) -> tuple[int, ...]:
        return self.backbone.layer_sizes

    def extract(self, pixels: Pixels, kinds: Collection[str]) -> FeatureDict:
        return self.backbone.extract(pixels, kinds)


def digest_of(pixels: Pixels) -> bytes:
    return hashlib.sha256(pixels.tobytes()).digest()


def method_id(method: str) -> str:
    """knn:k=10 -> knn."""
    return method.partition(":")[0]


def baseline_class(method: str) -> type[ClassifierBaseline]:
    """ash:variant=b -> ASH."""
    return get_baseline(parse_options(method)[0])


def load_encoder(name: str, weights: Weights, *, seed: int, device: str, backbones: Path | None = None) -> BenchEncoder:
    """The encoder of that name; `weights` are those of the discriminator, `backbones` the folder of fetched ones."""
    if found := split_discriminator(name):
        released, patches = found
        weights = weights if released == OURS else load_pretrained(released)
        return DiscriminatorBenchEncoder(name, weights, patches=patches, seed=seed, device=device, batch_size=PART)
    return ClassifierBenchEncoder(load_backbone(name, device=device, folder=backbones), seed=seed)


def default_methods(backbones: Path | None = None, *, quick: bool = False) -> tuple[str, ...]:
    """Patterns for all that our weights and the backbones that are fetched have; the paper's method, unless quick."""
    fetched = (f"{name}/*" for name in BACKBONES if is_fetched(name, backbones))
    papers = [] if quick else [PAPER_RULE, PAPER_METHOD, f"{PAPER_WEIGHTS}/combined"]
    return (f"{OURS}/*", f"{SMALL_WEIGHTS}/combined", *papers, *fetched)


def choose_methods(patterns: Sequence[str]) -> list[MethodName]:
    """The methods that match any of the patterns, each once, in the order of the patterns; * matches anything.

    Options that end a pattern, as in */knn:k=10, are those of all methods that match it.
    """
    chosen: dict[MethodName, None] = {}
    for given in patterns:
        encoder, slash, method = given.rpartition("/")
        method, colon, options = method.partition(":")
        pattern = encoder + slash + method
        matching = [name for name in _known_methods(pattern) if fnmatchcase(str(name), pattern)]
        if not matching:
            raise ParameterError(
                f"unknown method {pattern!r}: give ENCODER/METHOD, * for any. ENCODER is {OURS} (the run's weights), "
                f"{', '.join(PRETRAINED)}, each in one dense pass, or with -N in N random patches, with METHOD "
                f"{', '.join(DiscriminatorBenchEncoder.methods)}; or one of {', '.join(BACKBONES)}, regnet=FOLDER, "
                "mobilenetv2=FOLDER, bit=FOLDER, beitv2=FOLDER with METHOD "
                f"{', '.join(ClassifierBenchEncoder.methods)}"
            )
        chosen |= dict.fromkeys(_with_options(name, options) if colon else name for name in matching)
    return list(chosen)


def _with_options(name: MethodName, options: str) -> MethodName:
    """The method with these options, which are always written in the same way."""
    if f"{name.method}:{options}" == WITHOUT_PLACES:
        return MethodName(name.encoder, WITHOUT_PLACES)
    if name.method not in BASELINES:
        raise ParameterError(f"{name}: a head has no options, but for {WITHOUT_PLACES}: leave out {options!r}")
    method, found = parse_options(f"{name.method}:{options}")
    written = [f"{option}={str(value).removesuffix('.0')}" for option, value in found.items()]
    return MethodName(name.encoder, ":".join([method, *written]))


def _known_methods(pattern: str) -> list[MethodName]:
    """All methods, and those of the encoder that the pattern names."""
    encoder = pattern.rpartition("/")[0]
    ours = dict.fromkeys([OURS, *PRETRAINED, *(f"{OURS}-{count}" for count in PATCH_COUNTS)])
    if (found := split_discriminator(encoder)) and found[0] in (OURS, *PRETRAINED):
        ours[encoder] = None
    others = [*BACKBONES, *([encoder] if "=" in encoder else [])]
    return [MethodName(name, method) for name in ours for method in DiscriminatorBenchEncoder.methods] + [
        MethodName(name, method) for name in others for method in ClassifierBenchEncoder.methods
    ]
