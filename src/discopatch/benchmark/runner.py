"""The benchmark itself: every set along its way, past every eye, scored by every method, once."""

import hashlib
import json
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np

from discopatch.baselines.method import Features, Method
from discopatch.benchmark.benchplan import BenchPlan, PlannedSet
from discopatch.benchmark.eyes import Eye
from discopatch.benchmark.featurecache import FeatureCache
from discopatch.benchmark.imagefile import File
from discopatch.benchmark.imageset import Digests, ImageSet
from discopatch.benchmark.latency import Stopwatch
from discopatch.benchmark.methods import MethodName
from discopatch.benchmark.pool import PART, Pool
from discopatch.benchmark.protocols import Protocol
from discopatch.benchmark.scorestore import Scores, ScoreStore
from discopatch.benchmark.ways import Way, travel
from discopatch.files import write_json
from discopatch.fitting import CHANGED
from discopatch.images import ImageRefused, Limits, Pixels
from discopatch.images.decode import decode

Tell = Callable[[str, int, int], object]  # what is being done, images done, images in all

SCORES, LATENCIES = "scores", "latency.json"
AHEAD = 2  # such parts that wait to be scored
TOGETHER = 256  # images whose features are held, stored and scored at once


@dataclass(frozen=True, eq=False)
class Job:
    """Some images of a set that some eyes have not seen yet, and the methods that still want their features."""

    planned: PlannedSet
    images: ImageSet
    digest: str  # of the images
    wanted: tuple[str, ...]  # seed:method
    unseen: tuple[str, ...]  # eyes


@dataclass(eq=False)
class Runner:
    """Everything that a run needs; what is in its folder already is not done again."""

    plan: BenchPlan
    eyes: dict[str, Eye]
    methods: Sequence[MethodName]
    folder: Path
    cache: FeatureCache
    pool: Pool
    tell: Tell = lambda what, done, total: None
    digests: Digests = field(default_factory=Digests)

    def __post_init__(self) -> None:
        self.scores = ScoreStore(self.folder / SCORES)
        for name in self.methods:
            if name.method not in self.eyes[name.eye].methods:
                raise ValueError(f"{name}: {name.eye} does not show what {name.method} needs; leave it out")

    def run(self) -> None:
        """All protocols, after the checks."""
        self.tell("reading files", 0, 1)
        self.plan.check(self.digests, workers=self.pool.workers)
        for name in self.plan.protocols:
            self._run_protocol(self.plan.protocol(name))

    def _run_protocol(self, protocol: Protocol) -> None:
        planned = self.plan.sets(protocol)
        jobs = [job for each in planned for job in self._jobs(protocol, each)]
        wanted = sorted({key for job in jobs for key in job.wanted})
        if not wanted:
            return
        fitted = {key: method for seed in self.plan.seeds for key, method in self._fit(protocol, seed, wanted).items()}
        self._time(fitted, planned[0].images)
        total, done = sum(len(job.images) for job in jobs), 0
        pending: deque[tuple[Job, Future[dict[str, Scores]]]] = deque()
        parts: list[dict[str, Scores]] = []

        def settle() -> None:
            job, scores = pending.popleft()
            parts.append(scores.result())
            if job.images.first + len(job.images) == len(job.planned.images):
                self._store(protocol, job.planned, parts)
                parts.clear()

        with ThreadPoolExecutor(1) as scoring:  # scores while the eyes look at the next images
            for job, features in self._see(jobs):
                self.tell(f"{protocol.name}: {job.planned.name}", done, total)
                pending.append((job, scoring.submit(score, fitted, job.wanted, features)))
                done += len(job.images)
                if len(pending) > AHEAD:
                    settle()
            while pending:
                settle()
        self.tell(f"{protocol.name}: done", total, total)

    def _store(self, protocol: Protocol, planned: PlannedSet, parts: Sequence[Mapping[str, Scores]]) -> None:
        scores = {key: np.concatenate([part[key] for part in parts]) for key in parts[0]}
        self.scores.add(protocol.name, planned.name, scores, self.made_from(protocol, planned))

    def _time(self, fitted: Mapping[str, Method], images: ImageSet) -> None:
        """How long each takes for one image, measured once."""
        stopwatch = Stopwatch(prepare(images.files[:1], images.way, 0))
        known = self.latencies()
        self.tell("timing one image", 0, 1)
        for key, method in fitted.items():
            name = key.partition(":")[2]
            if name not in known:
                known[name] = stopwatch.milliseconds(self.eyes[eye_of(key)], method)
        write_json(self.folder / LATENCIES, known)

    def latencies(self) -> dict[str, float]:
        """By method, in milliseconds, as far as they are known."""
        path = self.folder / LATENCIES
        found: dict[str, float] = json.loads(path.read_text()) if path.exists() else {}
        return found

    def made_from(self, protocol: Protocol, planned: PlannedSet) -> dict[str, str]:
        """By seed and method: a digest of the images, of those that were fitted on, and of the network."""
        images = self.digests.of(planned.images)
        found = {}
        for seed in self.plan.seeds:
            fit = self.digests.of(self.plan.fit_set(protocol, seed))
            for name in self.methods:
                origin = f"{images} {fit} {self.eyes[name.eye].digest} {name}"
                found[f"{seed}:{name}"] = hashlib.sha256(origin.encode()).hexdigest()[:16]
        return found

    def _jobs(self, protocol: Protocol, planned: PlannedSet) -> Iterator[Job]:
        made_from = self.made_from(protocol, planned)
        wanted = tuple(made_from.keys() - self.scores.current(protocol.name, planned.name, made_from))
        if not wanted:
            return
        for part in planned.images.parts(TOGETHER):
            yield self._job(planned, part, wanted)

    def _job(self, planned: PlannedSet, images: ImageSet, wanted: tuple[str, ...]) -> Job:
        digest, eyes = self.digests.of(images), sorted({eye_of(key) for key in wanted})
        unseen = [eye for eye in eyes if not self.cache.holds(self.eyes[eye].digest, digest, self._kinds(eye))]
        return Job(planned, images, digest, wanted, tuple(unseen))

    def _kinds(self, eye: str) -> tuple[str, ...]:
        """What the methods of this run need of it."""
        needs = {kind for name in self.methods if name.eye == eye for kind in self.eyes[eye].needs(name.method)}
        return tuple(sorted(needs))

    def _see(self, jobs: Sequence[Job]) -> Iterator[tuple[Job, dict[str, Features]]]:
        """The features of each job; pictures are prepared ahead, and pass the eyes that have not seen them."""
        calls = (
            partial(prepare, part.files, part.way, part.first)
            for job in jobs
            if job.unseen
            for part in job.images.parts(PART)
        )
        pictures = self.pool.stream(calls)
        for job in jobs:
            parts: dict[str, list[Features]] = {name: [] for name in job.unseen}
            if job.unseen:
                for _ in job.images.parts(PART):
                    pixels = next(pictures)
                    for name in job.unseen:
                        parts[name].append(self.eyes[name].look(pixels, self._kinds(name)))
            fresh = {name: together(each) for name, each in parts.items()}
            for name, features in fresh.items():
                self.cache.write(self.eyes[name].digest, job.digest, features)
            seen = {eye_of(key) for key in job.wanted} - fresh.keys()
            yield job, fresh | {name: self._cached(name, job.digest) for name in seen}

    def _cached(self, eye: str, digest: str) -> Features:
        found = self.cache.read(self.eyes[eye].digest, digest, self._kinds(eye))
        if found is None:
            raise OSError(f"features vanished from {self.cache.folder}: run the same command again")
        return found

    def _fit(self, protocol: Protocol, seed: int, wanted: Sequence[str]) -> dict[str, Method]:
        """Every method that something is still wanted of, fitted on the images of that seed."""
        names = [name for name in self.methods if f"{seed}:{name}" in wanted]
        if not names:
            return {}
        images = self.plan.fit_set(protocol, seed)
        self.tell(f"{protocol.name}: fitting", 0, len(images))
        features = self.features(images, sorted({name.eye for name in names}))
        samples = prepare(images.files[:CHANGED], images.way, 0)
        return {
            f"{seed}:{name}": self.eyes[name.eye].method(name.method, samples).fit(features[name.eye]) for name in names
        }

    def features(self, images: ImageSet, eyes: Sequence[str]) -> dict[str, Features]:
        """Of a whole set, in memory."""
        planned = PlannedSet(images.name, "fit", images)
        wanted = tuple(f"0:{name}/" for name in eyes)
        jobs = [self._job(planned, part, wanted) for part in images.parts(TOGETHER)]
        parts = [features for _, features in self._see(jobs)]
        return {name: together([part[name] for part in parts]) for name in eyes}


def eye_of(key: str) -> str:
    """0:resnet50/energy -> resnet50."""
    return key.partition(":")[2].rpartition("/")[0]


def score(fitted: Mapping[str, Method], wanted: Sequence[str], features: Mapping[str, Features]) -> dict[str, Scores]:
    """By seed and method."""
    return {key: fitted[key].score(features[eye_of(key)]) for key in wanted}


def together(parts: Sequence[Features]) -> Features:
    """One after the other."""
    return {kind: np.concatenate([part[kind] for part in parts]) for kind in parts[0]}


def prepare(files: Sequence[File], way: Way, first: int) -> Pixels:
    """(images, size, size, 3): each file decoded and sent along its way; in a benchmark a bad file is an error."""
    found = []
    for number, file in enumerate(files, start=first):
        try:
            found.append(travel(decode(file.read(), Limits()), way, number))
        except ImageRefused as refused:
            raise ValueError(f"{file.name} in {file.path} cannot be read ({refused.detail}): copy it again") from None
    return np.stack(found)
