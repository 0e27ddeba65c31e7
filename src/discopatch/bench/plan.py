"""The plan of a benchmark run: suite, sizes and protocols, with the checks that come before the long work."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from discopatch.bench.dataset import Digests, Files, ImageSet, sample_files, shuffled
from discopatch.bench.preprocessing import PROTOCOLS, Pipeline, Protocol, Storage
from discopatch.bench.suites import CorruptionLevel, Suite
from discopatch.corruptions import CORRUPTIONS, FAMILIES, SEVERITIES
from discopatch.errors import NoImagesError, ParameterError, TooFewImagesError
from discopatch.fitting import MIN_FIT_IMAGES
from discopatch.images import DEFAULT_LIMITS, Limits, Transform

RESAMPLES = 1000  # of the test images, for intervals
MAX_STORAGES = 500  # files of a set whose storage is read
MAX_FIT = 600  # of a suite without a number of its own
FULL: dict[str, dict[str, Any]] = {
    "solar": {"fit": 600, "test": 300},
    "natural": {"fit": 2000},
    "imagenet": {"fit": 5000, "test": 5000},
}

# One corruption of each family at one severity: enough to see everything run, too few images for results to quote.
QUICK: dict[str, Any] = {
    "fit": 40,
    "test": 8,
    "corruptions": tuple(family[0] for family in FAMILIES.values()),
    "severities": (3,),
    "resamples": 200,
}


def default_sizes(suite: str, *, quick: bool) -> dict[str, Any]:
    """The fields of BenchPlan for the suite of that name, as far as it has defaults of its own."""
    if not quick:
        return dict(FULL.get(suite, {}))
    return {**QUICK, "other": None if suite == "folder" else 5}


TEST = "test"  # the name of the set of normal test images


@dataclass(frozen=True)
class PlannedSet:
    """A set that is scored, and its role."""

    images: ImageSet
    group: str  # test, near, far, control, covariate, or preprocessing for test images with the steps of another set
    level: CorruptionLevel | None = None
    paired: bool = False  # with the test images, one for one

    @property
    def name(self) -> str:
        return self.images.name


@dataclass(frozen=True)
class BenchPlan:
    """The suite and how many of its images are used; None means all."""

    suite: Suite
    transform: Transform
    protocols: tuple[str, ...] = ("matched", "paper")
    fit: int = MAX_FIT
    test: int | None = None
    other: int | None = None
    corruptions: tuple[str, ...] = tuple(CORRUPTIONS)
    severities: tuple[int, ...] = SEVERITIES
    seeds: tuple[int, ...] = (0,)
    resamples: int = RESAMPLES
    limits: Limits = DEFAULT_LIMITS

    def __post_init__(self) -> None:
        _check_known("protocol", self.protocols, tuple(PROTOCOLS))
        _check_known("corruption", self.corruptions, tuple(CORRUPTIONS))
        _check_known("severity", self.severities, SEVERITIES)
        if self.fit < MIN_FIT_IMAGES:
            raise TooFewImagesError(f"{self.fit} images to fit on: give at least {MIN_FIT_IMAGES}")
        check_available("images to fit on", len(self.suite.fit), self.fit)
        check_available("test images", len(self.suite.test), self.test)
        for other in self.suite.others:
            check_available(f"images in {other.name}", len(other.files), self.other)
        if self.suite.corrupted and not self.levels:
            raise NoImagesError("no corrupted files of these corruptions and severities: ask for others")

    @property
    def levels(self) -> list[CorruptionLevel]:
        """Every corruption at every severity; of corrupted images in files, those that exist."""
        wanted = [(name, severity) for name in self.corruptions for severity in self.severities]
        return [level for level in wanted if not self.suite.corrupted or level in self.suite.corrupted]

    def protocol(self, name: str) -> Protocol:
        return PROTOCOLS[name](self.transform, self.suite.stored)

    def images(self, name: str, files: Files, pipeline: Pipeline) -> ImageSet:
        return ImageSet(name, files, pipeline, limits=self.limits)

    def fit_set(self, protocol: Protocol, seed: int) -> ImageSet:
        """The images to fit on, others with each seed."""
        files = shuffled(self.suite.fit, seed=seed, count=self.fit)
        return self.images(f"fit {seed}", tuple(files), protocol.fit)

    def fit_classes(self, seed: int) -> tuple[str, ...]:
        """The classes of the images to fit on, in their order; empty where none are known."""
        return tuple(shuffled(self.suite.fit_classes, seed=seed, count=self.fit))

    def without_classes(self) -> str:
        """Why a method that is fitted on classes cannot be; empty where it can."""
        if not self.suite.fit_classes:
            return "the images to fit on have no classes, which would be folders, CLASS/IMAGE"
        counts = [len(set(self.fit_classes(seed))) for seed in self.seeds]
        if min(counts) < 2 or self.fit < 2 * max(counts):
            return (
                f"{self.fit:,} images to fit on of {max(counts):,} classes; two classes and two images each are needed"
            )
        return ""

    def sets(self, protocol: Protocol) -> list[PlannedSet]:
        """All sets that are scored, the normal test images first, each other set followed by its control."""
        corrupted = self.suite.corrupted
        test = sample_files(self.suite.test, self.test)
        sets = [PlannedSet(self.images(TEST, test, protocol.normal), TEST)]
        for other in self.suite.others:
            files = sample_files(other.files, self.other)
            control = protocol.control(other.sizes, read_storages(files))
            sets.append(PlannedSet(self.images(other.name, files, protocol.other), other.group))
            sets.append(PlannedSet(self.images(f"control {other.name}", test, control), "preprocessing", paired=True))
        controls = self.images("control corrupted", test, protocol.uncorrupted(files=bool(corrupted)))
        sets.append(PlannedSet(controls, "preprocessing", paired=True))
        for level in self.levels:
            files = sample_files(corrupted[level](), self.test) if corrupted else test
            pipeline = protocol.corrupted_files if corrupted else protocol.corrupted(*level)
            images = self.images(f"{level[0]}/{level[1]}", files, pipeline)
            sets.append(PlannedSet(images, "covariate", level=level, paired=not corrupted))
        return sets

    def check(self, digests: Digests, *, workers: int) -> None:
        """Reads every file once; an image that is both fitted and tested is an error, before anything is measured."""
        protocol = self.protocol(self.protocols[0])
        fit = [file for seed in self.seeds for file in self.fit_set(protocol, seed).files]
        tested = [file for planned in self.sets(protocol) for file in planned.images.files]
        digests.read([*fit, *tested], workers=workers)
        fitted = {digests.known[file]: file for file in fit}
        both = {file.name: fitted[digests.known[file]].name for file in tested if digests.known[file] in fitted}
        if both:
            tested_as, fitted_as = next(iter(both.items()))
            raise ParameterError(
                f"{len(both)} images are both fitted and tested, such as {tested_as}, which is {fitted_as}: "
                "take them out of one of the two folders"
            )


@cache
def read_storages(files: Files) -> tuple[Storage, ...]:
    """How the files of a set are stored, read off all of them, or off some hundreds of many."""
    return tuple(Storage.of(file.read()) for file in sample_files(files, MAX_STORAGES))


def check_available(noun: str, found: int, wanted: int | None) -> None:
    """Raises unless there are any, and at least as many as wanted."""
    if found == 0:
        raise NoImagesError(f"no {noun}: check the folder with `discopatch data check`")
    if wanted is not None and found < wanted:
        raise TooFewImagesError(f"{found:,} {noun}, {wanted:,} were asked for: add images or ask for fewer")


def _check_known(noun: str, given: Sequence[object], known: Sequence[object]) -> None:
    for each in given:
        if each not in known:
            raise ParameterError(f"unknown {noun} {each!r}: choose from {', '.join(map(str, known))}")
