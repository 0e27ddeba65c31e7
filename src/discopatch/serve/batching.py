"""A bounded queue of images and the threads that score them, with bounded memory for decoded pixels."""

import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from threading import Condition, Lock, Thread
from typing import Any

from PIL import Image

from discopatch.images import Item, Limits
from discopatch.images.decode import count_pixels
from discopatch.images.levels import Levels
from discopatch.serve.limits import busy


class PixelBudget:
    """The pixels that all threads together may hold decoded. First come, first served, so that no image starves."""

    def __init__(self, pixels: int) -> None:
        self._all = self._free = pixels
        self._turn, self._changed = Lock(), Condition()

    def take(self, pixels: int) -> int:
        """Waits until there is room, for a larger image until nothing else is held. Returns what `give` gives back."""
        pixels = min(pixels, self._all)
        with self._turn, self._changed:
            self._changed.wait_for(lambda: pixels <= self._free)
            self._free -= pixels
        return pixels

    def give(self, pixels: int) -> None:
        with self._changed:
            self._free += pixels
            self._changed.notify()


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundedItem(Item):
    """An encoded image whose pixels count for a budget from before it is decoded until they are freed."""

    budget: PixelBudget

    def decode(self, limits: Limits, *, side: int | None = None, levels: Levels | None = None) -> Image.Image:
        pixels = count_pixels(data, self.name) if (data := self.encoded(limits)) else 0
        if pixels > limits.max_pixels:  # it is refused by its header
            return Item.decode(self, limits, side=side, levels=levels)
        taken = self.budget.take(pixels)
        try:
            image = Item.decode(self, limits, side=side, levels=levels)
        except BaseException:
            self.budget.give(taken)
            raise
        weakref.finalize(image, self.budget.give, taken).atexit = False
        return image


@dataclass(eq=False, slots=True)
class Job:
    """One image of a request. Jobs with the same `work` may be done together, up to `at_once`."""

    item: Item
    work: Callable[[list[Item]], Iterator[Any]]  # yields one result per image
    at_once: int
    result: "Future[Any]" = field(default_factory=Future)


class ScoringQueue:
    """Threads that take images from a queue of at most `max_queue`, first in, first out."""

    def __init__(self, threads: int, max_queue: int, *, on_batch: Callable[[int], None]) -> None:
        self._max_queue, self._on_batch = max_queue, on_batch
        self._jobs: deque[Job] = deque()
        self._changed = Condition()
        self._is_closed = False
        self._threads = [
            Thread(target=self._run, name=f"discopatch-score-{number}", daemon=True) for number in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    def __len__(self) -> int:
        """Number of images in the queue, without those of cancelled requests."""
        return sum(not job.result.cancelled() for job in list(self._jobs))

    def check_room(self, count: int = 1) -> None:
        """Raises 503 unless so many images fit into the queue."""
        if len(self) + count > self._max_queue:
            raise busy("queue-full", f"the queue is full ({len(self):,} images): try again later")

    def submit(self, jobs: Sequence[Job]) -> None:
        """Puts all jobs into the queue, or none."""
        with self._changed:
            self.check_room(len(jobs))
            self._jobs = deque(job for job in (*self._jobs, *jobs) if not job.result.cancelled())
            self._changed.notify(len(jobs))

    def close(self) -> None:
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()

    def _run(self) -> None:
        while (batch := self._take()) is not None:
            started = [job for job in batch if job.result.set_running_or_notify_cancel()]
            if started:
                self._on_batch(len(started))
                do(started)

    def _take(self) -> list[Job] | None:
        """The next jobs that can be done together, or None at the end."""
        with self._changed:
            while not self._jobs and not self._is_closed:
                self._changed.wait()
            if not self._jobs:
                return None
            batch = [self._jobs.popleft()]
            while self._jobs and len(batch) < batch[0].at_once and self._jobs[0].work == batch[0].work:
                batch.append(self._jobs.popleft())
            return batch


def do(jobs: list[Job]) -> None:
    """Sets the result of every job. When several jobs fail together, the remaining ones are done one by one."""
    results = jobs[0].work([job.item for job in jobs])
    for number, job in enumerate(jobs):
        try:
            job.result.set_result(next(results))
        except Exception as error:
            if len(jobs) == 1:
                job.result.set_exception(error)
            else:
                for other in jobs[number:]:
                    do([other])
            return
