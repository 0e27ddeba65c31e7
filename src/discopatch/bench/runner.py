"""A benchmark run: every set is preprocessed, every encoder extracts its features, every method scores them."""

import hashlib
import json
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch

from discopatch.bench.baselines import CLASSES, Baseline
from discopatch.bench.cost import LatencyTimer
from discopatch.bench.dataset import PART, CorruptionPool, Digests, ImageSet, digest_of_set
from discopatch.bench.labels import patch_count, split_method
from discopatch.bench.methods import REFERENCES, BenchEncoder, MethodName, load_encoder
from discopatch.bench.networks.base import FeatureDict
from discopatch.bench.plan import BenchPlan, PlannedSet
from discopatch.bench.preprocessing import Protocol
from discopatch.bench.store import FeatureStore, Results, Scores, ScoreStore
from discopatch.bench.summary import FORMAT, describe_data, measure_sets, provenance, summarise_protocol
from discopatch.encoders import resolve_device
from discopatch.errors import ParameterError
from discopatch.fitting import N_SAMPLED
from discopatch.model import Weights
from discopatch.utils import remove_leftovers, write_json

BenchProgress = Callable[[str, int, int], object]  # `activity` or `activity: set`, images done, images in all

RESULTS, SCORES, LATENCIES = "results.json", "scores", "latency.json"
TOGETHER = 256  # images whose features are held, stored and scored at once


def run_bench(
    plan: BenchPlan,
    methods: Sequence[MethodName],
    folder: Path,
    weights: Weights,
    pool: CorruptionPool,
    *,
    cache: Path | None = None,
    device: str = "auto",
    backbones: Path | None = None,
    optional: Collection[MethodName] = (),
    notice: Callable[[str], object] = lambda text: None,
    progress: BenchProgress = lambda activity, done, total: None,
) -> Results:
    """Scores everything that is not scored yet, and writes the results of this run to the folder.

    cache: the folder for features. Default: in the folder of the run.
    optional: methods that are left out, with a notice, where they cannot be run; others are an error then.
    """
    start = time.perf_counter()
    for each in filter(None, (folder, cache)):
        remove_leftovers(each, below=True)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    encoders = {
        name: load_encoder(name, weights, seed=plan.seeds[0], device=device, backbones=backbones)
        for name in dict.fromkeys(each.encoder for each in methods)
    }
    left_out = {name: why for name in optional if (why := refusal(name, encoders[name.encoder], plan))}
    for name, why in left_out.items():
        notice(f"left out: {name}: {why}")
    methods = [name for name in methods if name not in left_out]
    features = FeatureStore(cache or folder / "features")
    runner = BenchRunner(plan, encoders, methods, folder, features, pool, progress)
    runner.run()
    results = runner.summarise()
    path = folder / RESULTS
    seconds = time.perf_counter() - start
    if path.exists():  # the time before the run was stopped, or before something was added to it
        seconds += json.loads(path.read_text())["made"]["seconds"]
    origin = provenance(
        weights, seeds=plan.seeds, resamples=plan.resamples, device=resolve_device(device), seconds=seconds
    )
    results = {"format": FORMAT, "suite": plan.suite.name, "made": origin, **results}
    results["left_out"] = {str(name): why for name, why in left_out.items()}
    write_json(path, results)
    return results


@dataclass(eq=False)
class BenchRunner:
    """A run and its folder; what is stored there already is not computed again."""

    plan: BenchPlan
    encoders: Mapping[str, BenchEncoder]
    methods: Sequence[MethodName]
    folder: Path
    features: FeatureStore
    pool: CorruptionPool
    progress: BenchProgress = lambda activity, done, total: None
    digests: Digests = field(default_factory=Digests)

    def __post_init__(self) -> None:
        self.scores = ScoreStore(self.folder / SCORES)
        if not self.methods:
            raise ParameterError("no method is left that can be run: choose others with --methods")
        for name in self.methods:
            if why := refusal(name, self.encoders[name.encoder], self.plan):
                raise ParameterError(f"{name} cannot be run: {why}; leave it out")
        self.settings = {
            name: self.encoders[name.encoder].settings(name.method, self.plan.fit) for name in self.methods
        }

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
        done, total = 0, sum(len(part) for _, part in parts)
        extracted = self._extract([(part, {encoder_of(key) for key in missing[each.name]}) for each, part in parts])
        for (each, part), features in zip(parts, extracted, strict=True):
            self.progress(f"scoring ({protocol.name}): {each.name}", done, total)
            scored.append({key: fitted[key].score(features[encoder_of(key)]) for key in missing[each.name]})
            done += len(part)
            if part.first + len(part) == len(each.images):
                scores = {key: np.concatenate([one[key] for one in scored]) for key in scored[0]}
                self.scores.add(protocol.name, each.name, scores, keys[each.name])
                scored.clear()

    def _keys(self, planned: PlannedSet, fit_sets: Mapping[int, ImageSet]) -> dict[str, str]:
        """By `seed:method`: a digest of the images, of those that are fitted on, of the network and of the settings."""
        images = self.digests.of(planned.images)
        keys = {}
        for seed, fit_set in fit_sets.items():
            fit, classes = self.digests.of(fit_set), digest_of_set(self.plan.fit_classes(seed))
            for name in self.methods:
                encoder = self.encoders[name.encoder]
                origin = f"{images} {fit} {encoder.network.digest} {name}"
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
        samples = next(images.parts(N_SAMPLED)).load()
        return {
            f"{seed}:{name}": self.encoders[name.encoder].method(name.method, samples).fit(features[name.encoder])
            for name in names
        }

    def _extract(self, parts: Sequence[tuple[ImageSet, Collection[str]]]) -> Iterator[dict[str, FeatureDict]]:
        """The features of each part by encoder; images are prepared ahead for those whose features are not stored."""
        work = []
        for images, names in parts:
            digest = self.digests.of(images)
            stored = {
                name for name in names if self.features.holds(self._encoder_digest(name), digest, self._kinds(name))
            }
            work.append((images, digest, stored, [name for name in names if name not in stored]))
        pixels = self.pool.stream(chunk.load for images, *_, new in work if new for chunk in images.parts(PART))
        for images, digest, stored, new in work:
            extracted: dict[str, list[FeatureDict]] = {name: [] for name in new}
            for _ in images.parts(PART) if new else ():
                chunk = next(pixels)
                for name in new:
                    extracted[name].append(self.encoders[name].network.extract(chunk, self._kinds(name)))
            features = {name: concatenate(chunks) for name, chunks in extracted.items()}
            for name, found in features.items():
                self.features.write(self._encoder_digest(name), digest, found)
            for name in stored:
                features[name] = self.features.read(self._encoder_digest(name), digest, self._kinds(name))
            yield features

    def _encoder_digest(self, encoder: str) -> str:
        return self.encoders[encoder].network.digest

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
                known[name] = timer.milliseconds(self.encoders[encoder_of(key)].network, method)
        write_json(self.folder / LATENCIES, known)

    def latencies(self) -> dict[str, float]:
        """The measured milliseconds by method."""
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
        return {
            "sizes": {"fit": plan.fit, "test": len(plan.sets(plan.protocol(plan.protocols[0]))[0].images)},
            "methods": {
                str(name): {
                    "encoder": name.encoder,
                    "digest": self._encoder_digest(name.encoder),
                    "parameters": self.encoders[name.encoder].network.parameters,
                    "milliseconds": latencies.get(str(name)),
                    "patches": patch_count(str(name)),
                    "settings": self.settings[name],
                }
                for name in self.methods
            },
            "protocols": protocols,
            "data": {protocol: describe_data(plan, protocol, self.digests) for protocol in plan.protocols},
        }


def refusal(name: MethodName, encoder: BenchEncoder, plan: BenchPlan) -> str:
    """Why the method cannot be run; empty where it can."""
    return encoder.refusal(name.method) or (plan.without_classes() if encoder.needs_classes(name.method) else "")


def encoder_of(key: str) -> str:
    """0:resnet50/energy -> resnet50."""
    return split_method(key.partition(":")[2])[0]


def concatenate(parts: Sequence[FeatureDict]) -> FeatureDict:
    return {kind: np.concatenate([part[kind] for part in parts]) for kind in parts[0]}
