"""The methods of a benchmark, `ENCODER/METHOD`, such as discopatch/combined, natural-v1-64/logit, resnet50/knn:k=10."""

import hashlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import ClassVar, NamedTuple, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from discopatch.bench.backbones import BACKBONES, Backbone, is_fetched, load_backbone
from discopatch.bench.baselines import (
    BASELINES,
    STATISTICS,
    Array,
    Baseline,
    ClassifierBaseline,
    FeatureDict,
    Setting,
    get_baseline,
    make_baseline,
    parse_options,
)
from discopatch.bench.labels import split_discriminator
from discopatch.bench.pool import PART
from discopatch.encoders import DiscriminatorEncoder, Features
from discopatch.errors import ParameterError
from discopatch.fitting import N_PROBED
from discopatch.heads import HEADS, Head, ProbeShifts, get_head, measure_shifts
from discopatch.images import Pixels
from discopatch.model import Weights
from discopatch.pretrained import PRETRAINED, SMALL_WEIGHTS, load_pretrained

OURS = "discopatch"  # with the weights of the run; other released weights go by their names
PATCH_COUNTS = (4, 16, 32, 64, 128, 512)
REFERENCE = f"{OURS}/combined"  # with which all others are compared
PAPER_RULE = f"{OURS}-64/logit"  # the paper's scoring rule on the weights of the run
LOGITS = "logits"  # the kind of features (images, positions) that only the discriminator offers


class MethodName(NamedTuple):
    """A method: the encoder that extracts features, and the head or baseline that scores them, with its options."""

    encoder: str
    method: str  # such as energy or ash:variant=b:percentile=65

    def __str__(self) -> str:
        return f"{self.encoder}/{self.method}"


class BenchEncoder(Protocol):
    """A frozen network that extracts features for some methods."""

    name: str
    digest: str
    parameters: int

    def refusal(self, method: str) -> str:
        """Why it cannot extract what the method needs; empty where it can."""

    def needs_classes(self, method: str) -> bool:
        """Whether the method is fitted on the classes of the images, too."""

    def settings(self, method: str, images: int) -> dict[str, Setting]:
        """The method's options as they are when it is fitted on so many images; ParameterError for a value too many."""

    def needs(self, method: str) -> tuple[str, ...]:
        """The kinds of features that the method scores."""

    def extract(self, pixels: Pixels, kinds: Collection[str]) -> FeatureDict:
        """(images, size, size, 3) -> those kinds of features."""

    def method(self, name: str, samples: Pixels) -> Baseline:
        """The method, not fitted yet; on `samples`, a few normal images, it may measure the effect of corruptions."""


@dataclass(frozen=True, eq=False)
class HeadBaseline:
    """One of our heads with the interface of all baselines."""

    head: Head
    shifts: ProbeShifts = field(default_factory=dict)
    needs: ClassVar[tuple[str, ...]] = (LOGITS, STATISTICS)

    def fit(self, normal: FeatureDict) -> Self:
        return replace(self, head=self.head.fit(_head_features(normal), self.shifts))

    def score(self, features: FeatureDict) -> Array:
        return self.head.score(_head_features(features))


def _head_features(features: FeatureDict) -> Features:
    logits, statistics = (np.asarray(features[kind], np.float32) for kind in (LOGITS, STATISTICS))
    return Features(logits, statistics)


class DiscriminatorBenchEncoder:
    """The discriminator, in one dense pass over the image or at random patches."""

    def __init__(
        self, name: str, weights: Weights, *, patches: int | None, seed: int, device: str, batch_size: int
    ) -> None:
        self.encoder = DiscriminatorEncoder(
            weights, patches=patches or "dense", seed=seed, device=device, batch_size=batch_size
        )
        self.name = name
        self.parameters = sum(each.numel() for each in weights.discriminator.parameters())
        settings = f"{weights.digest} {patches} {seed if patches else 0}"
        self.digest = hashlib.sha256(settings.encode()).hexdigest()[:16]
        self._seed = seed
        self._shifts: dict[bytes, ProbeShifts] = {}

    def refusal(self, method: str) -> str:
        return "" if method in HEADS else f"it has the heads {', '.join(HEADS)} alone"

    def needs_classes(self, method: str) -> bool:
        return False

    def settings(self, method: str, images: int) -> dict[str, Setting]:
        return {}

    def needs(self, method: str) -> tuple[str, ...]:
        return HeadBaseline.needs

    def extract(self, pixels: Pixels, kinds: Collection[str]) -> FeatureDict:
        features = self.encoder.extract_pixels(pixels)
        return {LOGITS: features.logits, STATISTICS: features.statistics}

    def method(self, name: str, samples: Pixels) -> HeadBaseline:
        """The head; for the combined one, shifts are measured on the samples once."""
        if name != "combined":
            return HeadBaseline(get_head(name))
        key = hashlib.sha256(samples.tobytes()).digest()
        if key not in self._shifts:
            self._shifts[key] = measure_shifts(self.encoder.extract_pixels, samples[:N_PROBED], seed=self._seed)
        return HeadBaseline(get_head(name), self._shifts[key])

    def mean_features(self, pixels: Pixels) -> NDArray[np.float32]:
        """(images, channels): the last feature map, averaged over the image."""
        return self.encoder.mean_features(pixels)


class ClassifierBenchEncoder:
    """A classifier that was trained with labels on other images."""

    def __init__(self, backbone: Backbone) -> None:
        self.backbone = backbone
        self.name, self.digest, self.parameters = backbone.name, backbone.digest, backbone.parameters

    def refusal(self, method: str) -> str:
        kind = baseline_class(method)
        return "" if set(kind.needs) <= set(self.backbone.kinds) else kind.without

    def needs_classes(self, method: str) -> bool:
        return baseline_class(method).needs_classes

    def settings(self, method: str, images: int) -> dict[str, Setting]:
        """An option that so many images do not allow is an error: its name would say what was not done."""
        found = make_baseline(method, self.backbone.classifier).settings(images)
        for option, given in parse_options(method)[1].items():
            if found[option] != given:
                raise ParameterError(
                    f"{method}: {images:,} images to fit on allow no {option} above {found[option]}: choose a smaller "
                    "one, or fit on more images"
                )
        return found

    def needs(self, method: str) -> tuple[str, ...]:
        return baseline_class(method).needs

    def extract(self, pixels: Pixels, kinds: Collection[str]) -> FeatureDict:
        return self.backbone.extract(pixels, kinds)

    def method(self, name: str, samples: Pixels) -> Baseline:
        return make_baseline(name, self.backbone.classifier)


def baseline_class(method: str) -> type[ClassifierBaseline]:
    """ash:variant=b -> ASH."""
    return get_baseline(parse_options(method)[0])


def load_encoder(name: str, weights: Weights, *, seed: int, device: str, backbones: Path | None = None) -> BenchEncoder:
    """The encoder of that name; `weights` are those of the discriminator, `backbones` the folder of fetched ones."""
    if found := split_discriminator(name):
        released, patches = found
        weights = weights if released == OURS else load_pretrained(released)
        return DiscriminatorBenchEncoder(name, weights, patches=patches, seed=seed, device=device, batch_size=PART)
    return ClassifierBenchEncoder(load_backbone(name, device=device, folder=backbones))


def default_methods(backbones: Path | None = None, *, quick: bool = False) -> tuple[str, ...]:
    """Patterns for our heads, all baselines on the backbones that are fetched, and the paper's rule, unless quick."""
    fetched = (f"{name}/*" for name in BACKBONES if is_fetched(name, backbones))
    return (f"{OURS}/*", f"{SMALL_WEIGHTS}/combined", *([] if quick else [PAPER_RULE]), *fetched)


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
                f"{', '.join(HEADS)}; or one of {', '.join(BACKBONES)}, regnet=FOLDER, mobilenetv2=FOLDER, bit=FOLDER, "
                f"beitv2=FOLDER with METHOD {', '.join(BASELINES)}"
            )
        chosen |= dict.fromkeys(_with_options(name, options) if colon else name for name in matching)
    return list(chosen)


def _with_options(name: MethodName, options: str) -> MethodName:
    """The method with these options, which are always written in the same way."""
    if name.method not in BASELINES:
        raise ParameterError(f"{name}: a head has no options: leave out {options!r}")
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
    return [MethodName(name, head) for name in ours for head in HEADS] + [
        MethodName(name, method) for name in others for method in BASELINES
    ]
