"""A whole benchmark run: every set is preprocessed, every encoder extracts its features, every method scores them."""

import hashlib
import json
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from discopatch.bench.baselines import CLASSES, PENULTIMATE, Baseline, FeatureDict
from discopatch.bench.cost import LatencyTimer
from discopatch.bench.dataset import Digests, ImageSet, KeptImages, digest_of_set
from discopatch.bench.labels import patch_count, split_method
from discopatch.bench.methods import (
    OURS,
    REFERENCES,
    BenchEncoder,
    DiscriminatorBenchEncoder,
    MethodName,
    load_encoder,
)
from discopatch.bench.plan import BenchPlan, PlannedSet
from discopatch.bench.pool import PART, CorruptionPool
from discopatch.bench.preprocessing import AS_TRAINED, Protocol
from discopatch.bench.slips import check_slips, concerned_methods, effective_reading, encoder_reading, patch_scores
from discopatch.bench.store import FeatureStore, Results, Scores, ScoreStore
from discopatch.bench.summary import FORMAT, describe_data, measure_sets, provenance, summarise_protocol
from discopatch.encoders import resolve_device
from discopatch.errors import ParameterError, RunError
from discopatch.fitting import N_SAMPLED
from discopatch.images import Pixels
from discopatch.model import Weights
from discopatch.utils import prefetch, remove_leftovers, write_atomically, write_json

BenchProgress = Callable[[str, int, int], object]  # `activity` or `activity: set`, images done, images in all

RESULTS, SCORES, LATENCIES, MEAN_FEATURES = "results.json", "scores", "latency.json", "umap.npz"
AHEAD = 2  # parts that wait to be scored
TOGETHER = 256  # images whose features are held, stored and scored at once
N_MEAN = 120  # images of a set whose mean features are stored


def run_bench(
    plan: BenchPlan,
    methods: Sequence[MethodName],
    folder: Path,
    weights: Weights,
    pool: CorruptionPool,
    *,
    cache: Path | None = None,
    keep_images: Path | None = None,
    device: str = "auto",
    tf32: bool = False,
    backbones: Path | None = None,
    optional: Collection[MethodName] = (),
    notice: Callable[[str], object] = lambda text: None,
    progress: BenchProgress = lambda activity, done, total: None,
) -> Results:
    """Scores everything that is not scored yet, and writes the results of all that was asked for to the folder.

    `cache` keeps features, and `keep_images` the prepared images, for runs with other weights. With `tf32`, GPUs
    round the factors of products, which is faster and no longer the same to the last digit. Those methods which are
    `optional` are left out, with a notice, where they cannot be run; others are an error then.
    """
    start = time.perf_counter()
    for each in filter(None, (folder, cache, keep_images)):
        remove_leftovers(each, below=True)
    allow_tf32(tf32)
    encoders = {
        name: load_encoder(name, weights, seed=plan.seeds[0], device=device, backbones=backbones)
        for name in dict.fromkeys(each.encoder for each in methods)
    }
    left_out = {name: why for name in optional if (why := refusal(name, encoders[name.encoder], plan))}
    for name, why in left_out.items():
        notice(f"left out: {name}: {why}")
    methods = [name for name in methods if name not in left_out]
    features = FeatureStore(cache or folder / "features")
    runner = BenchRunner(plan, encoders, methods, folder, features, pool, progress, keep_images=keep_images)
    runner.run()
    results = runner.summarise()
    path = folder / RESULTS
    seconds = time.perf_counter() - start
    if path.exists():  # what the run took before it was stopped, or before something was added to it
        seconds += json.loads(path.read_text())["made"]["seconds"]
    origin = provenance(
        weights, seeds=plan.seeds, resamples=plan.resamples, device=resolve_device(device), seconds=seconds
    )
    results = {"format": FORMAT, "suite": plan.suite.name, "made": origin, **results}
    results["left_out"] = {str(name): why for name, why in left_out.items()}
    write_json(path, results)
    runner.store_mean_features()
    return results


@dataclass(eq=False)
class BenchRunner:
    """Everything that a run needs; what is stored in its folder already is not computed again."""

    plan: BenchPlan
    encoders: Mapping[str, BenchEncoder]
    methods: Sequence[MethodName]
    folder: Path
    features: FeatureStore
    pool: CorruptionPool
    progress: BenchProgress = lambda activity, done, total: None
    digests: Digests = field(default_factory=Digests)
    keep_images: Path | None = None

    def __post_init__(self) -> None:
        self.scores = ScoreStore(self.folder / SCORES)
        if not self.methods:
            raise ParameterError("no method is left that can be run: ask for others with --methods")
        for name in self.methods:
            if why := refusal(name, self.encoders[name.encoder], self.plan):
                raise ParameterError(f"{name} cannot be run: {why}; leave it out")
        self.settings = {
            name: self.encoders[name.encoder].settings(name.method, self.plan.fit) for name in self.methods
        }
        for protocol in self.plan.protocols:
            check_slips(self.plan.protocol(protocol), self.methods, self.encoders)

    def run(self) -> None:
        """Scores all sets under all protocols, after the checks."""
        self.progress("reading files", 0, 1)
        self.plan.check(self.digests, workers=self.pool.workers)
        for name in self.plan.protocols:
            self._run_protocol(self.plan.protocol(name))

    def _run_protocol(self, protocol: Protocol) -> None:
        fit_sets = {seed: self.plan.fit_set(protocol, seed) for seed in self.plan.seeds}
        sets = self.plan.sets(protocol)
        keys = {each.name: self._keys(each, fit_sets) for each in sets}
        missing = {
            name: tuple(found.keys() - self.scores.current(protocol.name, name, found)) for name, found in keys.items()
        }
        parts = [(each, part) for each in sets if missing[each.name] for part in each.images.parts(TOGETHER)]
        if not parts:
            return
        wanted = {key for found in missing.values() for key in found}
        fitted: dict[str, Baseline] = {}
        for seed, images in fit_sets.items():
            fitted |= self._fit(protocol, seed, images, wanted)
        self._time(fitted, sets[0].images)
        scored: list[dict[str, Scores]] = []
        with ThreadPoolExecutor(1) as thread:  # scores while the encoders extract the next features
            for each, part, future in prefetch(self._score(protocol, parts, missing, fitted, thread), AHEAD):
                scored.append(future.result())
                if part.first + len(part) == len(each.images):
                    scores = {key: np.concatenate([one[key] for one in scored]) for key in scored[0]}
                    self.scores.add(protocol.name, each.name, scores, keys[each.name])
                    scored.clear()

    def _score(
        self,
        protocol: Protocol,
        parts: Sequence[tuple[PlannedSet, ImageSet]],
        missing: Mapping[str, Sequence[str]],
        fitted: Mapping[str, Baseline],
        thread: ThreadPoolExecutor,
    ) -> Iterator[tuple[PlannedSet, ImageSet, Future[dict[str, Scores]]]]:
        def score(images: ImageSet, keys: Sequence[str], features: Mapping[str, FeatureDict]) -> dict[str, Scores]:
            return {key: self._scores(images, fitted[key], encoder_of(key), features) for key in keys}

        done, total = 0, sum(len(part) for _, part in parts)
        extracted = self._extract([(part, {encoder_of(key) for key in missing[each.name]}) for each, part in parts])
        for (each, part), features in zip(parts, extracted, strict=True):
            self.progress(f"scoring ({protocol.name}): {each.name}", done, total)
            yield each, part, thread.submit(score, part, missing[each.name], features)
            done += len(part)

    def _scores(self, images: ImageSet, method: Baseline, encoder: str, features: Mapping[str, FeatureDict]) -> Scores:
        """(images,), or (images, patches) where every patch is scored by itself."""
        if effective_reading(self.encoders[encoder], images.reading).single:
            return patch_scores(method, features[encoder])
        return method.score(features[encoder])

    def _keys(self, planned: PlannedSet, fit_sets: Mapping[int, ImageSet]) -> dict[str, str]:
        """By `seed:method`: a digest of the images, of those that are fitted on, of the network and of the settings."""
        images = self.digests.of(planned.images)
        keys = {}
        for seed, fit_set in fit_sets.items():
            fit, classes = self.digests.of(fit_set), digest_of_set(self.plan.fit_classes(seed))
            for name in self.methods:
                encoder = self.encoders[name.encoder]
                origin = f"{images} {fit} {encoder.digest} {name}"
                if settings := self.settings[name]:
                    origin += f" {json.dumps(settings, sort_keys=True)}"
                if encoder.needs_classes(name.method):
                    origin += f" {classes}"
                keys[f"{seed}:{name}"] = hashlib.sha256(origin.encode()).hexdigest()[:16]
        return keys

    def _fit(self, protocol: Protocol, seed: int, images: ImageSet, wanted: Collection[str]) -> dict[str, Baseline]:
        """By `seed:method`: every method whose scores are wanted, fitted on the images of that seed."""
        names = [name for name in self.methods if f"{seed}:{name}" in wanted]
        if not names:
            return {}
        self.progress(f"fitting ({protocol.name})", 0, len(images))
        encoders = {name.encoder for name in names}
        parts = list(self._extract([(part, encoders) for part in images.parts(TOGETHER)]))
        features = {encoder: concatenate([part[encoder] for part in parts]) for encoder in encoders}
        if classes := self.plan.fit_classes(seed):
            numbers = np.unique(classes, return_inverse=True)[1].astype(np.float64)
            features = {encoder: {**found, CLASSES: numbers} for encoder, found in features.items()}
        readers = {name: encoder_reading(self.encoders[name], images.reading) for name in encoders}
        samples = next(images.parts(N_SAMPLED)).load()
        return {
            f"{seed}:{name}": readers[name.encoder].method(name.method, samples).fit(features[name.encoder])
            for name in names
        }

    def _extract(self, parts: Sequence[tuple[ImageSet, Collection[str]]]) -> Iterator[dict[str, FeatureDict]]:
        """The features of each part by encoder; images are prepared ahead for those whose features are not stored."""
        work = []
        for images, names in parts:
            digests = {name: self._digest(name, images) for name in names}
            new = [
                name
                for name in names
                if not self.features.holds(self.encoders[name].digest, digests[name], self._kinds(name))
            ]
            work.append((images, digests, new))
        chunks = (chunk for images, _, new in work if new for chunk in images.parts(PART))
        pixels = self.pool.stream(map(self._loader, chunks))
        for images, digests, new in work:
            readers = {name: encoder_reading(self.encoders[name], images.reading) for name in new}
            extracted: dict[str, list[FeatureDict]] = {name: [] for name in new}
            for _ in images.parts(PART) if new else ():
                chunk = next(pixels)
                for name in new:
                    extracted[name].append(readers[name].extract(chunk, self._kinds(name)))
            features = {name: concatenate(chunks) for name, chunks in extracted.items()}
            for name, digest in digests.items():
                if name in features:
                    self.features.write(self.encoders[name].digest, digest, features[name])
                else:
                    features[name] = self._stored(name, digest)
            yield features

    def _loader(self, images: ImageSet) -> Callable[[], Pixels]:
        """Prepares the images, or finds them where they are kept; how the discriminator reads them does not matter."""
        if self.keep_images is None:
            return images.load
        return KeptImages(self.keep_images, images, self.digests.of(replace(images, reading=AS_TRAINED))).load

    def _digest(self, encoder: str, images: ImageSet) -> str:
        """That of the images as far as it concerns the encoder: slips in their reading need not."""
        reading = effective_reading(self.encoders[encoder], images.reading)
        return self.digests.of(replace(images, reading=reading))

    def _stored(self, encoder: str, digest: str) -> FeatureDict:
        features = self.features.read(self.encoders[encoder].digest, digest, self._kinds(encoder))
        if features is None:
            raise RunError(f"features vanished from {self.features.folder}: run the same command again")
        return features

    def _kinds(self, encoder: str) -> tuple[str, ...]:
        """The kinds of features that the methods of this run need of the encoder."""
        used = [name.method for name in self.methods if name.encoder == encoder]
        return tuple(sorted({kind for method in used for kind in self.encoders[encoder].needs(method)}))

    def _time(self, fitted: Mapping[str, Baseline], images: ImageSet) -> None:
        """Measures the latency of each method that has none yet, on one image."""
        timer = LatencyTimer(next(images.parts(1)).load())
        known = self.latencies()
        self.progress("timing one image", 0, 1)
        for key, method in fitted.items():
            name = key.partition(":")[2]
            if name not in known:
                known[name] = timer.milliseconds(self.encoders[encoder_of(key)], method)
        write_json(self.folder / LATENCIES, known)

    def latencies(self) -> dict[str, float]:
        """Milliseconds by method, as far as they are measured."""
        path = self.folder / LATENCIES
        known: dict[str, float] = json.loads(path.read_text()) if path.exists() else {}
        return known

    def summarise(self) -> Results:
        """The results of all methods of this run; tables and plots are made from them."""
        plan, names, latencies = self.plan, [str(name) for name in self.methods], self.latencies()
        reference = next((name for name in REFERENCES if name in names), names[0])
        protocols = {}
        for protocol in plan.protocols:
            self.progress(f"resampling ({protocol})", 0, 1)
            measured = measure_sets(plan, protocol, names, self.scores, self.pool)
            protocols[protocol] = summarise_protocol(plan, measured, names, reference)
            if slips := plan.protocol(protocol).slips:
                protocols[protocol]["slips"] = concerned_methods(slips, self.methods, self.encoders)
        return {
            "sizes": {"fit": plan.fit, "test": len(plan.sets(plan.protocol(plan.protocols[0]))[0].images)},
            "methods": {
                str(name): {
                    "encoder": name.encoder,
                    "digest": self.encoders[name.encoder].digest,
                    "parameters": self.encoders[name.encoder].parameters,
                    "milliseconds": latencies.get(str(name)),
                    "patches": patch_count(str(name)),
                    "settings": self.settings[name],
                }
                for name in self.methods
            },
            "protocols": protocols,
            "data": {protocol: describe_data(plan, protocol, self.digests) for protocol in plan.protocols},
        }

    def store_mean_features(self) -> None:
        """Stores the discriminator's mean features of some images of each set, for a map of where the sets lie."""
        encoder = self.encoders.get(OURS)
        if not isinstance(encoder, DiscriminatorBenchEncoder):
            return
        found = {}
        for planned in self.plan.sets(self.plan.protocol(self.plan.protocols[0])):
            if planned.group in ("test", "near", "far"):
                self.progress(f"mean features: {planned.name}", 0, 1)
                found[planned.name] = self._mean_features(encoder, planned.images)

        def save(path: Path) -> None:
            with path.open("wb") as file:  # given a path, numpy would rename it
                np.savez(file, allow_pickle=False, **found)

        write_atomically(self.folder / MEAN_FEATURES, save)

    def _mean_features(self, encoder: DiscriminatorBenchEncoder, images: ImageSet) -> NDArray[np.floating]:
        first = next(images.parts(N_MEAN))
        scored, own = self._digest(OURS, next(images.parts(TOGETHER))), f"{self.digests.of(first)} mean features"
        for digest in (scored, own):
            if stored := self.features.read(encoder.digest, digest, (PENULTIMATE,)):
                return stored[PENULTIMATE][:N_MEAN]
        features = concatenate([encoder.extract(part.load(), (PENULTIMATE,)) for part in first.parts(PART)])
        self.features.write(encoder.digest, own, features)
        return features[PENULTIMATE]


def load_mean_features(folder: Path) -> dict[str, NDArray[np.floating]] | None:
    """The mean features (images, channels) of each set of a run, if it has any."""
    path = folder / MEAN_FEATURES
    return dict(np.load(path, allow_pickle=False)) if path.exists() else None


def refusal(name: MethodName, encoder: BenchEncoder, plan: BenchPlan) -> str:
    """Why the method cannot be run; empty where it can."""
    return encoder.refusal(name.method) or (plan.without_classes() if encoder.needs_classes(name.method) else "")


def encoder_of(key: str) -> str:
    """0:resnet50/energy -> resnet50."""
    return split_method(key.partition(":")[2])[0]


def concatenate(parts: Sequence[FeatureDict]) -> FeatureDict:
    return {kind: np.concatenate([part[kind] for part in parts]) for kind in parts[0]}


def allow_tf32(allowed: bool) -> None:
    """Whether GPUs may round the factors of float32 products to TF32."""
    torch.backends.cuda.matmul.allow_tf32 = allowed
    torch.backends.cudnn.allow_tf32 = allowed
