"""Images, patches and noise of every step, which follow from the seed and the place in the run alone.

No random state is carried from step to step, so a resumed run continues to the bit.
"""

import shutil
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from functools import lru_cache, partial
from itertools import count as count_from
from math import ceil, inf
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from lightning_fabric import Fabric
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import Progress
from torch import Tensor

from discopatch.errors import DiscopatchError, NoImagesError
from discopatch.images import (
    Limits,
    NamedImage,
    PixelCache,
    Pixels,
    Refusal,
    RefusalReport,
    ShardIndex,
    Workers,
    find_cache,
    open_cache,
    open_index,
    read_images,
)
from discopatch.images.tensors import to_unit
from discopatch.images.workers import ImageStream
from discopatch.model.patches import extract_patches, random_corners
from discopatch.training.config import TrainingConfig
from discopatch.utils import read_ahead, usable_memory

SHARE_OF_MEMORY = 0.5  # that decoded images may take, of the computer or of a GPU
WINDOW_SHARDS = 16  # shards whose images are shuffled together
AHEAD = 2  # batches that are decoded while a step computes
MOST_IN_A_ROW = 100  # unreadable images in a row that are replaced


class ImageOrder:
    """Order of an endless stream over shards of `counts` images; every epoch holds each image once.

    An epoch is a permutation of the shards, cut into windows of `WINDOW_SHARDS`; the images of a window are permuted
    together, so that a reader visits few shards at a time. An epoch ends after a `share` of its images.
    """

    def __init__(self, counts: Sequence[int] | NDArray[np.int64], *, seed: int, share: float = 1.0) -> None:
        self._starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        self._seed = seed
        self._length = ceil(share * int(self._starts[-1]))
        self._epoch = lru_cache(maxsize=2)(self._shuffled)

    def images(self, start: int, count: int) -> NDArray[np.int64]:
        """Numbers of the images at `count` places, from `start` on."""
        places = np.arange(start, start + count)
        epochs, found = places // self._length, np.empty(count, np.int64)
        for epoch in np.unique(epochs):
            here = epochs == epoch
            found[here] = self._epoch(int(epoch))[places[here] % self._length]
        return found

    def substitutes(self, place: int) -> Iterator[int]:
        """Numbers of images that may replace the one at this place: half an epoch away, and those after."""
        epoch = self._epoch(place // self._length)
        for step in range(min(len(epoch), MOST_IN_A_ROW)):
            yield int(epoch[(place % self._length + len(epoch) // 2 + step) % len(epoch)])

    def _shuffled(self, epoch: int) -> NDArray[np.int64]:
        rng = np.random.default_rng([self._seed, epoch])
        shards = rng.permutation(len(self._starts) - 1)
        windows = [shards[first : first + WINDOW_SHARDS] for first in range(0, len(shards), WINDOW_SHARDS)]
        ranges = ([np.arange(*self._starts[shard : shard + 2]) for shard in window] for window in windows)
        return np.concatenate([rng.permutation(np.concatenate(each)) for each in ranges])


class CachedImages:
    """Decoded images as an endless stream: from the memory of the GPU if they fit, else from the mapped file."""

    replaced = 0  # a cache holds no unreadable images

    def __init__(self, cache: PixelCache, device: torch.device, config: TrainingConfig) -> None:
        self._device, self._mapped = device, cache.pixels
        self._order = ImageOrder([len(cache.pixels)], seed=config.seed, share=config.epoch_share)
        self._resident: Tensor | None = None
        if device.type == "cuda" and cache.pixels.nbytes < SHARE_OF_MEMORY * torch.cuda.mem_get_info(device)[0]:
            self._resident = torch.from_numpy(np.array(cache.pixels)).to(device)

    def __len__(self) -> int:
        return len(self._mapped)

    def take(self, start: int, count: int) -> Tensor:
        """`count` images from place `start` of the stream on, (count, H, W, 3) in uint8 on the device."""
        indices = self._order.images(start, count)
        if self._resident is not None:
            return self._resident[torch.from_numpy(indices).pin_memory().to(self._device, non_blocking=True)]
        return to_device(self._mapped[indices], self._device)

    def close(self) -> None:
        """Releases nothing: no thread reads ahead."""


class Batch(NamedTuple):
    """Decoded images, and how many of them replace others that could not be read."""

    pixels: Pixels  # (B, size, size, 3)
    replaced: int


class StreamedImages:
    """Images of tar shards as an endless stream; the next batches are decoded while a step computes.

    Each batch follows `stride` places after the last. An image that cannot be read is replaced by another of the same
    epoch; `replaced` is the number of such images in the last batch.
    """

    def __init__(
        self,
        index: ShardIndex,
        device: torch.device,
        config: TrainingConfig,
        *,
        stride: int,
        workers: Workers,
        limits: Limits,
    ) -> None:
        self.replaced = 0
        self.report = RefusalReport()  # of images that could not be read
        self._index, self._device, self._transform = index, device, config.transform
        self._order = ImageOrder(index.counts, seed=config.seed, share=config.epoch_share)
        self._stride = stride
        self._open = partial(read_images, transform=config.transform, limits=limits)
        self._workers = workers
        self._refused: set[int] = set()
        self._batches: Generator[Batch, None, None] | None = None
        self._next: tuple[int, int] | None = None

    def __len__(self) -> int:
        return len(self._index)

    def take(self, start: int, count: int) -> Tensor:
        """`count` images from place `start` of the stream on, (count, H, W, 3) in uint8 on the device."""
        if self._batches is None or self._next != (start, count):
            self.close()
            self._batches = read_ahead(self._read_batches(start, count), AHEAD)
        batch = next(self._batches)
        self._next, self.replaced = (start + self._stride, count), batch.replaced
        return to_device(batch.pixels, self._device)

    def close(self) -> None:
        """Ends the threads or processes that decode."""
        if self._batches is not None:
            self._batches.close()
            self._batches = None

    def _read_batches(self, start: int, count: int) -> Generator[Batch, None, None]:
        starts = count_from(start, self._stride)
        numbers = (int(number) for first in starts for number in self._order.images(first, count))
        with closing(self._open(map(self._index.item, numbers), workers=self._workers)) as stream:
            for first in count_from(start, self._stride):
                yield self._gather(stream, first, count)

    def _gather(self, stream: ImageStream, start: int, count: int) -> Batch:
        pixels = np.empty((count, self._transform.size, self._transform.size, 3), np.uint8)
        replaced = 0
        for row in range(count):
            found = next(stream)
            if isinstance(found, Refusal):
                found = self._replace(found, start + row)
                replaced += 1
            pixels[row] = found.pixels
        return Batch(pixels, replaced)

    def _replace(self, refusal: Refusal, place: int) -> NamedImage:
        self._note(refusal, int(self._order.images(place, 1)[0]))
        for number in self._order.substitutes(place):
            (found,) = self._open([self._index.item(number)], workers=1)
            if isinstance(found, NamedImage):
                return found
            self._note(found, number)
        raise NoImagesError(f"too many images cannot be read: {self.report.summary()}; check the shards")

    def _note(self, refusal: Refusal, number: int) -> None:
        if number not in self._refused:
            self._refused.add(number)
            self.report.add(refusal)


def open_images(
    fabric: Fabric,
    source: object,
    config: TrainingConfig,
    folder: Path,
    *,
    workers: Workers,
    limits: Limits,
    console: Console,
) -> PixelCache | ShardIndex:
    """The decoded images, or the index of their shards if they are streamed.

    The first rank decodes or lists them and, with `config.stream` None, chooses; the others find all ready.
    """
    stream, index = config.stream, None
    if stream is None:
        index = plain_shards(source, limits) if fabric.is_global_zero else None
        stream = bool(fabric.broadcast(index is not None and is_too_large(index, source, config, folder, limits)))

    def open_it(progress: object = None) -> PixelCache | ShardIndex:
        options = {"limits": limits, "progress": progress}
        if stream:
            return index or open_index(source, **options)  # type: ignore[arg-type]
        return open_cache(source, config.transform, folder, workers=workers, **options)  # type: ignore[arg-type]

    if fabric.is_global_zero:
        with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
            task = bar.add_task("listing" if stream else "decoding", total=None)
            images = open_it(lambda done, total: bar.update(task, completed=done, total=total))
    fabric.barrier()
    return images if fabric.is_global_zero else open_it()


def plain_shards(source: object, limits: Limits) -> ShardIndex | None:
    """The index of tar shards; None for any other source, which is decoded into the cache."""
    try:
        return open_index(source, limits=limits)
    except DiscopatchError:
        return None


def is_too_large(index: ShardIndex, source: object, config: TrainingConfig, folder: Path, limits: Limits) -> bool:
    """Whether the images of the shards would take half of the memory, or more than the free disk, decoded."""
    needed = len(index) * config.transform.size**2 * 3
    if needed > SHARE_OF_MEMORY * (usable_memory() or inf):
        return True
    there = next(parent for parent in (folder.absolute(), *folder.absolute().parents) if parent.exists())
    return needed > shutil.disk_usage(there).free and find_cache(source, config.transform, folder, limits) is None


def to_device(pixels: Pixels, device: torch.device) -> Tensor:
    """The pixels as a tensor on the device; the transfer to a GPU is asynchronous."""
    gathered = torch.from_numpy(pixels)
    return gathered.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else gathered


def step_generator(seed: int, step: int, rank: int, device: torch.device | str) -> torch.Generator:
    """Source of all random draws of one step on one rank."""
    state = np.random.SeedSequence([seed, step, rank]).generate_state(1, np.uint64)[0]
    return torch.Generator(device).manual_seed(int(state >> np.uint64(1)))


def random_patches(images: Tensor, patches: int, patch_size: int, generator: torch.Generator) -> Tensor:
    """(B, H, W, 3) in uint8 -> (B x patches, 3, S, S) in [-1, 1], at random places of each image."""
    corners = random_corners(len(images), patches, size=images.shape[1], patch_size=patch_size, generator=generator)
    return to_unit(extract_patches(images, corners, patch_size))


def whole_images(images: Tensor) -> Tensor:
    """(B, H, W, 3) in uint8 -> (B, 3, H, W) in [-1, 1]."""
    return to_unit(images).permute(0, 3, 1, 2)
