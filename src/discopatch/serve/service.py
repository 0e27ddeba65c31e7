"""The state of a running service: detectors, queue, monitors and history."""

import asyncio
import io
import json
import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, wait
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from threading import Event, Lock, Thread
from typing import TYPE_CHECKING, Any, TypeAlias
from weakref import WeakValueDictionary

import numpy as np
from PIL import Image
from starlette.requests import ClientDisconnect, Request

import discopatch
from discopatch.databases import IN_MEMORY
from discopatch.errors import DiscopatchError, ImageError, ParameterError
from discopatch.export.runtime import Runtime
from discopatch.history import Answer, History
from discopatch.images import DEFAULT_WORKERS, Item, NamedImage, Pixels
from discopatch.monitor import Monitor, MonitorStatus
from discopatch.results import Explanation, FittedDetector, PredictedImage, Prediction, as_row, from_row
from discopatch.serve.batching import BoundedItem, Job, PixelBudget, ScoringQueue
from discopatch.serve.limits import ClientRates, ProblemError, busy, invalid
from discopatch.serve.metrics import Metrics, log_event
from discopatch.serve.settings import Role, ServeSettings, is_loopback, read_tokens
from discopatch.serve.signatures import signed_copy

if TYPE_CHECKING:
    from discopatch.detector import Detector

KEPT_IN_MEMORY = 1000  # predictions, without a history file
LOOK_SECONDS = 0.5  # between two looks at what other processes have written
COMMIT_SECONDS = 5.0  # from the scores to the answer, at most, while the history cannot be written
FULL_SECONDS = 2.0  # between two attempts on a full disk, or without a server
MOST_PENDING = 2000  # predictions per detector that are not in the history yet; beyond, the oldest are dropped
THUMBNAIL = 96  # pixels along a side


Scored: TypeAlias = tuple[PredictedImage, bytes | None]  # without pixels; its thumbnail


@dataclass(eq=False)
class Write:
    """What is written together: the images of one request that count, its answer, or a new stream of the monitor."""

    images: list[tuple[Prediction, dict[str, Any]]] = field(default_factory=list)  # with values of `History.add`
    key: str | None = None
    answer: Answer | None = None  # with a key; after the transaction the first answer to a request with that key
    restart: bool = False
    tried: "Future[None]" = field(default_factory=Future)  # has a result after the first attempt, also a failed one


class Stream:
    """The monitor of the detector with one name, and what is not in the history yet.

    One thread writes. Each transaction begins with the state of the monitor in the history, which another process may
    have changed, and ends with the state after the images that it adds.
    """

    def __init__(self, name: str, metrics: Metrics) -> None:
        self.name = name
        self.version = 0  # rises with each change of the history or the monitor
        self.pending: list[Write] = []
        self.dropped = 0  # images beyond MOST_PENDING
        self.monitor: Monitor
        self._detector: FittedDetector
        self._rate = 0.0
        self._change: int | None = None  # of the history, whose state the monitor has; None if it has another
        self._is_new = False  # whether the next transaction may begin a new stream, for another detector
        self._is_foreign = False  # whether the history has the state of another detector
        self._doubt: tuple[str, list[Write]] | None = None  # a transaction that may have been committed
        self._metrics, self._lock, self._turn = metrics, Lock(), Lock()
        metrics.begin(name)

    def follow(self, detector: FittedDetector, rate: float, state: bytes | None, change: int) -> None:
        """Monitors the detector. The stream continues if the state, of this change, is of this detector and rate."""
        with self._turn:
            self._detector, self._rate, self._is_new, self._change = detector, rate, True, change
            self.monitor = self._load(state)
            self._show()

    def _load(self, state: bytes | None) -> Monitor:
        """The monitor with a state of the history; with that of another detector a new one, or the one before."""
        try:
            if state is None:
                monitor = Monitor(self._detector, false_alarm_rate=self._rate)
            else:
                monitor = Monitor.from_bytes(state, self._detector, self._rate)
            self._is_foreign = False
            return monitor
        except DiscopatchError as error:
            detail = "a new stream begins" if self._is_new else "images do not count: reload this or the other service"
            if not self._is_foreign:
                log_event(logging.WARNING, "monitor", detector=self.name, detail=f"{detail}: {error}")
            self._is_foreign = not self._is_new
            return Monitor(self._detector, false_alarm_rate=self._rate) if self._is_new else self.monitor

    def _show(self) -> None:
        self.version += 1
        self._metrics.show(self.name, self.monitor.status)

    def submit(self, write: Write) -> None:
        """Keeps it until it is written; beyond MOST_PENDING the oldest are dropped."""
        with self._lock:
            self.pending.append(write)
            while sum(max(1, len(each.images)) for each in self.pending) > MOST_PENDING:
                lost = len(self.pending.pop(0).images)
                self.dropped += lost
                self._metrics.history_lost.labels(self.name).inc(lost)

    def find(self, key: str) -> Write | None:
        """The request with that key that is not written yet."""
        with self._lock:
            return next((each for each in self.pending if each.key == key), None)

    def look(self, history: History, change: int | None) -> None:
        """Takes the state after this change, if another process has made it."""
        with self._turn:
            if change not in (None, self._change):
                self.monitor, self._change = self._load(history.state(self.name)), change
                self._show()

    def write(self, history: History) -> None:
        """Writes what is pending and the monitor's state after it, in one transaction."""
        with self._turn:
            self._settle(history)
            with self._lock:
                writes = list(self.pending)
            if not (writes or self._is_new):
                return
            try:
                with history.transaction() as change:
                    number = change.begin_change(self.name)
                    is_other = self._change is None or number != self._change + 1
                    monitor = self._load(change.state(self.name)) if is_other else self.monitor
                    self._change = None  # until it is committed
                    counted = [each for write in writes for each in self._count(change, monitor, write)]
                    self.monitor = monitor  # also if the rest fails
                    for prediction, values, alarm in counted:
                        change.add(self.name, prediction, **values)
                        if alarm is not None:
                            change.add_alarm(self.name, values["time"], alarm.as_dict())
                    if not self._is_foreign:
                        change.put(self.name, state=monitor.to_bytes())
            except BaseException:
                doubt = history.database.doubt
                self._doubt = None if doubt is None else (doubt, writes)
                raise
            else:
                self._change, self._is_new = number, False
                self._remove(writes)
            finally:
                self._show()
                for each in writes:
                    if not each.tried.done():
                        each.tried.set_result(None)

    def _count(
        self, change: History, monitor: Monitor, write: Write
    ) -> Iterator[tuple[Prediction, dict[str, Any], MonitorStatus | None]]:
        """Counts the images for the monitor, unless a request with the same key was written before."""
        if write.key is not None and write.answer is not None:
            if (first := change.answer(self.name, write.key)) is not None:
                write.answer, write.images = first, []
            else:
                change.add_answer(self.name, write.key, write.answer, len(write.images))
        if write.restart:
            monitor.restart()
        for prediction, values in write.images:
            evidence = alarm = None
            if values["digest"] == self._detector.digest_ and not self._is_foreign:
                was_alarm = monitor.status.alarm
                status = monitor.update(prediction)
                evidence = status.log10_evidence
                alarm = status if status.alarm and not was_alarm else None
            yield prediction, {**values, "evidence": evidence}, alarm

    def _settle(self, history: History) -> None:
        """Removes what a transaction has written whose connection was lost before its end was confirmed."""
        if self._doubt is not None:
            number, writes = self._doubt
            if history.was_committed(number):
                self._remove(writes)
            self._doubt = None

    def _remove(self, writes: list[Write]) -> None:
        done = set(writes)
        with self._lock:
            self.dropped -= sum(len(each.images) for each in done.difference(self.pending))
            self.pending = [each for each in self.pending if each not in done]


@dataclass(frozen=True, eq=False)
class Loaded:
    """A detector in memory. A request keeps the detector with which it began, also after a reload."""

    name: str
    path: Path
    detector: FittedDetector
    stream: Stream
    since: float
    at_once: int  # images that are scored together, of several requests

    @property
    def is_export(self) -> bool:
        return self.path.is_dir()

    @property
    def key(self) -> tuple[str, float]:
        """Equal for detectors with equal scores and decisions."""
        return self.detector.digest_, self.detector.false_alarm_rate_

    def score(self, items: list[Item]) -> Iterator[Scored]:
        """Scores the images, which do not count yet."""
        for predicted in self.detector.predict_images(items, workers=min(len(items), DEFAULT_WORKERS)):
            thumbnail = None if predicted.pixels is None else thumbnail_of(predicted.pixels)
            yield predicted._replace(image=None), thumbnail

    def images(self, scored: Sequence[Scored]) -> list[tuple[Prediction, dict[str, Any]]]:
        """The images, with their values in the history."""
        now, digest = time.time(), self.detector.digest_
        return [(one.prediction, {"time": now, "digest": digest, "thumbnail": image}) for one, image in scored]

    def explain(self, items: list[Item]) -> Iterator[Explanation]:
        """Explains the images, which count neither for the monitor nor for the history."""
        for item in items:
            yield self.detector.explain([item])


class Service:
    """Everything that the routes use. `writer` is started in the event loop; `close` is called after all requests."""

    def __init__(self, settings: ServeSettings) -> None:
        self.settings = settings
        self.tokens: dict[bytes, Role] | None = None
        if settings.token_file is None and not is_loopback(settings.host):
            detail = f"anyone who reaches {settings.host} may use this service: give --token-file"
            log_event(logging.WARNING, "tokens", detail=detail)
        self.metrics = Metrics()
        self.rates = ClientRates(settings.client_rate)
        self._turns: WeakValueDictionary[tuple[str, str], asyncio.Lock] = WeakValueDictionary()  # by detector and key
        self.held_bytes = 0  # of the bodies of all requests
        self.budget = PixelBudget(settings.max_decoded or settings.max_pixels)
        self.is_stopping = False
        self.history_error: str | None = None
        self._looked_at = 0.0
        self._closing, self._work, self._reloading, self._changing = Event(), Event(), asyncio.Lock(), asyncio.Lock()
        all_exports = all(path.is_dir() for path in settings.detectors.values())
        # An export scores one image in one thread. A torch detector uses all cores for one batch.
        self.threads = settings.threads or ((os.cpu_count() or 1) if all_exports else 1)
        keep = settings.keep if settings.history else KEPT_IN_MEMORY
        self.history = History(settings.history or IN_MEMORY, keep=keep)
        self._streams = {name: Stream(name, self.metrics) for name in settings.detectors}
        self.loaded: dict[str, Loaded] = {}
        try:
            for name in settings.detectors:
                self.history.reserve(name)
            self._load()
        except BaseException:
            self.history.close()
            raise
        self.queue = ScoringQueue(self.threads, settings.max_queue, on_batch=self.metrics.batch.observe)
        self.writer = Thread(target=self._write, name="discopatch-history", daemon=True)
        pending = self._streams.values()
        for gauge, text, value in (
            ("queue_images", "Images in the queue.", lambda: len(self.queue)),
            ("queue_bytes", "Bytes of the bodies of requests.", lambda: self.held_bytes),
            ("history_failing", "1 while the history cannot be written.", lambda: self.history_error is not None),
            ("history_unwritten_images", "Not yet in the history.", lambda: unwritten(pending)),
            ("ready", "1 while the service accepts images.", lambda: not self.is_stopping),
        ):
            self.metrics.gauge(gauge, text, value)

    def close(self) -> None:
        """Scores and writes everything that was accepted."""
        self.is_stopping = True
        self.queue.close()
        self._closing.set()
        self._work.set()
        if self.writer.is_alive():
            self.writer.join()
        self.history.close()

    def check_ready(self) -> None:
        if self.is_stopping:
            raise busy("stopping", "the service is stopping")
        if self.history_error is not None:
            raise busy("history", f"images are scored, but not stored: {self.history_error}")

    @property
    def unwritten(self) -> int:
        """Number of counted images that are not in the history."""
        return unwritten(self._streams.values()) + sum(each.dropped for each in self._streams.values())

    def find(self, name: str) -> Loaded:
        if name not in self.loaded:
            detail = f"there is no detector {name[:100]!r}, only {', '.join(self.loaded)}"
            raise ProblemError(404, "no-such-detector", detail)
        return self.loaded[name]

    async def predictions(
        self,
        request: Request,
        loaded: Loaded,
        items: Sequence[Item],
        *,
        count: bool,
        key: str | None = None,
        whole: bool = False,
    ) -> list[Prediction]:
        """The predictions of the images, in order, once those that count are in the history.

        With `whole`, the request is refused where an image is: then only its refused images count. A request with the
        key of an earlier one gets the answer of that one, and counts only if that one has none. While the history
        cannot be written, answers are given after COMMIT_SECONDS at most.
        """
        stream, digest = loaded.stream, ""
        if key is not None:
            digest = await asyncio.to_thread(digest_of, items, count)
        async with nullcontext() if key is None else self._turns.setdefault((loaded.name, key), asyncio.Lock()):
            if key is not None:
                if (write := stream.find(key)) is not None:  # its client has left, or the history cannot be written
                    await self._commit(write)
                    return predictions_of(write.answer, digest)
                if (answer := await self._answer(loaded.name, key)) is not None:
                    return predictions_of(answer, digest)
            scored: list[Scored] = await self.results(request, loaded, items)
            refused = [each for each in scored if each[0].refusal is not None]
            found = [predicted.prediction for predicted, _ in scored]
            request.state.flagged, request.state.refused = sum(bool(each.is_ood) for each in found), len(refused)
            counted = [] if not count else refused if whole and refused else scored
            if not counted and key is None:
                return found
            write = Write(loaded.images(counted), key)
            if key is not None:
                rows = [as_row(each, loaded.detector.column_names) for each in found]
                write.answer = Answer(digest, json.dumps(rows))
            for predicted, _ in counted:
                self.metrics.count(loaded.name, predicted)
            stream.submit(write)
            self._work.set()
            if self.history_error is None:
                await self._commit(write)
            return found if key is None else predictions_of(write.answer, digest)

    async def _commit(self, write: Write) -> None:
        """Returns after the first attempt to write it, or after COMMIT_SECONDS."""
        _, late = await asyncio.wait([asyncio.wrap_future(write.tried)], timeout=COMMIT_SECONDS)
        if late and self.history_error is None:
            self.history_error = f"nothing was written for {COMMIT_SECONDS:g} seconds"
            log_event(logging.ERROR, "history", detail=self.history_error)

    async def _answer(self, name: str, key: str) -> Answer | None:
        """The stored answer. If the history cannot be read, the transaction finds it later."""
        if self.history_error is None or not self.history.database.is_shared:
            with suppress(DiscopatchError, TimeoutError):
                return await asyncio.wait_for(asyncio.to_thread(self.history.answer, name, key), COMMIT_SECONDS)
        return None

    def restart(self, loaded: Loaded) -> MonitorStatus:
        """Begins a new stream of the monitor."""
        write = Write(restart=True)
        loaded.stream.submit(write)
        self._work.set()
        wait([write.tried], COMMIT_SECONDS)
        return loaded.stream.monitor.status

    def bounded(self, items: Iterable[Item]) -> list[BoundedItem]:
        """The same images, whose pixels count for the budget of this service while they are decoded."""
        return [BoundedItem(item.name, item.content, budget=self.budget) for item in items]

    async def results(
        self, request: Request, loaded: Loaded, items: Sequence[Item], *, explain: bool = False
    ) -> list[Any]:
        """The results of the images, in order. The images leave the queue when the client disconnects."""
        request.state.detector, request.state.images = loaded.name, len(items)  # for the log
        work = loaded.explain if explain else loaded.score
        jobs = [Job(item, work, 1 if explain else loaded.at_once) for item in self.bounded(items)]
        self.queue.submit(jobs)
        answer = asyncio.gather(*(asyncio.wrap_future(job.result) for job in jobs))
        answer.add_done_callback(lambda done: done.cancelled() or done.exception())  # else asyncio logs an error
        leaving = asyncio.create_task(until_gone(request))
        try:
            self.rates.take(request.scope["state"], len(items))
            awaited: set[asyncio.Future[Any]] = {answer, leaving}
            await asyncio.wait(awaited, timeout=self.settings.timeout, return_when=asyncio.FIRST_COMPLETED)
            if answer.done():
                return list(answer.result())
            if leaving.done():
                raise ClientDisconnect
            raise busy("timeout", f"no answer within {self.settings.timeout:g} seconds: send fewer images, or later")
        except ImageError as error:
            raise ProblemError(422, "image-refused", str(error), reason=str(error.reason)) from None
        finally:
            leaving.cancel()
            answer.cancel()

    async def reload(self) -> list[str]:
        """Loads detectors and tokens again. Returns the names of changed detectors; one bad file changes nothing."""
        async with self._reloading:
            try:
                changed = await asyncio.to_thread(self._load)
            except DiscopatchError as error:
                self.metrics.reloads.labels("refused").inc()
                log_event(logging.ERROR, "reload", detail=str(error))
                raise ProblemError(422, "reload-refused", f"nothing was changed: {error}") from None
        self.metrics.reloads.labels("done").inc()
        log_event(logging.INFO, "reload", changed=changed)
        return changed

    async def change(self, loaded: Loaded, change: "Callable[[Detector], Detector]") -> Loaded:
        """Changes a detector in its file, and loads it from there."""
        if loaded.is_export or self.settings.require_signature:
            kind = "an export" if loaded.is_export else "signed"
            detail = f"{loaded.name} is {kind}: change the file of the detector where it was fitted, and bring it here"
            raise ProblemError(409, "cannot-change", detail)
        from discopatch.detector import change_file  # with torch, which exports do not need

        options = {"device": self.settings.device, "max_pixels": self.settings.max_pixels}
        async with self._changing:
            try:
                await asyncio.to_thread(change_file, loaded.path, change, **options)
            except (DiscopatchError, OSError) as error:
                raise ProblemError(422, "change-refused", f"nothing was changed: {error}") from None
            await self.reload()
        return self.loaded[loaded.name]

    def _load(self) -> list[str]:
        tokens = None if self.settings.token_file is None else read_tokens(self.settings.token_file)
        found, key = {}, self.settings.require_signature
        for name, path in self.settings.detectors.items():
            try:
                with signed_copy(path, key) if key else nullcontext(path) as place:
                    detector, at_once = self._read(place)
                found[name] = Loaded(name, path, detector, self._streams[name], time.time(), at_once)
            except (DiscopatchError, OSError) as error:
                raise ParameterError(f"detector {name}: {error}") from error
        before = {name: each.key for name, each in self.loaded.items()}
        changes = self.history.changes()  # before the states
        states = {name: self.history.state(name) for name in found}
        for name, each in found.items():
            each.stream.follow(each.detector, self.settings.rate, states[name], changes.get(name, 0))
        self._work.set()
        self.loaded, self.tokens = found, tokens
        return [name for name, each in found.items() if before.get(name) != each.key]

    def _read(self, path: Path) -> tuple[FittedDetector, int]:
        """The detector, after a trial prediction, and how many images it scores together."""
        settings, threads = self.settings, max(1, (os.cpu_count() or 1) // self.threads)
        limits = {"max_pixels": settings.max_pixels, "max_bytes": settings.max_bytes}
        detector: FittedDetector
        if path.is_dir():
            detector, at_once = Runtime.load(path, threads=threads, **limits), 1
        else:
            options: Any = {"device": settings.device, "batch_size": settings.batch_size, **limits}
            detector = loaded = discopatch.Detector.load(path, networks=settings.networks, **options)
            at_once = loaded.encoder_.batch_size
        size = detector.transform_.size
        detector.predict([NamedImage("trial", np.full((size, size, 3), 128, np.uint8))], workers=1)
        return detector, at_once

    def _write(self) -> None:
        while not self._closing.is_set():
            if self.history_error is None:
                self._work.wait(LOOK_SECONDS)
            else:
                self._closing.wait(FULL_SECONDS)
            self._work.clear()
            self._flush()
        self._flush()

    def _flush(self) -> None:
        """Writes all that is pending. An error, such as a full disk, is logged, and scoring goes on."""
        failed = None
        for stream in self._streams.values():
            try:
                stream.write(self.history)
            except DiscopatchError as error:
                self.metrics.history_errors.inc()
                failed = str(error)
        if self.history.database.is_shared and failed is None and time.monotonic() - self._looked_at > LOOK_SECONDS:
            try:
                changes = self.history.changes()
                for name, stream in self._streams.items():
                    stream.look(self.history, changes.get(name))
            except DiscopatchError as error:
                failed = str(error)
            self._looked_at = time.monotonic()
        if (failed is None) != (self.history_error is None):
            level = logging.INFO if failed is None else logging.ERROR
            log_event(level, "history", detail=failed or "the history is written again")
        self.history_error = failed


def unwritten(streams: Iterable[Stream]) -> int:
    """Number of images that have still to be written."""
    return sum(len(write.images) for each in streams for write in each.pending)


def predictions_of(answer: Answer | None, digest: str) -> list[Prediction]:
    """Those of a stored answer; 422 if it is that of a request with another content."""
    assert answer is not None
    if answer.digest != digest:
        raise invalid("another request had this Idempotency-Key: give each request a key of its own")
    return [from_row(each) for each in json.loads(answer.body)]


def digest_of(items: Sequence[Item], count: bool) -> str:
    """The content of a request, without names, which the service may have made up."""
    found = sha256(str(count).encode())
    for item in items:
        assert isinstance(item.content, bytes)
        found.update(sha256(item.content).digest())
    return found.hexdigest()


def thumbnail_of(pixels: Pixels) -> bytes:
    """The image as the model receives it, as a small JPEG."""
    small = Image.fromarray(pixels).resize((THUMBNAIL, THUMBNAIL), Image.Resampling.BOX)
    buffer = io.BytesIO()
    small.save(buffer, "JPEG", quality=80)
    return buffer.getvalue()


async def until_gone(request: Request) -> None:
    """Returns when the client has disconnected."""
    with suppress(ClientDisconnect):
        while (await request.receive())["type"] != "http.disconnect":
            pass
