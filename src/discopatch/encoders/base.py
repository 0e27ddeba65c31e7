"""Features, and what every encoder does: images in, features out, in order and in constant memory."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from functools import partial
from typing import Literal, NamedTuple, Self, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from discopatch.errors import ParameterError
from discopatch.images import (
    DEFAULT_LIMITS,
    DEFAULT_WORKERS,
    ImageBatch,
    Limits,
    NamedImage,
    Pixels,
    Refusal,
    Transform,
    Workers,
    read_batches,
)
from discopatch.utils import prefetch

T = TypeVar("T")


Kind = Literal["logits", "statistics", "pooled", "places"]
BASIC_KINDS: tuple[Kind, ...] = ("logits", "statistics")  # those that every encoder gives


class FeatureArrays(NamedTuple):
    """Four kinds of features of some images; those that an encoder has not, or was not asked for, are empty."""

    logits: NDArray[np.float32]  # (images, positions); (images, 0) of a network that has none
    statistics: NDArray[np.float32]  # (images, 2 x channels): layer by layer its means, then its log-variances
    pooled: NDArray[np.float32]  # (images, channels): the last map, averaged over the image; (images, 0)
    places: NDArray[np.floating]  # (images, positions, d): in float16, see `local_features`; (images, 0, 0)


class Features(FeatureArrays):
    """What an encoder computes of some images, and all that a head needs."""

    __slots__ = ()

    def __new__(
        cls,
        logits: NDArray[np.float32],
        statistics: NDArray[np.float32],
        pooled: NDArray[np.float32] | None = None,
        places: NDArray[np.floating] | None = None,
    ) -> Self:
        images = len(logits)
        pooled = np.empty((images, 0), np.float32) if pooled is None else pooled
        places = np.empty((images, 0, 0), np.float16) if places is None else places
        return super().__new__(cls, logits, statistics, pooled, places)

    @classmethod
    def without_logits(cls, statistics: NDArray[np.floating]) -> Self:
        """Those of a network that tells no real images from others."""
        return cls(np.empty((len(statistics), 0), np.float32), np.asarray(statistics, np.float32))

    @classmethod
    def concatenate(cls, parts: Sequence["Features"]) -> Self:
        return cls(*(np.concatenate(arrays) for arrays in zip(*parts, strict=True)))

    @property
    def are_finite(self) -> bool:
        """Whether all of them are finite numbers: a network that overflows gives others."""
        return all(bool(np.isfinite(each).all()) for each in self)

    def one_by_one(self) -> Iterator["Features"]:
        """The features of each image by itself."""
        return (self.select(slice(place, place + 1)) for place in range(len(self.logits)))

    def select(self, index: NDArray[np.intp] | NDArray[np.bool_] | slice) -> "Features":
        """The features of some of the images."""
        return Features(self.logits[index], self.statistics[index], self.pooled[index], self.places[index])

    def without_places(self) -> "Features":
        """All but the places, which are by far the largest."""
        return Features(self.logits, self.statistics, self.pooled)


class FeatureSizes(NamedTuple):
    """How many features an encoder gives of an image, or of one place in it; 0 for none."""

    statistics: int
    pooled: int
    places: int


class Extracted(NamedTuple):
    """An image, as the transform left it, and its features."""

    name: str
    pixels: Pixels
    features: Features


class FeatureBatch(NamedTuple):
    """Images that were read together, and the features of those that were not refused."""

    items: list[NamedImage | Refusal]
    features: Features | None
    ends: bool  # whether its source has no more

    def pair(self, results: Iterable[T]) -> Iterator[tuple[NamedImage, T] | Refusal]:
        """Every image beside its result; a refusal in its place."""
        remaining = iter(results)
        for item in self.items:
            yield (item, next(remaining)) if isinstance(item, NamedImage) else item


class Encoder(ABC):
    """A frozen network; an image's features depend on that image alone."""

    transform: Transform
    device: torch.device
    batch_size: int
    patch_size: int  # pixels along a side of a region
    kinds: frozenset[Kind] = frozenset(BASIC_KINDS)  # of the features that it gives, as far as it can
    limits: Limits = DEFAULT_LIMITS  # of the images that are read
    layer_sizes: tuple[int, ...] = ()  # how many of the statistics are each layer's, the first layer first
    prefetched: int = 0  # batches that are begun before one is waited for

    @property
    def together(self) -> int:
        """Images that pass at once: on a CPU each alone, so that its neighbours do not change its features."""
        return self.batch_size if self.device.type == "cuda" else 1

    @abstractmethod
    def extract_pixels(self, pixels: Pixels) -> Features:
        """The features of (B, size, size, 3) in uint8, already through the transform."""

    @abstractmethod
    def extract_regions(self, pixels: Pixels, count: int, chosen: NDArray[np.intp] | None = None) -> Features:
        """The features of `count` regions on a grid over (size, size, 3), each as if it were an image of its own.

        `chosen` are the numbers of those that are wanted, unless all are.
        """

    def start(self, pixels: Pixels | Tensor) -> Callable[[], Features]:
        """Begins to extract a batch's features; calling what is returned waits for them.

        A tensor is of images that were decoded on a GPU; an encoder that can leaves them there.
        """
        return partial(self.extract_pixels, pixels.cpu().numpy() if isinstance(pixels, Tensor) else pixels)

    def batches(self, images: object, *, workers: Workers = DEFAULT_WORKERS) -> Iterator[FeatureBatch]:
        """All images of the source, in order, `batch_size` at a time."""
        for batch in self.batches_of([images], workers=workers):
            if batch.items:
                yield batch

    def batches_of(self, sources: Iterable[object], *, workers: Workers = DEFAULT_WORKERS) -> Iterator[FeatureBatch]:
        """The images of one source after another, of which no batch holds those of two; the last may be empty."""
        with closing(
            read_batches(
                sources,
                transform=self.transform,
                size=self.batch_size,
                workers=workers,
                limits=self.limits,
                device=self.device,
            )
        ) as stream:
            started = ((batch, self._start(batch)) for batch in stream)
            for batch, later in prefetch(started, self.prefetched if self.batch_size > 1 else 0):
                yield FeatureBatch(batch.items, later() if later else None, batch.ends)

    def _start(self, batch: ImageBatch) -> Callable[[], Features] | None:
        return None if batch.pixels is None else self.start(batch.pixels)

    def extract(self, images: object, *, workers: Workers = DEFAULT_WORKERS) -> Iterator[Extracted | Refusal]:
        """Every image of the source, in order, with its features."""
        for batch in self.batches(images, workers=workers):
            for item in batch.pair(batch.features.one_by_one() if batch.features else ()):
                yield item if isinstance(item, Refusal) else Extracted(item[0].name, item[0].pixels, item[1])


def check_batch_size(batch_size: int) -> None:
    if batch_size < 1:
        raise ParameterError(f"batch_size is {batch_size}: it must be at least 1")
