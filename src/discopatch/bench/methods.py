"""The methods of a benchmark, ENCODER/METHOD, such as discopatch/components, paper-v1-64/logit, resnet50/knn:k=10."""

import hashlib
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import cache, partial
from itertools import islice
from pathlib import Path
from typing import TypeVar

import numpy as np

from discopatch.bench.baselines import BASELINES, Baseline, Setting, make_baseline, parse_options
from discopatch.bench.baselines.distances import ActivationCDF, Local, fit_stored_places, place_scores
from discopatch.bench.dataset import PART
from discopatch.bench.networks.base import (
    LOCAL,
    LOGITS,
    NO_CLASSES,
    PENULTIMATE,
    SCENE,
    STATISTICS,
    TONES,
    Array,
    Backbone,
    EncoderBackbone,
    FeatureDict,
)
from discopatch.bench.networks.fetch import BACKBONES, is_classifier, is_fetched, load_backbone, load_classifier
from discopatch.bench.networks.pixels import PixelStatistics
from discopatch.bench.tables import split_discriminator, split_method
from discopatch.encoders import DiscriminatorEncoder, Features, NetworkEncoder, OutsideNetwork, load_folder
from discopatch.errors import ParameterError
from discopatch.fitting import N_PROBED, N_SAMPLED
from discopatch.heads import (
    HEADS,
    ComponentsHead,
    Head,
    LogitHead,
    PlaceModel,
    ProbeShifts,
    get_head,
    make_trials,
    measure_shifts,
)
from discopatch.heads.trials import Trials
from discopatch.images import Pixels
from discopatch.model import Weights
from discopatch.pretrained import PAPER_WEIGHTS, PRETRAINED, SMALL_WEIGHTS, load_pretrained

T = TypeVar("T")

OURS = "discopatch"  # the weights of the run; other released weights go by their names
PAPER_RULE = f"{OURS}-64/logit"  # the paper's scoring rule on the weights of the run
PAPER_METHOD = f"{PAPER_WEIGHTS}-64/sigmoid"  # its scoring rule on weights by its recipe
WITHOUT_PLACES = "components:place=no"  # places, the largest features, are neither extracted nor stored
REFERENCES = (f"{OURS}/components", f"{OURS}/{WITHOUT_PLACES}")  # the first of them is compared with all others
WITH_PROBES = ("combined", "components")  # the heads that are fitted on known changes, too

# Plugins add to these, see `plugins.py`.
DISCRIMINATOR_METHODS = [*HEADS, "knn", "local"]
OTHER_HEADS = tuple(name for name in HEADS if not issubclass(HEADS[name], LogitHead))
CLASSIFIER_METHODS = [*(name for name, each in BASELINES.items() if SCENE not in each.needs), *OTHER_HEADS]
CLASS_FREE = [name for name, each in BASELINES.items() if not each.needs_classifier]
OUTSIDE_METHODS = [
    *(name for name in CLASS_FREE if set(BASELINES[name].needs) <= {PENULTIMATE, LOCAL}),
    *OTHER_HEADS,
]
PIXEL_METHODS = [name for name in CLASS_FREE if set(BASELINES[name].needs) <= set(PixelStatistics.kinds)]
SLOW = ("adascale", "combood")  # they need gradients, or read every activation
ENCODERS: dict[str, Callable[[], OutsideNetwork]] = {}
PLUGIN_DIGESTS: dict[str, str] = {}  # of the file, by the name that it registered


@dataclass(frozen=True, eq=False)
class FittedHead:
    """One of our heads, fitted, with the interface of a baseline."""

    head: Head
    needs: tuple[str, ...]
    places: PlaceModel | None = None  # where the head needs places

    def score(self, features: FeatureDict) -> Array:
        """Returns (images,) scores, higher for more out-of-distribution."""
        found = to_features(features, self.needs)
        if self.places is not None:
            found = found._replace(places=place_scores(self.places, found.places))
        return self.head.score(found)


def to_features(found: FeatureDict, kinds: Collection[str]) -> Features:
    """Those kinds as our heads take them; all others are empty."""
    none = np.empty((len(found[STATISTICS]), 0))
    logits, statistics, pooled, tones = (
        np.asarray(found[kind] if kind in kinds else none, np.float32)
        for kind in (LOGITS, STATISTICS, PENULTIMATE, TONES)
    )
    return Features(logits, statistics, pooled, found[LOCAL] if LOCAL in kinds else None, tones)


@dataclass(frozen=True, eq=False)
class BenchEncoder:
    """A frozen network, and the methods that score its features."""

    network: Backbone
    seed: int = 0

    @property
    def methods(self) -> Sequence[str]:
        """Those of a discriminator, which has logits, of a classifier, or of any other network."""
        if LOGITS in self.network.kinds:
            return DISCRIMINATOR_METHODS
        if SCENE in self.network.kinds:
            return PIXEL_METHODS
        return OUTSIDE_METHODS if self.network.classifier is NO_CLASSES else CLASSIFIER_METHODS

    def refusal(self, method: str, without_classes: str = "") -> str:
        """Why the network does not have the method; empty where it has.

        without_classes: why methods that are fitted on classes cannot be; empty where they can.
        """
        name = method_id(method)
        if name not in self.methods:
            return f"it only has the methods {', '.join(self.methods)}"
        if name not in BASELINES:
            return ""
        missing = set(self.needs(method)) - set(self.network.kinds)
        return BASELINES[name].without if missing else without_classes if BASELINES[name].needs_classes else ""

    def settings(self, method: str, images: int) -> dict[str, Setting]:
        """The method's options when it is fitted on so many images, or ParameterError where these are too few."""
        if method_id(method) in HEADS:
            return {}
        found = make_baseline(method, self.network.classifier).settings(images)
        for option, given in parse_options(method)[1].items():
            if found[option] != given:
                raise ParameterError(
                    f"{method}: {images:,} images to fit on allow no {option} above {found[option]}: choose a smaller "
                    "one, or fit on more images"
                )
        return found

    def needs(self, method: str) -> tuple[str, ...]:
        if method_id(method) in BASELINES:
            return BASELINES[method_id(method)].needs
        kinds = HEADS[method_id(method)].needs
        if method == WITHOUT_PLACES:
            kinds = tuple(kind for kind in kinds if kind != LOCAL)
        return tuple(kind for kind in kinds if kind in self.network.kinds)

    def fit(self, methods: Iterable[str], normal: FeatureDict, samples: Pixels) -> dict[str, Baseline | FittedHead]:
        """The methods, fitted on the features of normal images.

        Our heads are also fitted on changes of `samples`, the first normal images, as many as in the fit of a detector.
        """

        def extractor(kinds: tuple[str, ...], pixels: Pixels) -> Features:
            return to_features(self.network.extract(pixels, kinds), kinds)

        def extract_each(kinds: tuple[str, ...], images: Iterable[Pixels]) -> Iterator[Features]:
            remaining = iter(images)
            while part := list(islice(remaining, PART)):
                yield from extractor(kinds, np.stack(part)).one_by_one()

        @cache
        def shifts(*kinds: str) -> ProbeShifts:
            return measure_shifts(partial(extractor, kinds), samples[:N_PROBED], seed=self.seed)

        places = cache(lambda: fit_stored_places(normal[LOCAL], seed=self.seed))

        @cache
        def trials(kinds: tuple[str, ...]) -> Trials:
            tried, compare = list(samples[:N_SAMPLED]), places().compare if LOCAL in kinds else None
            rows = np.arange(len(tried))
            return make_trials(partial(extract_each, kinds), tried, rows, compare=compare, seed=self.seed)

        fitted: dict[str, Baseline | FittedHead] = {}
        for name in methods:
            head_id, needs = method_id(name), self.needs(name)
            if head_id in BASELINES:
                baseline = make_baseline(name, self.network.classifier)
                if isinstance(baseline, Local):
                    baseline = replace(baseline, device=self.network.device)
                elif isinstance(baseline, ActivationCDF):
                    baseline = replace(baseline, layer_sizes=self.network.layer_sizes)
                fitted[name] = checked(name, baseline.fit(normal), Baseline)
                continue
            head, own = get_head(head_id), places() if LOCAL in needs else None
            if head_id == "components":
                sizes = self.network.layer_sizes
                head = ComponentsHead(layer_sizes=sizes, trials=trials(needs), places=own, seed=self.seed)
            moved = [kind for kind in (STATISTICS, TONES) if kind in needs]
            normal_features = to_features(normal, needs)
            head = checked(name, head.fit(normal_features, shifts(*moved) if head_id in WITH_PROBES else {}), Head)
            # Components that do not count are dropped, and with them the features that they need.
            needs = tuple(kind for kind in needs if kind in head.needs)
            model = own.model.to(self.network.device) if own is not None and LOCAL in needs else None
            fitted[name] = FittedHead(head.to(self.network.device), needs, model)
        return fitted


def checked(name: str, found: T, kind: type) -> T:
    """What `fit` or an encoder of a plugin returned, or ParameterError where it is something else."""
    if not isinstance(found, kind):
        raise ParameterError(
            f"{name} returns {type(found).__name__}, not a {kind.__name__}: end its fit with return self"
        )
    return found


def method_id(method: str) -> str:
    """knn:k=10 -> knn."""
    return method.partition(":")[0]


def load_encoder(name: str, weights: Weights, *, seed: int, device: str, backbones: Path | None = None) -> BenchEncoder:
    """The encoder of that name.

    weights: of the encoder `discopatch`.
    backbones: the folder of fetched networks.
    """
    network: Backbone
    if found := split_discriminator(name):
        released, patches = found
        weights = weights if released == OURS else load_pretrained(released)
        places = () if patches else (LOCAL,)  # random patches have none
        kinds = (LOGITS, STATISTICS, PENULTIMATE, TONES, *places)
        digest = hashlib.sha256(f"{weights.digest} {patches} {seed if patches else 0}".encode()).hexdigest()[:16]
        parameters = sum(each.numel() for each in weights.discriminator.parameters())
        make = partial(
            DiscriminatorEncoder, weights, patches=patches or "dense", seed=seed, device=device, batch_size=PART
        )
        network = EncoderBackbone(name, digest, parameters, kinds, make)
    elif name == PixelStatistics.name:
        network = PixelStatistics()
    elif "=" in name and is_classifier(name):
        network = load_classifier(name, device=device)
    elif "=" in name or name in ENCODERS:
        outside = checked(name, ENCODERS[name](), OutsideNetwork) if name in ENCODERS else load_folder(name)
        make_outside = partial(NetworkEncoder, outside, device=device, batch_size=PART)
        digest = outside.digest
        if name in ENCODERS:  # features are stored, and its code may change
            digest = hashlib.sha256(f"{digest} {PLUGIN_DIGESTS.get(name)}".encode()).hexdigest()[:16]
        network = EncoderBackbone(name, digest, None, (STATISTICS, PENULTIMATE, TONES, LOCAL), make_outside)
    else:
        network = load_backbone(name, device=device, folder=backbones)
    return BenchEncoder(network, seed)


def default_methods(backbones: Path | None = None, *, quick: bool = False) -> tuple[str, ...]:
    """Patterns for all methods of our weights and of the fetched networks; the paper's and SLOW ones unless quick."""
    chosen = [name for name in CLASSIFIER_METHODS if not (quick and name in SLOW)]
    fetched = (f"{name}/{each}" for name in BACKBONES if is_fetched(name, backbones) for each in chosen)
    papers = [] if quick else [PAPER_RULE, PAPER_METHOD, f"{PAPER_WEIGHTS}/combined"]
    return (f"{OURS}/*", f"{SMALL_WEIGHTS}/combined", *papers, *fetched, *(f"{name}/*" for name in ENCODERS))


def choose_methods(patterns: Sequence[str]) -> list[str]:
    """The methods that match any of the patterns, each once, in the order of the patterns; * matches anything.

    Options that end a pattern, as in */knn:k=10, are those of all methods that match it.
    """
    chosen: dict[str, None] = {}
    for given in patterns:
        encoder, slash, method = given.rpartition("/")
        method, colon, options = method.partition(":")
        pattern = encoder + slash + method
        matching = [name for name in _all_methods(encoder) if fnmatchcase(name, pattern)]
        if not matching:
            raise ParameterError(
                f"unknown method {pattern!r}: give ENCODER/METHOD, * for any. ENCODER is {OURS} (the run's weights), "
                f"{', '.join(PRETRAINED)}, each in one dense pass, or with -N in N random patches, with METHOD "
                f"{', '.join(DISCRIMINATOR_METHODS)}; or {', '.join(BACKBONES)} or KIND=FOLDER of a "
                f"classifier of transformers with METHOD {', '.join(CLASSIFIER_METHODS)}; or KIND=FOLDER of others, "
                f"with METHOD {', '.join(OUTSIDE_METHODS)}; or pixels with METHOD {', '.join(PIXEL_METHODS)}"
            )
        chosen |= dict.fromkeys(_with_options(name, options) if colon else name for name in matching)
    return list(chosen)


def _with_options(name: str, options: str) -> str:
    """The method with these options, which are always written in the same way."""
    encoder, method = split_method(name)
    if f"{method}:{options}" == WITHOUT_PLACES:
        return f"{encoder}/{WITHOUT_PLACES}"
    if method not in BASELINES:
        raise ParameterError(f"{name}: a head has no options, except {WITHOUT_PLACES}: leave out {options!r}")
    found = parse_options(f"{method}:{options}")[1]
    return ":".join([name, *(f"{option}={str(value).removesuffix('.0')}" for option, value in found.items())])


def _all_methods(encoder: str) -> list[str]:
    """The methods of all encoders, with the encoder that a pattern names."""
    ours = [OURS, *PRETRAINED]
    if (found := split_discriminator(encoder)) and found[0] in ours and encoder not in ours:
        ours.append(encoder)
    by_kind = [(ours, DISCRIMINATOR_METHODS), (BACKBONES, CLASSIFIER_METHODS), (ENCODERS, OUTSIDE_METHODS)]
    by_kind.append(([PixelStatistics.name], PIXEL_METHODS))
    if "=" in encoder:
        by_kind.append(([encoder], CLASSIFIER_METHODS if is_classifier(encoder) else OUTSIDE_METHODS))
    return [f"{name}/{method}" for names, methods in by_kind for name in names for method in methods]
