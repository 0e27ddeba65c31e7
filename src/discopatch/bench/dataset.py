"""Files, sets and suites of benchmark images, the processes that prepare them, and the plan of a run."""

import hashlib
import json
import tarfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np

from discopatch.bench.preprocessing import LOSSLESS, PROTOCOLS, Pipeline, Protocol, Storage, apply_step, describe_step
from discopatch.corruptions import CORRUPTIONS, FAMILIES, SEVERITIES
from discopatch.corruptions.frost import TEXTURES, frost_texture
from discopatch.errors import ImageError, NoImagesError, ParameterError, TooFewImagesError
from discopatch.fitting import MIN_FIT_IMAGES
from discopatch.images import DEFAULT_LIMITS, Item, Pixels, Transform, check_bytes, list_source
from discopatch.images.decode import IMAGE_SUFFIXES, SHARD_SUFFIXES, decode
from discopatch.images.workers import ProcessPool
from discopatch.metrics import RESAMPLES
from discopatch.utils import prefetch
from discopatch.version import __version__

T = TypeVar("T")

PART = 32  # images that a process prepares at a time
AHEAD = 3  # parts per process, finished or under way, before the first is taken
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


@dataclass(frozen=True, slots=True, order=True)
class ImageFile:
    """An image file; one inside an uncompressed tar shard is `size` bytes of it from `offset` on."""

    name: str
    path: Path
    offset: int = 0
    size: int = -1  # to the end

    def read(self) -> bytes:
        with self.path.open("rb") as file:
            file.seek(self.offset)
            return file.read(self.size)


@cache
def image_digest(file: ImageFile) -> str:
    """The SHA-256 of its bytes, which are read once."""
    return hashlib.sha256(file.read()).hexdigest()


def joined_digest(digests: Sequence[str]) -> str:
    """16 hex digits of all these digests, in their order."""
    return hashlib.sha256("\n".join(digests).encode()).hexdigest()[:16]


Files = tuple[ImageFile, ...]
Group = Literal["near", "far", "control"]  # a control holds normal images with other preprocessing
CorruptionLevel = tuple[str, int]  # corruption, severity


@dataclass(frozen=True)
class OtherSet:
    """Images that are not the normal ones."""

    name: str
    group: Group
    files: Files
    sizes: tuple[int, ...] = ()  # squares that its publisher resized it to, one after the other


@dataclass(frozen=True)
class Suite:
    """The files of a benchmark; nothing has been decoded yet.

    `fit` are candidates, more than are needed: each seed fits on others of them. `fit_classes` are their classes, one
    each, or empty where no classes are known.
    `stored` says how the images to fit on were already stored at the size of the transform, if they were: the
    preprocessing of all that is compared with them then ends in the same storage.
    `corrupted` lists corrupted images in files of their own, such as ImageNet-C; where there are none, the test images
    are corrupted during the run.
    """

    name: str
    fit: Files
    test: Files
    others: tuple[OtherSet, ...]
    corrupted: Mapping[CorruptionLevel, Callable[[], Files]] = field(default_factory=dict)
    fit_classes: tuple[str, ...] = ()
    stored: Storage = LOSSLESS
    copies: int = 0  # normal images that were left out because they are copies of others


@dataclass(frozen=True)
class ImageSet:
    """Files, whose indices begin at `first`, and their preprocessing: all that decides which pixels are scored."""

    name: str
    files: Files
    pipeline: Pipeline
    first: int = 0
    group: str = ""  # near, far, control, covariate; others are not summed up
    level: CorruptionLevel | None = None
    paired: bool = False  # with the test images, one for one

    def __len__(self) -> int:
        return len(self.files)

    @property
    def steps(self) -> list[dict[str, Any]]:
        """The preprocessing, for JSON and for digests."""
        return [describe_step(step) for step in self.pipeline]

    @property
    def digest(self) -> str:
        """16 hex digits of the images, their indices and their preprocessing."""
        origin = json.dumps([__version__, self.first, self.steps], sort_keys=True)
        return joined_digest([origin, *map(image_digest, self.files)])

    def parts(self, size: int) -> Iterator["ImageSet"]:
        """Successive parts of at most `size` images, which keep their indices."""
        for start in range(0, len(self), size):
            yield replace(self, files=self.files[start : start + size], first=self.first + start)

    def load(self) -> Pixels:
        """(images, size, size, 3), decoded and preprocessed; an unreadable file is an ImageError."""
        loaded = []
        for index, file in enumerate(self.files, start=self.first):
            try:
                data = file.read()
                check_bytes(len(data), DEFAULT_LIMITS)
                pixels = decode(data)
                for step in self.pipeline:
                    pixels = apply_step(step, pixels, index)
            except ImageError as error:
                text = f"{file.name} in {file.path} cannot be read ({error.detail}): copy it again"
                raise ImageError(error.reason, text) from None
            loaded.append(pixels)
        return np.stack(loaded)


class CorruptionPool(ProcessPool):
    """Worker processes that load, corrupt and preprocess images; each prepares its frost textures at its start."""

    def __init__(self, workers: int, *, frost: bool = True) -> None:
        super().__init__(workers, prepare_frost if frost else int)
        self.workers = workers

    def __exit__(self, *error: object) -> None:
        self.shutdown(cancel_futures=True)

    def stream(self, calls: Iterable[Callable[[], T]]) -> Iterator[T]:
        """The results in the order of the calls, computed at most a few calls ahead."""
        return (future.result() for future in prefetch(map(self.submit, calls), AHEAD * self.workers))


def prepare_frost() -> None:
    """Makes the textures of frost, which are then kept."""
    for number in range(TEXTURES):
        frost_texture(number)


def list_files(path: Path) -> Files:
    """All images of a folder and its subfolders, or of an uncompressed tar shard, by name."""
    if path.is_file() and path.name.lower().endswith(SHARD_SUFFIXES):
        files = _shard_files(path)
    else:
        places = [entry.content for entry in list_source(path).entries() if isinstance(entry, Item)]
        files = [
            ImageFile(place.relative_to(path).as_posix(), place)
            for place in places
            if isinstance(place, Path) and place.name.lower().endswith(IMAGE_SUFFIXES)
        ]
    if not files:
        raise NoImagesError(f"no images in {path}, which is empty or holds other files: check the path")
    return tuple(sorted(files))


def _shard_files(shard: Path) -> list[ImageFile]:
    """The images of a shard; nothing is extracted, so the path of a member is only a name."""
    if shard.suffix != ".tar":
        raise ParameterError(f"{shard} is compressed, and cannot be read from its middle: gunzip it first")
    try:
        with tarfile.open(shard, "r:") as archive:
            return [
                ImageFile(member.name, shard, member.offset_data, member.size)
                for member in archive
                if member.isreg() and not member.issparse() and member.name.lower().endswith(IMAGE_SUFFIXES)
            ]
    except (tarfile.TarError, ValueError) as error:
        raise ParameterError(f"{shard} is damaged or no tar shard ({error}): copy it again") from error


def named_files(folder: Path, names: Sequence[str], what: str, remedy: str) -> Files:
    """The files of these names in the folder; NoImagesError where some are missing."""
    files = tuple(ImageFile(name, folder / name) for name in names)
    if missing := [file for file in files if not file.path.is_file()]:
        raise NoImagesError(
            f"{len(missing):,} of {len(names):,} {what} are missing, the first {missing[0].path}; {remedy}"
        )
    return files


def shuffled(items: Sequence[T], *, seed: int, count: int | None = None) -> list[T]:
    """The first `count` items, or all, in a random order that depends on the seed."""
    return [items[index] for index in np.random.default_rng(seed).permutation(len(items))[:count]]


def sample_files(files: Files, count: int | None) -> Files:
    """`count` of the files, always the same ones, in their order; all of them for None."""
    return tuple(files[index] for index in sorted(shuffled(range(len(files)), seed=0, count=count)))


def class_folders(names: Sequence[str]) -> tuple[str, ...]:
    """The class of each image, which is its folder below the folders that all images share: train/cat/1.png -> cat.

    Empty where an image has no such folder, since then no folder is sure to be a class.
    """
    folders = [name.split("/")[:-1] for name in names]
    while folders and all(folders) and len({path[0] for path in folders}) == 1:
        folders = [path[1:] for path in folders]
    return tuple(path[0] for path in folders) if all(folders) else ()


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
            pipeline = steps.other if corrupted else steps.corrupted(*level)
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
    """Raises TooFewImagesError unless there are as many as wanted, or any for None."""
    if found < (wanted or 1):
        raise TooFewImagesError(f"{found:,} {noun}, {wanted or 1:,} are needed: add images or ask for fewer")


def _check_known(noun: str, given: Sequence[object], known: Sequence[object]) -> None:
    for each in given:
        if each not in known:
            raise ParameterError(f"unknown {noun} {each!r}: choose from {', '.join(map(str, known))}")
