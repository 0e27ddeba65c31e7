"""The plan of a benchmark run: suite, sizes and protocols, with the checks that come before the long work."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from typing import Any

from discopatch.bench.dataset import CorruptionLevel, Files, ImageSet, Suite, image_digest, sample_files, shuffled
from discopatch.bench.preprocessing import PROTOCOLS, Protocol, Storage
from discopatch.corruptions import CORRUPTIONS, FAMILIES, SEVERITIES
from discopatch.errors import NoImagesError, ParameterError, TooFewImagesError
from discopatch.fitting import MIN_FIT_IMAGES
from discopatch.images import Transform

RESAMPLES = 1000  # of the test images, for intervals
MAX_STORAGES = 500  # files of a set whose storage is read
MAX_FIT = 600  # of a suite without a number of its own
TEST = "test"  # the name of the set of normal test images
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
    return {**QUICK, "other": None if suite == "folder" else 5} if quick else FULL.get(suite, {})


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
        """The pipelines of that protocol."""
        return PROTOCOLS[name](self.transform, self.suite.stored)

    def fit_set(self, protocol: str, seed: int) -> ImageSet:
        """The images to fit on, others with each seed."""
        files = shuffled(self.suite.fit, seed=seed, count=self.fit)
        return ImageSet(f"fit {seed}", tuple(files), self.protocol(protocol).fit)

    def fit_classes(self, seed: int) -> tuple[str, ...]:
        """The classes of the images to fit on, in their order; empty where none are known."""
        return tuple(shuffled(self.suite.fit_classes, seed=seed, count=self.fit))

    def without_classes(self) -> str:
        """Why a method that is fitted on classes cannot be; empty where it can."""
        if not self.suite.fit_classes:
            return "the images to fit on have no classes, which would be folders, CLASS/IMAGE"
        counts = [len(set(self.fit_classes(seed))) for seed in self.seeds]
        enough = min(counts) >= 2 and self.fit >= 2 * max(counts)
        images = f"{self.fit:,} images to fit on of {max(counts):,} classes"
        return "" if enough else f"{images}; two classes and two images each are needed"

    def sets(self, protocol: str) -> list[ImageSet]:
        """All sets that are scored, the normal test images first, each other set followed by its control."""
        steps, corrupted = self.protocol(protocol), self.suite.corrupted
        test = sample_files(self.suite.test, self.test)
        sets = [ImageSet(TEST, test, steps.normal)]
        for other in self.suite.others:
            files = sample_files(other.files, self.other)
            control = steps.control(other.sizes, read_storages(files))
            sets.append(ImageSet(other.name, files, steps.other, group=other.group))
            sets.append(ImageSet(f"control {other.name}", test, control, paired=True))
        sets.append(ImageSet("control corrupted", test, steps.uncorrupted(files=bool(corrupted)), paired=True))
        for level in self.levels:
            files = sample_files(corrupted[level](), self.test) if corrupted else test
            pipeline = steps.corrupted_files if corrupted else steps.corrupted(*level)
            name, paired = f"{level[0]}/{level[1]}", not corrupted
            sets.append(ImageSet(name, files, pipeline, group="covariate", level=level, paired=paired))
        return sets

    def check(self, *, workers: int) -> None:
        """Reads every file once; an image that is both fitted and tested is an error, before anything is measured."""
        protocol = self.protocols[0]
        fit = [file for seed in self.seeds for file in self.fit_set(protocol, seed).files]
        tested = [file for images in self.sets(protocol) for file in images.files]
        with ThreadPoolExecutor(workers) as pool:
            list(pool.map(image_digest, dict.fromkeys([*fit, *tested])))
        fitted = {image_digest(file): file for file in fit}
        both = {file.name: fitted[image_digest(file)].name for file in tested if image_digest(file) in fitted}
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
    """Raises TooFewImagesError unless there are as many as wanted."""
    if wanted is not None and found < wanted:
        raise TooFewImagesError(f"{found:,} {noun}, {wanted:,} were asked for: add images or ask for fewer")


def _check_known(noun: str, given: Sequence[object], known: Sequence[object]) -> None:
    for each in given:
        if each not in known:
            raise ParameterError(f"unknown {noun} {each!r}: choose from {', '.join(map(str, known))}")
