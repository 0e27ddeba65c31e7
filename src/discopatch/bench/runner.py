"""A benchmark run: every set is preprocessed, every encoder extracts its features, every method scores them."""

import hashlib
import json
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

from discopatch.bench import summary
from discopatch.bench.baselines import CLASSES, Baseline, Setting
from discopatch.bench.dataset import PART, BenchPlan, CorruptionPool, ImageSet, joined_digest
from discopatch.bench.methods import (
    OURS,
    PLUGIN_DIGESTS,
    REFERENCES,
    FittedHead,
    load_encoder,
    method_id,
)
from discopatch.bench.networks.base import Array, FeatureDict
from discopatch.bench.summary import Results
from discopatch.bench.tables import split_discriminator, split_method
from discopatch.encoders import resolve_device
from discopatch.errors import ParameterError
from discopatch.fitting import N_SAMPLED
from discopatch.model import Weights
from discopatch.utils import remove_leftovers, write_json

BenchProgress = Callable[[str, int, int], object]  # `activity` or `activity: set`, images done, images in all

FORMAT = 2
FEATURES = 2  # the version of stored features and scores; those of another are computed again
RESULTS, SCORES, LATENCIES = "results.json", "scores", "latency.json"
TOGETHER = 256  # images whose features are held, stored and scored at once
WARM_UP, MIN_REPEATS, MAX_REPEATS = 2, 3, 50  # calls of which the time is taken


@dataclass(eq=False)
class BenchRun:
    """A run and its folder; what is stored there already is not computed again.

    Scores are stored by `seed:method`, such as 0:resnet50/energy.
    weights: those of the encoder `discopatch`.
    cache: the folder for features. Default: in the folder of the run.
    backbones: the folder of fetched networks.
    weights_name: the name in the results of the weights, such as their file's. Default: discopatch.
    plugins: the digest of each file of a plugin, by its name.
    optional: methods that are left out, with a notice, where they cannot be run; others are an error then.
    """

    plan: BenchPlan
    methods: Sequence[str]
    folder: Path
    weights: Weights
    pool: CorruptionPool
    _: KW_ONLY
    cache: Path | None = None
    device: str = "auto"
    backbones: Path | None = None
    weights_name: str | None = None
    plugins: Mapping[str, str] = field(default_factory=dict)
    optional: Collection[str] = ()
    notice: Callable[[str], object] = lambda text: None
    progress: BenchProgress = lambda activity, done, total: None

    def __post_init__(self) -> None:
        self.start = time.perf_counter()
        self.features, self.scores = self.cache or self.folder / "features", self.folder / SCORES
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
        options: Any = {"seed": self.plan.seeds[0], "device": self.device, "backbones": self.backbones}
        names = dict.fromkeys(split_method(each)[0] for each in self.methods)
        self.encoders = {name: load_encoder(name, self.weights, **options) for name in names}
        self.left_out: dict[str, str] = {}
        self.settings: dict[str, dict[str, Setting]] = {}
        for name in self.methods:
            encoder, method = split_method(name)
            if why := self.encoders[encoder].refusal(method, self.plan.without_classes()):
                if name not in self.optional:
                    raise ParameterError(f"{name} cannot be run: {why}; leave it out")
                self.left_out[name] = why
                self.notice(f"left out: {name}: {why}")
            else:
                self.settings[name] = self.encoders[encoder].settings(method, self.plan.fit)
        self.methods = list(self.settings)
        if not self.methods:
            raise ParameterError("no method is left that can be run: choose others with --methods")

    def run(self) -> Results:
        """Scores everything that is not scored yet, and writes the results of this run to the folder."""
        remove_leftovers(self.folder, below=True)
        remove_leftovers(self.features, below=True)
        self.score()
        results = {**self.summarise(), "left_out": self.left_out}
        names = {each: self._shown(split_method(each)[0]) for each in [*self.methods, *self.left_out]}
        results = rename(results, {each: f"{encoder}/{split_method(each)[1]}" for each, encoder in names.items()})
        path, plan = self.folder / RESULTS, self.plan
        seconds = time.perf_counter() - self.start
        if path.exists():  # the time before the run was stopped, or before something was added to it
            seconds += json.loads(path.read_text())["made"]["seconds"]
        device = resolve_device(self.device)
        origin = summary.provenance(
            self.weights, seeds=plan.seeds, resamples=plan.resamples, device=device, seconds=seconds
        )
        origin["plugins"] = dict(self.plugins)
        results = {"format": FORMAT, "suite": plan.suite.name, "made": origin, **results}
        write_json(path, results)
        return results

    def score(self) -> None:
        """Scores all sets under all protocols, after the checks."""
        self.progress("reading files", 0, 1)
        self.plan.check(workers=self.pool.workers)
        for protocol in self.plan.protocols:
            fit_sets = {seed: self.plan.fit_set(protocol, seed) for seed in self.plan.seeds}
            sets = self.plan.sets(protocol)
            keys = {each.name: self._keys(each, fit_sets) for each in sets}
            missing: dict[str, list[str]] = {}
            for name, found in keys.items():
                stored = summary.stored_keys(summary.scores_path(self.scores / protocol, name))
                missing[name] = [method for method, key in found.items() if stored.get(method) != key]
            parts = [(each, part) for each in sets if missing[each.name] for part in each.parts(TOGETHER)]
            if not parts:
                continue
            wanted = {key for found in missing.values() for key in found}
            fitted: dict[str, Baseline | FittedHead] = {}
            for seed, images in fit_sets.items():
                self.progress(f"fitting ({protocol})", 0, len(images))
                fitted |= self._fit(seed, images, [name for name in self.methods if f"{seed}:{name}" in wanted])
            self.progress("timing one image", 0, 1)
            self._time(fitted, sets[0])
            scored: list[dict[str, Array]] = []
            done, total = 0, sum(len(part) for _, part in parts)
            encoders = [{encoder_of(key) for key in missing[each.name]} for each, _ in parts]
            extracted = self._extract([part for _, part in parts], encoders)
            for (each, part), features in zip(parts, extracted, strict=True):
                self.progress(f"scoring ({protocol}): {each.name}", done, total)
                scored.append({key: score_part(key, fitted[key], features, len(part)) for key in missing[each.name]})
                done += len(part)
                if part.first + len(part) == len(each):
                    scores = {key: np.concatenate([one[key] for one in scored]) for key in scored[0]}
                    summary.add_arrays(summary.scores_path(self.scores / protocol, each.name), scores, keys[each.name])
                    scored.clear()

    def _keys(self, images: ImageSet, fit_sets: Mapping[int, ImageSet]) -> dict[str, str]:
        """By `seed:method`: a digest of the images, of those that are fitted on, of the network and of the settings."""
        keys = {}
        for seed, fit_set in fit_sets.items():
            same = [images.digest, fit_set.digest, *self.plan.fit_classes(seed)]
            for name, settings in self.settings.items():
                own = [str(FEATURES), self._digest(split_method(name)[0]), name, json.dumps(settings, sort_keys=True)]
                code = PLUGIN_DIGESTS.get(method_id(split_method(name)[1]))
                keys[f"{seed}:{name}"] = joined_digest([*own, *same, *([code] if code else [])])
        return keys

    def _fit(self, seed: int, images: ImageSet, names: Sequence[str]) -> dict[str, Baseline | FittedHead]:
        """By `seed:method`: the named methods, fitted on the images of that seed."""
        if not names:
            return {}
        methods: dict[str, list[str]] = {}
        for encoder, method in map(split_method, names):
            methods.setdefault(encoder, []).append(method)
        parts = list(images.parts(TOGETHER))
        extracted = list(self._extract(parts, [methods] * len(parts)))
        samples = next(images.parts(N_SAMPLED)).load()
        classes = np.unique(self.plan.fit_classes(seed), return_inverse=True)[1].astype(np.float64)
        fitted: dict[str, Baseline | FittedHead] = {}
        for encoder, chosen in methods.items():
            features = {**concatenate([part[encoder] for part in extracted]), CLASSES: classes}
            found = self.encoders[encoder].fit(chosen, features, samples)
            fitted |= {f"{seed}:{encoder}/{method}": each for method, each in found.items()}
        return fitted

    def _extract(self, parts: Sequence[ImageSet], names: Sequence[Collection[str]]) -> Iterator[dict[str, FeatureDict]]:
        """The features of each part by encoder, of which each part has its names.

        Images are prepared ahead for those encoders whose features are not stored.
        """
        new = [
            [
                name
                for name in encoders
                if not set(self._kinds(name)) <= summary.stored_keys(self._path(part, name)).keys()
            ]
            for part, encoders in zip(parts, names, strict=True)
        ]
        loads = (chunk.load for part, some in zip(parts, new, strict=True) if some for chunk in part.parts(PART))
        pixels = self.pool.stream(loads)
        for part, encoders, some in zip(parts, names, new, strict=True):
            extracted: dict[str, list[FeatureDict]] = {name: [] for name in some}
            for _ in part.parts(PART) if some else ():
                chunk = next(pixels)
                for name in some:
                    extracted[name].append(self.encoders[name].network.extract(chunk, self._kinds(name)))
            features: dict[str, FeatureDict] = {}
            for name in encoders:
                if name in extracted:
                    found = features[name] = concatenate(extracted[name])
                    summary.add_arrays(self._path(part, name), found, dict.fromkeys(found, ""))
                else:
                    features[name] = summary.read_arrays(self._path(part, name), self._kinds(name))
            yield features

    def _path(self, images: ImageSet, encoder: str) -> Path:
        name = hashlib.sha256(f"{FEATURES} {self._digest(encoder)} {images.digest}".encode()).hexdigest()[:32]
        return self.features / name[:2] / f"{name}.safetensors"

    def _shown(self, encoder: str) -> str:
        """The name of an encoder in the results: discopatch-64 -> mine.safetensors-64."""
        own = split_discriminator(encoder)
        return (
            self.weights_name + encoder.removeprefix(OURS) if self.weights_name and own and own[0] == OURS else encoder
        )

    def _digest(self, encoder: str) -> str:
        return self.encoders[encoder].network.digest

    def _kinds(self, encoder: str) -> tuple[str, ...]:
        """The kinds of features that the methods of this run need of the encoder."""
        used = [method for name, method in map(split_method, self.methods) if name == encoder]
        return tuple(sorted({kind for method in used for kind in self.encoders[encoder].needs(method)}))

    def _time(self, fitted: Mapping[str, Baseline | FittedHead], images: ImageSet) -> None:
        """Measures the latency of each method that has none yet, on one image, as in the paper's table.

        An extraction is timed once for all methods that need the same kinds of features.
        """
        image, known = next(images.parts(1)).load(), self.latencies()
        extractions: dict[tuple[str, tuple[str, ...]], tuple[float, FeatureDict]] = {}
        for key, method in fitted.items():
            name, encoder = key.partition(":")[2], encoder_of(key)
            if name in known:
                continue
            if (encoder, method.needs) not in extractions:
                extract = partial(self.encoders[encoder].network.extract, image, method.needs)
                extractions[encoder, method.needs] = median_milliseconds(extract, seconds=1.0), extract()
            duration, features = extractions[encoder, method.needs]
            known[name] = round(duration + median_milliseconds(partial(method.score, features), seconds=0.1), 3)
        write_json(self.folder / LATENCIES, known)

    def latencies(self) -> dict[str, float]:
        """The measured milliseconds by method."""
        path = self.folder / LATENCIES
        return json.loads(path.read_text()) if path.exists() else {}

    def summarise(self) -> Results:
        """The results of all methods of this run; tables and plots are made from them."""
        plan, names, latencies = self.plan, self.methods, self.latencies()
        reference = next((name for name in REFERENCES if name in names), names[0])
        methods, protocols, data = {}, {}, {}
        for name in names:
            encoder = split_method(name)[0]
            discriminator = split_discriminator(encoder)
            methods[name] = {
                "encoder": self._shown(encoder),
                "digest": self._digest(encoder),
                "parameters": self.encoders[encoder].network.parameters,
                "milliseconds": latencies.get(name),
                "patches": discriminator[1] if discriminator else None,
                "settings": self.settings[name],
            }
        for protocol in plan.protocols:
            self.progress(f"resampling ({protocol})", 0, 1)
            protocols[protocol] = summary.summarise_protocol(plan, protocol, names, reference, self.scores, self.pool)
            sets = [*plan.sets(protocol), *(plan.fit_set(protocol, seed) for seed in plan.seeds)]
            data[protocol] = {images.name: summary.describe_set(images) for images in sets}
        sizes = {"fit": plan.fit, "test": len(plan.sets(plan.protocols[0])[0])}
        return {"sizes": sizes, "methods": methods, "protocols": protocols, "data": data}


def score_part(key: str, method: Baseline | FittedHead, features: Mapping[str, FeatureDict], images: int) -> Array:
    """The scores (images,), or ParameterError where a method of a plugin gives others."""
    scores = np.asarray(method.score(features[encoder_of(key)]), np.float64)
    if scores.shape != (images,) or np.isnan(scores).any():
        problem = "NaN" if scores.shape == (images,) else f"shape {scores.shape} for {images} images"
        raise ParameterError(f"{key.partition(':')[2]} gives scores of {problem}: return one number for each image")
    return scores


def rename(content: Any, names: Mapping[str, str]) -> Any:
    """Results in which methods have other names."""
    if isinstance(content, Mapping):
        return {names.get(key, key): rename(each, names) for key, each in content.items()}
    return names.get(content, content) if isinstance(content, str) else content


def encoder_of(key: str) -> str:
    """0:resnet50/energy -> resnet50."""
    return key.partition(":")[2].rpartition("/")[0]


def concatenate(parts: Sequence[FeatureDict]) -> FeatureDict:
    return {kind: np.concatenate([part[kind] for part in parts]) for kind in parts[0]}


def median_milliseconds(call: Callable[[], object], *, seconds: float) -> float:
    """The median duration of as many calls as fit into `seconds`, with the work of a GPU."""
    for _ in range(WARM_UP):
        call()
    durations: list[float] = []
    while len(durations) < MIN_REPEATS or (len(durations) < MAX_REPEATS and sum(durations) < 1000 * seconds):
        start = time.perf_counter()
        call()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        durations.append(1000 * (time.perf_counter() - start))
    return median(durations)
