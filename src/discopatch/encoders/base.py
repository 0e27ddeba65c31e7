"""Encoders: images in, features out, in order and in constant memory."""

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import cache, partial
from itertools import groupby, islice
from threading import Barrier
from typing import Literal, NamedTuple, Self, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from discopatch.encoders.places import Compare, is_large, join_maps
from discopatch.errors import ParameterError
from discopatch.images import (
    DEFAULT_LIMITS,
    DEFAULT_WORKERS,
    Limits,
    NamedImage,
    Pixels,
    Refusal,
    Transform,
    Workers,
    check_same_transform,
    read_batches,
)
from discopatch.model.patches import check_fits
from discopatch.utils import make_forks_safe, prefetch

T = TypeVar("T")
Given = TypeVar("Given")
Float = TypeVar("Float", np.float32, np.float64)

Kind = Literal["logits", "statistics", "pooled", "places", "tones"]
Output = Callable[..., tuple[Tensor, Tensor]]  # features by kind -> scores (B,) and components (B, components)
BASIC_KINDS: tuple[Kind, ...] = ("logits", "statistics")  # of every encoder
TOGETHER = 8  # images that are extracted at once
MOST_TOGETHER, TOGETHER_PIXELS = 128, 2**23  # images, and pixels of them, that pass a GPU at once by default
PIXEL_BYTES = 2**11  # most memory of a pass for each pixel: that of the paper's network
MAX_STATISTICS = 2**15  # per image, of all networks together


class FeatureArrays(NamedTuple):
    """Five kinds of features of some images, and scores of them; what an encoder does not give is empty."""

    logits: NDArray[np.float32]  # (images, positions), or (images, 0)
    statistics: NDArray[np.float32]  # (images, 2 x channels): layer by layer its means, then its log-variances
    pooled: NDArray[np.float32]  # (images, channels): the last map, averaged over the image, or (images, 0)
    places: NDArray[np.float32]  # (images, rows, columns): z-scores; (images, rows, columns, d), see `local_features`
    tones: NDArray[np.float32]  # (images, N_TONES): brightness, contrast and colours of the pixels, or (images, 0)
    scores: NDArray[np.floating]  # (images, 1 + components), by the head of `Encoder.score_by`, or (images, 0)


class Features(FeatureArrays):
    """The features of some images, the input of heads."""

    __slots__ = ()

    def __new__(
        cls,
        logits: NDArray[np.float32],
        statistics: NDArray[np.float32],
        pooled: NDArray[np.float32] | None = None,
        places: NDArray[np.float32] | None = None,
        tones: NDArray[np.float32] | None = None,
        scores: NDArray[np.floating] | None = None,
    ) -> Self:
        images = len(logits)
        pooled = np.empty((images, 0), np.float32) if pooled is None else pooled
        places = np.empty((images, 0, 0), np.float32) if places is None else places
        tones = np.empty((images, 0), np.float32) if tones is None else tones
        scores = np.empty((images, 0)) if scores is None else scores
        return super().__new__(cls, logits, statistics, pooled, places, tones, scores)

    @classmethod
    def concatenate(cls, parts: Sequence["Features"]) -> Self:
        return cls(*(np.concatenate(arrays) if len(arrays) > 1 else arrays[0] for arrays in zip(*parts, strict=True)))

    def one_by_one(self) -> Iterator["Features"]:
        """The features of each image by itself."""
        return (self.select(slice(place, place + 1)) for place in range(len(self.logits)))

    def select(self, index: NDArray[np.intp] | NDArray[np.bool_] | slice) -> "Features":
        """The features of some of the images."""
        return Features(*(each[index] for each in self))

    def without_places(self) -> "Features":
        """All kinds except places, which are by far the largest."""
        return Features(self.logits, self.statistics, self.pooled, tones=self.tones)


class FeatureSizes(NamedTuple):
    """The number of features of an image, and of one place in it; 0 for none."""

    statistics: int
    pooled: int
    places: int
    logits: bool = False


class FeatureBatch(NamedTuple):
    """Images that were read together, and the features of those that were not refused."""

    items: list[NamedImage | Refusal]
    features: Features | None
    ends: bool  # whether it is the last of its source

    def pair(self, results: Iterable[T]) -> Iterator[tuple[NamedImage, T] | Refusal]:
        """Every image with its result, and refusals, in order."""
        remaining = iter(results)
        for item in self.items:
            yield (item, next(remaining)) if isinstance(item, NamedImage) else item


class Encoder(ABC):
    """A frozen network. The features of an image depend on that image alone."""

    layer_sizes: tuple[int, ...] = ()  # the number of statistics of each layer, the first layer first
    embedding = 0  # the length of the embedding of how an image is degraded, the last of its statistics
    place_sizes: tuple[int, ...] = ()  # the number of features of each layer at a place
    prefetched: int = 0  # batches that are started ahead
    scored_by: Output | None = None  # what scores are from

    def __init__(
        self,
        transform: Transform,
        *,
        patch_size: int,
        device: str | torch.device = "cpu",
        batch_size: int = 8,
        limits: Limits = DEFAULT_LIMITS,
        kinds: Collection[Kind] = BASIC_KINDS,
        compare: Compare | None = None,
    ) -> None:
        """`patch_size` is the side of a patch in pixels; `kinds` are given as far as the network has them.

        Places are features of each place, or with `compare` what it makes of them.
        """
        if batch_size < 1:
            raise ParameterError(f"batch_size is {batch_size}: it must be at least 1")
        make_forks_safe()
        self.transform, self.patch_size = transform, check_fits(transform.size, patch_size)
        self.device, self.batch_size = resolve_device(device), batch_size
        self.limits, self.kinds, self.compare = limits, frozenset(kinds), compare

    @property
    def together(self) -> int:
        """Images per pass: 1 on a CPU, so that the batch does not change the features of an image."""
        return self.batch_size if self.device.type == "cuda" else 1

    def score_by(self, output: Output, needs: Collection[str]) -> None:  # noqa: B027
        """Lets `start` give scores of this head too, if the network can run with it on a GPU."""

    @abstractmethod
    def extract_pixels(self, pixels: Pixels) -> Features:
        """The features of (B, H, W, 3) in uint8, already through the transform."""

    def embed(self, pixels: Pixels) -> NDArray[np.float32]:
        """(B, values): how images are degraded; no values where the network has no such embedding."""
        if not self.embedding:
            return np.empty((len(pixels), 0), np.float32)
        return self.extract_pixels(pixels).statistics[:, -self.embedding :]

    def extract_each(self, images: Iterable[Pixels]) -> Iterator[Features]:
        """The features of each image (H, W, 3) by itself, a few at a time; successive images may differ in shape."""
        for (height, width, _), alike in groupby(images, key=np.shape):
            size = 1 if is_large(height, width) else max(self.batch_size, TOGETHER)
            if self.together == 1:  # places of an image take ten times the memory of its pixels
                size = min(size, max(torch.get_num_threads(), TOGETHER * 256**2 // (height * width)))
            while batch := list(islice(alike, size)):
                yield from self.extract_pixels(np.stack(batch)).one_by_one()

    def start(self, pixels: Pixels | Tensor) -> Callable[[], Features]:
        """Starts a batch; the returned function gives its features. A tensor holds images decoded on a GPU."""
        return partial(self.extract_pixels, pixels.cpu().numpy() if isinstance(pixels, Tensor) else pixels)

    def batches(self, sources: Iterable[object], *, workers: Workers = DEFAULT_WORKERS) -> Iterator[FeatureBatch]:
        """The images of several sources; a batch has images of one source, and the last of a source may be empty."""
        with closing(
            read_batches(
                sources,
                transform=self.transform,
                size=1 if is_large(*self.transform.largest) else self.batch_size,
                workers=workers,
                limits=self.limits,
                device=self.device,
            )
        ) as stream:
            started = ((batch, None if batch.pixels is None else self.start(batch.pixels)) for batch in stream)
            for batch, later in prefetch(started, self.prefetched if self.batch_size > 1 else 0):
                yield FeatureBatch(batch.items, later() if later else None, batch.ends)

    def extract(
        self, images: object, *, workers: Workers = DEFAULT_WORKERS
    ) -> Iterator[tuple[NamedImage, Features] | Refusal]:
        """The images of a source, in order, as the transform left them, with their features."""
        for batch in self.batches([images], workers=workers):
            yield from batch.pair(batch.features.one_by_one() if batch.features else ())


def map_on_cores(function: Callable[[Given], T], items: Iterable[Given]) -> list[T]:
    """The function of each item, in order, without gradients, on as many threads as torch has, each on one core.

    This is faster than dividing the small layers of one image among the cores. A single item has one thread too, so
    that the order of summation, and with it the last digits, does not depend on the number of items.
    """
    threads, function = torch.get_num_threads(), torch.inference_mode()(function)
    if threads == 1:
        return [function(item) for item in items]
    return list(one_thread_each(threads, os.getpid()).map(function, items))


def stream_on_cores(function: Callable[[Given], T], items: Iterable[Given]) -> Iterator[T]:
    """`map_on_cores` of many items, a few at a time."""
    remaining = iter(items)
    while part := list(islice(remaining, TOGETHER)):
        yield from map_on_cores(function, part)


@cache
def one_thread_each(threads: int, process: int) -> ThreadPoolExecutor:
    """A pool of threads of this process, in each of which torch computes on one core."""
    pool = ThreadPoolExecutor(threads, "discopatch-core", initializer=compute_alone)
    own, all_there = torch.get_num_threads(), Barrier(threads)
    list(pool.map(lambda _: all_there.wait(), range(threads)))
    torch.set_num_threads(own)  # later threads of the process start with the last value
    return pool


def compute_alone() -> None:
    """Lets torch use one core in the calling thread."""
    torch.set_num_threads(1)
    torch.get_num_threads()  # the first call in a thread adopts the last value set in any thread


def resolve_device(device: str | torch.device) -> torch.device:
    """The device; `auto` is a GPU where there is one. ParameterError if there is no such device."""
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        found = torch.device(device)
    except RuntimeError:
        raise ParameterError(f"unknown device {device!r}: choose auto, cpu, cuda, cuda:1, ...") from None
    if found.type == "cuda" and (found.index or 0) >= torch.cuda.device_count():
        raise ParameterError(f"there is no device {device}: choose auto or cpu, or install torch for your GPU")
    return found


def default_batch_size(device: str | torch.device, pixels: int) -> int:
    """Images that pass the network together, of so many pixels each, unless the user gives a number."""
    free, device = 0, resolve_device(device)
    if device.type == "cuda":  # with what torch keeps for later
        kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        free = torch.cuda.mem_get_info(device)[0] + kept
    return choose_batch_size(device.type, free, pixels)


def choose_batch_size(device: str, free: int, pixels: int) -> int:
    """On a GPU up to 128, a power of two, as half of its `free` bytes allow; elsewhere 8, as images pass one by one."""
    if device != "cuda":
        return TOGETHER
    most = min(MOST_TOGETHER, TOGETHER_PIXELS // pixels, free // (2 * PIXEL_BYTES * pixels))
    return 1 << max(most, 1).bit_length() - 1


class JoinedEncoder(Encoder):
    """Several encoders of the same images, whose features are concatenated.

    Logits are those of the discriminator, if there is one. Pooled features are scaled to length 1, encoder by encoder,
    so that all have the same weight in a distance. Places are brought to one grid. All layers count as early.
    """

    def __init__(self, encoders: Sequence[Encoder], compare: Compare | None = None) -> None:
        first, *others = self.encoders = tuple(encoders)
        for each in others:
            check_same_transform(first.transform, each.transform)
        self.transform, self.device, self.batch_size = first.transform, first.device, first.batch_size
        self.patch_size, self.limits = first.patch_size, first.limits
        self.kinds, self.compare = first.kinds.union(*(each.kinds for each in others)), compare
        self.place_sizes = tuple(size for each in encoders for size in each.place_sizes)
        if (total := sum(size for each in encoders for size in each.layer_sizes)) > MAX_STATISTICS:
            raise ParameterError(
                f"{total:,} statistics per image, and at most {MAX_STATISTICS:,} are allowed: leave one network out"
            )

    def start(self, pixels: Pixels | Tensor) -> Callable[[], Features]:
        started = [each.start(pixels) for each in self.encoders]
        return lambda: self._join([later() for later in started])

    def extract_pixels(self, pixels: Pixels) -> Features:
        return self._join([each.extract_pixels(pixels) for each in self.encoders])

    def _join(self, parts: Sequence[Features]) -> Features:
        """The features of the same images by several encoders, concatenated."""
        maps = [torch.from_numpy(part.places).permute(0, 3, 1, 2) for part in parts if part.places.size]
        places = None
        if maps and self.compare is None:
            places = join_maps(maps)
        elif maps and self.compare is not None:
            with torch.inference_mode():
                places = torch.cat([self.compare(each) for each in zip(*(one.split(1) for one in maps), strict=True)])
        return Features(
            np.concatenate([part.logits for part in parts], 1),
            np.concatenate([part.statistics for part in parts], 1),
            np.concatenate([of_unit_length(part.pooled) for part in parts], 1),
            None if places is None else places.numpy(),
            parts[0].tones,
        )


def of_unit_length(values: NDArray[Float]) -> NDArray[Float]:
    """(images, d), each divided by its length; zeros stay."""
    lengths = np.linalg.norm(values, axis=1, keepdims=True)
    return (values / np.where(lengths > 0, lengths, 1)).astype(values.dtype)
