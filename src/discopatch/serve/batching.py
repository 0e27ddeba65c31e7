"""A bounded queue of images, and the threads that score them."""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from threading import Condition, Thread
from typing import TYPE_CHECKING, Any

from discopatch.images import DEFAULT_WORKERS
from discopatch.images.items import Item
from discopatch.results import Explanation, PredictedImage, Prediction
from discopatch.serve.problems import ProblemError

if TYPE_CHECKING:
    from discopatch.monitor import MonitorStatus
    from discopatch.serve.detectors import Loaded

FIRST_GUESS = 0.1  # seconds an image, before any was scored
LONGEST_WAIT = 60  # seconds that a client is asked to wait


@dataclass(frozen=True, slots=True)
class Scored:
    """A prediction, and what the monitor says after it, where the detector has one."""

    prediction: Prediction
    status: "MonitorStatus | None"


class Ticket:
    """The images of one request; `results` is done when all of them are, in their order, or when one has failed."""

    def __init__(self, count: int) -> None:
        self._loop = asyncio.get_running_loop()
        self.results: asyncio.Future[list[Any]] = self._loop.create_future()
        self.is_dropped = False
        self._found: list[Any] = [None] * count
        self._left = count

    def put(self, index: int, result: object) -> None:
        """Called by threads, one at a time."""
        self._found[index] = result
        self._left -= 1
        if self._left == 0:
            self._tell(lambda: self.results.set_result(self._found))

    def fail(self, error: Exception) -> None:
        self._tell(lambda: self.results.set_exception(error))

    def _tell(self, act: Callable[[], None]) -> None:
        def once() -> None:
            if not self.is_dropped and not self.results.done():
                act()

        self._loop.call_soon_threadsafe(once)


@dataclass(frozen=True, eq=False, slots=True)
class Job:
    """One image of a request, to be scored or explained."""

    loaded: "Loaded"
    item: Item
    ticket: Ticket
    index: int
    explain: bool


class Scoring:
    """Threads that take images from a queue of at most `max_queue`, first come, first served.

    An export takes images one by one, in as many threads as there are; a detector of torch takes up to `batch_size`
    images of any requests at once. Either gives the bits that `predict` gives. `on_batch` is told how many images were
    taken together.
    """

    def __init__(
        self, *, threads: int, batch_size: int, max_queue: int, on_batch: Callable[[int], None] = lambda count: None
    ) -> None:
        self.threads, self.batch_size, self.max_queue, self._on_batch = threads, batch_size, max_queue, on_batch
        self._queue: deque[Job] = deque()
        self._changed = Condition()
        self._done = Condition()  # held while a ticket is given a result
        self._seconds = FIRST_GUESS  # an image takes, lately
        self._closed = False
        self._running = [
            Thread(target=self._work, name=f"discopatch-score-{number}", daemon=True) for number in range(threads)
        ]
        for thread in self._running:
            thread.start()

    def __len__(self) -> int:
        """Images that wait."""
        return len(self._queue)

    def busy(self) -> ProblemError:
        """What is answered while there is no room for more."""
        seconds = self._seconds * (len(self._queue) + 1) / self.threads
        wait = min(LONGEST_WAIT, max(1, round(seconds)))
        detail = f"{len(self._queue):,} images wait to be scored, and there is no room for more: try again in {wait} s"
        return ProblemError(429, "queue-full", detail, headers={"Retry-After": str(wait)})

    def check_room(self, count: int = 1) -> None:
        """429 unless so many images fit into the queue now."""
        if len(self._queue) + count > self.max_queue:
            raise self.busy()

    def submit(self, loaded: "Loaded", items: Sequence[Item], *, explain: bool = False) -> Ticket:
        """Puts all of the images into the queue, or none."""
        ticket = Ticket(len(items))
        with self._changed:
            self.check_room(len(items))
            self._queue.extend(Job(loaded, item, ticket, index, explain) for index, item in enumerate(items))
            self._changed.notify(len(items))
        return ticket

    def drop(self, ticket: Ticket) -> None:
        """Takes out of the queue what nobody waits for any longer; what is being scored is scored to its end."""
        ticket.is_dropped = True
        with self._changed:
            kept = [job for job in self._queue if job.ticket is not ticket]
            self._queue.clear()
            self._queue.extend(kept)

    def close(self) -> None:
        """Scores what is in the queue, and ends the threads."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        for thread in self._running:
            thread.join()

    def _work(self) -> None:
        while batch := self._take():
            start = time.monotonic()
            self._on_batch(len(batch))
            self._score(batch)
            took = (time.monotonic() - start) / len(batch)
            self._seconds += 0.1 * (took - self._seconds)

    def _take(self) -> list[Job]:
        """The next image, and with a detector of torch those behind it that it can be scored with; none at the end."""
        with self._changed:
            while not self._queue and not self._closed:
                self._changed.wait()
            if not self._queue:
                return []
            batch = [self._queue.popleft()]
            most = 1 if batch[0].explain else batch[0].loaded.at_once(self.batch_size)
            while self._queue and len(batch) < most:
                following = self._queue[0]
                if following.loaded is not batch[0].loaded or following.explain:
                    break
                batch.append(self._queue.popleft())
            return batch

    def _score(self, batch: Sequence[Job]) -> None:
        """Gives every ticket its results; after a failure among several images, the rest is tried one by one."""
        given = 0
        try:
            for job, result in zip(batch, results_of(batch), strict=True):
                with self._done:
                    job.ticket.put(job.index, result)
                given += 1
        except Exception as error:
            if len(batch) == 1:
                batch[0].ticket.fail(error)
            else:
                for job in batch[given:]:
                    self._score([job])


def results_of(batch: Sequence[Job]) -> "Iterator[Scored | Explanation]":
    """What the detector says of each image; scores pass the monitor and the history, explanations do not."""
    loaded = batch[0].loaded
    if batch[0].explain:
        yield loaded.predictor.explain([batch[0].item])
        return
    workers = min(len(batch), DEFAULT_WORKERS)
    predicted: Iterator[PredictedImage] = loaded.predictor.predict_images([job.item for job in batch], workers=workers)
    for each in predicted:
        yield Scored(each.prediction, loaded.stream.record(each))
