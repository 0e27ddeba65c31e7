"""Images that fit neither on the device nor in memory: read from tar shards in a shuffled order, decoded as needed.

As everywhere in training, the order follows from the seed and the place in the run alone; no state is carried along:
which image stands at a place is computed, and the image is read by itself, from where the index says that it lies.
"""

from collections import deque
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from functools import lru_cache
from itertools import count as count_up
from math import ceil
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from discopatch.errors import NoImagesError
from discopatch.images import (
    Limits,
    NamedImage,
    Pixels,
    Refusal,
    RefusalReport,
    ShardIndex,
    Transform,
    Workers,
    read_images,
)
from discopatch.images.workers import ImageStream
from discopatch.training.batches import to_device

WINDOW_SHARDS, WINDOW_IMAGES = 16, 65_536  # that are shuffled together, at least
AHEAD = 2  # batches that are decoded while a step computes
MOST_IN_A_ROW = 100  # images that may be refused one after the other

Numbers = NDArray[np.int64]


class EpochPlan(NamedTuple):
    """The order of the shards in one epoch, cut into windows."""

    shards: Numbers
    first_shards: list[int]  # of the windows, in that order, and the number of shards
    first_places: Numbers  # of the windows, and the number of images


class Batch(NamedTuple):
    """Decoded images, and how many of them stand for others that could not be read."""

    pixels: Pixels  # (B, size, size, 3)
    replaced: int


class StreamOrder:
    """Which image stands at which place of an endless stream over shards of `counts` images.

    Every epoch holds each image once. It is a new permutation of the shards, cut into windows of consecutive ones, of
    at least `WINDOW_SHARDS` with at least `WINDOW_IMAGES` in all; the images of a window are permuted together. With a
    `share` below 1 an epoch is cut after so many images.
    """

    def __init__(self, counts: Sequence[int] | Numbers, *, seed: int, share: float = 1.0) -> None:
        self.counts = np.asarray(counts, np.int64)
        self.starts = np.concatenate([[0], np.cumsum(self.counts)])
        self.seed = seed
        self.length = ceil(share * int(self.starts[-1]))
        self._plan = lru_cache(maxsize=2)(self._make_plan)
        self._window = lru_cache(maxsize=2)(self._make_window)

    def images(self, start: int, count: int) -> Numbers:
        """The numbers of the images at `count` places, from `start` on."""
        places = np.arange(start, start + count)
        found = np.empty(count, np.int64)
        done = 0
        while done < count:
            epoch, place = divmod(int(places[done]), self.length)
            window, begin, end = self._find(epoch, place)
            some = min(min(end, self.length) - place, count - done)
            found[done : done + some] = self._window(epoch, window)[place - begin : place - begin + some]
            done += some
        return found

    def substitutes(self, place: int) -> Iterator[int]:
        """The numbers of images that may stand in for the one at this place: those half a window away, and after."""
        epoch, within = divmod(place, self.length)
        window, begin, _ = self._find(epoch, within)
        images = self._window(epoch, window)
        for step in range(len(images)):
            yield int(images[(within - begin + len(images) // 2 + step) % len(images)])

    def _find(self, epoch: int, place: int) -> tuple[int, int, int]:
        """The window at a place of an epoch, and the places where it begins and ends."""
        first_places = self._plan(epoch).first_places
        window = int(np.searchsorted(first_places, place, side="right")) - 1
        return window, int(first_places[window]), int(first_places[window + 1])

    def _make_plan(self, epoch: int) -> EpochPlan:
        shards = np.random.default_rng([self.seed, epoch, 31]).permutation(len(self.counts))
        first_shards, first_places = [0], [0]
        ends = np.cumsum(self.counts[shards])
        for number, end in enumerate(ends.tolist(), start=1):
            if number - first_shards[-1] >= WINDOW_SHARDS and end - first_places[-1] >= WINDOW_IMAGES:
                first_shards.append(number)
                first_places.append(end)
        # What does not fill a window of its own belongs to the one before.
        kept = max(len(first_shards) - 1, 1)
        return EpochPlan(
            shards, [*first_shards[:kept], len(shards)], np.array([*first_places[:kept], ends[-1]], np.int64)
        )

    def _make_window(self, epoch: int, window: int) -> Numbers:
        plan = self._plan(epoch)
        shards = plan.shards[plan.first_shards[window] : plan.first_shards[window + 1]]
        images = np.concatenate([np.arange(self.starts[shard], self.starts[shard + 1]) for shard in shards])
        return np.random.default_rng([self.seed, epoch, window, 32]).permutation(images)


class StreamedImages:
    """The images of tar shards as an endless stream, `batch` at a time, each batch `stride` places after the last.

    The next batches are read and decoded while a step computes. In the place of an image that cannot be read stands the
    one half a window away, or the next after that which can: `replaced` says how many do in the batch last taken.
    """

    def __init__(
        self,
        index: ShardIndex,
        device: torch.device,
        transform: Transform,
        *,
        seed: int,
        share: float = 1.0,
        batch: int,
        stride: int,
        workers: Workers,
        limits: Limits,
    ) -> None:
        self.report = RefusalReport()  # of images that were refused as they were decoded
        self.replaced = 0
        self._index, self._device, self._transform = index, device, transform
        self._order = StreamOrder(index.counts, seed=seed, share=share)
        self._batch, self._stride = batch, stride
        self._workers, self._limits = workers, limits
        self._refused: set[int] = set()
        self._taken: tuple[int, int] | None = None
        self._last = Batch(np.empty((0, 0, 0, 3), np.uint8), 0)
        self._pool: ThreadPoolExecutor | None = None
        self._batches: Generator[Batch, None, None] | None = None
        self._waiting: deque[Future[Batch]] = deque()
        self._next_start: int | None = None

    def __len__(self) -> int:
        return len(self._index)

    def take(self, start: int, count: int) -> Tensor:
        """`count` images from place `start` of the stream on, (count, H, W, 3) in uint8 on the device."""
        if self._taken != (start, count):
            self._last = self._next(start) if count == self._batch else self._gather_once(start, count)
            self._taken = (start, count)
        self.replaced = self._last.replaced
        return to_device(self._last.pixels, self._device)

    def close(self) -> None:
        """Ends the threads or processes that decode."""
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
        if self._batches is not None:
            self._batches.close()
        self._pool, self._batches, self._next_start = None, None, None
        self._waiting.clear()

    def _next(self, start: int) -> Batch:
        if start != self._next_start:
            self.close()
            self._pool = ThreadPoolExecutor(1, thread_name_prefix="discopatch-stream")
            self._batches = self._read_batches(start)
            self._ask(AHEAD)
        self._ask(1)
        self._next_start = start + self._stride
        return self._waiting.popleft().result()

    def _ask(self, batches: int) -> None:
        assert self._pool is not None
        assert self._batches is not None
        for _ in range(batches):
            self._waiting.append(self._pool.submit(next, self._batches))

    def _read_batches(self, start: int) -> Generator[Batch, None, None]:
        def numbers() -> Iterator[int]:
            for first in count_up(start, self._stride):
                yield from self._order.images(first, self._batch).tolist()

        with closing(self._read(numbers())) as stream:
            for first in count_up(start, self._stride):
                yield self._gather(stream, first, self._batch)

    def _gather_once(self, start: int, count: int) -> Batch:
        with closing(self._read(iter(self._order.images(start, count).tolist()))) as stream:
            return self._gather(stream, start, count)

    def _read(self, numbers: Iterator[int], *, workers: Workers | None = None) -> ImageStream:
        items = map(self._index.item, numbers)
        return read_images(items, transform=self._transform, workers=workers or self._workers, limits=self._limits)

    def _gather(self, stream: ImageStream, start: int, count: int) -> Batch:
        size = self._transform.size
        pixels = np.empty((count, size, size, 3), np.uint8)
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
        for number, _ in zip(self._order.substitutes(place), range(MOST_IN_A_ROW), strict=False):
            (found,) = self._read(iter([number]), workers=1)
            if isinstance(found, NamedImage):
                return found
            self._note(found, number)
        raise NoImagesError(f"no image to go on with: {self.report.summary()}; check the shards, or pack them again")

    def _note(self, refusal: Refusal, number: int) -> None:
        if number not in self._refused:
            self._refused.add(number)
            self.report.add(refusal)
