"""The state of a running service: detectors, queue, monitors and history."""

import asyncio
import io
import logging
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from threading import Event, Lock, Thread
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from PIL import Image
from starlette.requests import ClientDisconnect, Request

import discopatch
from discopatch.errors import DiscopatchError, ImageError, ParameterError
from discopatch.export.runtime import Runtime
from discopatch.history import IN_MEMORY, History
from discopatch.images import DEFAULT_WORKERS, Item, NamedImage, Pixels
from discopatch.monitor import Monitor, MonitorStatus
from discopatch.results import Explanation, FittedDetector, PredictedImage, Prediction
from discopatch.serve.batching import BoundedItem, Job, PixelBudget, ScoringQueue
from discopatch.serve.limits import ClientRates, ProblemError, busy, invalid
from discopatch.serve.metrics import Metrics, log_event
from discopatch.serve.settings import Role, ServeSettings, is_loopback, read_tokens
from discopatch.serve.signatures import signed_copy

KEPT_IN_MEMORY = 1000  # predictions, without a history file
FLUSH_SECONDS = 0.2  # between two transactions
FULL_SECONDS = 2.0  # between two attempts on a full disk
MOST_PENDING = 2000  # predictions per detector that are not in the history yet; beyond, the oldest are dropped
KEPT_ANSWERS = 10_000  # predictions of requests with idempotency keys, and keys
THUMBNAIL = 96  # pixels along a side


Scored: TypeAlias = tuple[PredictedImage, bytes | None]  # without pixels; its thumbnail


@dataclass(eq=False)
class Answer:
    """The answer to all requests with one idempotency key; the first of them holds the lock."""

    digest: str
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    found: list[Prediction] | None = None


class Record(NamedTuple):
    """A prediction that is not in the history yet, and the status of the monitor if it raised an alarm."""

    prediction: Prediction
    values: dict[str, Any]  # of `History.add`
    alarm: MonitorStatus | None


class Stream:
    """The monitor of the detector with one name, and its predictions that are not in the history yet."""

    def __init__(self, name: str, metrics: Metrics) -> None:
        self.name = name
        self.version = 0  # rises with each change of the history or the monitor
        self.pending: list[Record] = []
        self.dropped = 0  # beyond MOST_PENDING
        self.monitor: Monitor
        self._digest = ""  # of the monitored detector
        self._metrics, self._lock, self._is_changed = metrics, Lock(), False
        metrics.begin(name)

    def follow(self, detector: FittedDetector, rate: float, state: bytes | None) -> None:
        """Monitors the detector. The stream continues if the state belongs to this detector and rate."""
        with self._lock:
            if self._digest:
                state = self.monitor.to_bytes()
            self.monitor = Monitor(detector, false_alarm_rate=rate)
            if state is not None:
                try:
                    self.monitor = Monitor.from_bytes(state, detector, rate)
                except DiscopatchError as error:
                    log_event(logging.WARNING, "monitor", detector=self.name, detail=f"a new stream begins: {error}")
            self._digest, self._is_changed = detector.digest_, True
            self._metrics.show(self.name, self.monitor.status)

    def record(self, detector: FittedDetector, predicted: PredictedImage, thumbnail: bytes | None) -> None:
        """Counts an image, unless its detector has been replaced also for the monitor."""
        prediction, alarm = predicted.prediction, None
        values = {"time": time.time(), "digest": detector.digest_, "thumbnail": thumbnail}
        with self._lock:
            if detector.digest_ == self._digest:
                was_alarm = self.monitor.status.alarm
                status = self.monitor.update(prediction)
                values["evidence"] = status.log10_evidence
                alarm = status if status.alarm and not was_alarm else None
                self._metrics.show(self.name, status)
            self._put([*self.pending, Record(prediction, values, alarm)])
        self._metrics.count(self.name, predicted)

    def restart(self) -> MonitorStatus:
        """Begins a new stream of the monitor."""
        with self._lock:
            self.monitor.restart()
            self._is_changed = True
            self.version += 1
        self._metrics.show(self.name, self.monitor.status)
        return self.monitor.status

    def write(self, history: History) -> None:
        """Writes the pending predictions and the monitor's state after them, in one transaction."""
        with self._lock:
            if not self.pending and not self._is_changed:
                return
            records, self.pending, self._is_changed = self.pending, [], False
            state = self.monitor.to_bytes()
        try:
            with history.transaction() as change:
                for prediction, values, alarm in records:
                    change.add(self.name, prediction, **values)
                    if alarm is not None:
                        change.add_alarm(self.name, values["time"], alarm.as_dict())
                change.put(self.name, state=state)
        except BaseException:
            with self._lock:
                self._put([*records, *self.pending])
                self._is_changed = True
            raise
        finally:
            self.version += 1

    def _put(self, records: list[Record]) -> None:
        self.pending = records[-MOST_PENDING:]
        self.dropped += len(records) - len(self.pending)
        self._metrics.history_lost.labels(self.name).inc(len(records) - len(self.pending))


@dataclass(frozen=True, eq=False)
class Loaded:
    """A detector in memory. A request keeps the detector with which it began, also after a reload."""

    name: str
    path: Path
    detector: FittedDetector
    stream: Stream
    since: float

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

    def count(self, scored: Sequence[Scored]) -> None:
        """Counts the images for the monitor, the history and the metrics."""
        for predicted, thumbnail in scored:
            self.stream.record(self.detector, predicted, thumbnail)

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
        self._answers: dict[tuple[str, str], Answer] = {}  # by detector and key, oldest first
        self.held_bytes = 0  # of the bodies of all requests
        self.budget = PixelBudget(settings.max_decoded or settings.max_pixels)
        self.is_stopping = False
        self.history_error: str | None = None
        self._closing, self._reloading = Event(), asyncio.Lock()
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
            ("history_unwritten_images", "Not yet in the history.", lambda: sum(len(s.pending) for s in pending)),
            ("ready", "1 while the service accepts images.", lambda: not self.is_stopping),
        ):
            self.metrics.gauge(gauge, text, value)

    def close(self) -> None:
        """Scores and writes everything that was accepted."""
        self.is_stopping = True
        self.queue.close()
        self._closing.set()
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
        return sum(len(each.pending) + each.dropped for each in self._streams.values())

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
        """The predictions of the images, in order, which count once all are there.

        With `whole`, the request is refused where an image is: then only its refused images count. A request with the
        key of an earlier one gets the answer of that one, and counts only if that one has none.
        """
        if key is None:
            return await self._predictions(request, loaded, items, count=count, whole=whole)
        digest = await asyncio.to_thread(digest_of, items, count)
        answer = self._answers.setdefault((loaded.name, key), Answer(digest))
        if answer.digest != digest:
            raise invalid("another request had this Idempotency-Key: give each request a key of its own")
        while sum(1 + len(each.found or ()) for each in self._answers.values()) > KEPT_ANSWERS:
            del self._answers[next(iter(self._answers))]
        async with answer.lock:
            if answer.found is None:
                answer.found = await self._predictions(request, loaded, items, count=count, whole=whole)
        return answer.found

    async def _predictions(
        self, request: Request, loaded: Loaded, items: Sequence[Item], *, count: bool, whole: bool
    ) -> list[Prediction]:
        scored: list[Scored] = await self.results(request, loaded, items)
        refused = [each for each in scored if each[0].refusal is not None]
        request.state.flagged = sum(bool(predicted.prediction.is_ood) for predicted, _ in scored)
        request.state.refused = len(refused)
        if count:
            await asyncio.to_thread(loaded.count, refused if whole and refused else scored)
        return [predicted.prediction for predicted, _ in scored]

    async def results(
        self, request: Request, loaded: Loaded, items: Sequence[Item], *, explain: bool = False
    ) -> list[Any]:
        """The results of the images, in order. The images leave the queue when the client disconnects."""
        request.state.detector, request.state.images = loaded.name, len(items)  # for the log
        batch_size = 1 if explain or loaded.is_export else self.settings.batch_size
        work = loaded.explain if explain else loaded.score
        bounded = (BoundedItem(item.name, item.content, budget=self.budget) for item in items)
        jobs = [Job(item, work, batch_size) for item in bounded]
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

    def _load(self) -> list[str]:
        tokens = None if self.settings.token_file is None else read_tokens(self.settings.token_file)
        found, key = {}, self.settings.require_signature
        for name, path in self.settings.detectors.items():
            try:
                with signed_copy(path, key) if key else nullcontext(path) as place:
                    found[name] = Loaded(name, path, self._read(place), self._streams[name], time.time())
            except (DiscopatchError, OSError) as error:
                raise ParameterError(f"detector {name}: {error}") from error
        before = {name: each.key for name, each in self.loaded.items()}
        for name, each in found.items():
            each.stream.follow(each.detector, self.settings.rate, self.history.state(name))
        self.loaded, self.tokens = found, tokens
        return [name for name, each in found.items() if before.get(name) != each.key]

    def _read(self, path: Path) -> FittedDetector:
        """The detector, after a trial prediction."""
        settings, threads = self.settings, max(1, (os.cpu_count() or 1) // self.threads)
        limits = {"max_pixels": settings.max_pixels, "max_bytes": settings.max_bytes}
        detector: FittedDetector
        if path.is_dir():
            detector = Runtime.load(path, threads=threads, **limits)
        else:
            options: Any = {"device": settings.device, "batch_size": settings.batch_size, **limits}
            detector = discopatch.load(path, networks=settings.networks, **options)
        size = detector.transform_.size
        detector.predict([NamedImage("trial", np.full((size, size, 3), 128, np.uint8))], workers=1)
        return detector

    def _write(self) -> None:
        while not self._closing.wait(FLUSH_SECONDS if self.history_error is None else FULL_SECONDS):
            self._flush()
        self._flush()

    def _flush(self) -> None:
        """Writes all pending predictions. An error, such as a full disk, is logged, and scoring goes on."""
        failed = None
        for stream in self._streams.values():
            try:
                stream.write(self.history)
            except DiscopatchError as error:
                self.metrics.history_errors.inc()
                failed = str(error)
        if (failed is None) != (self.history_error is None):
            level = logging.INFO if failed is None else logging.ERROR
            log_event(level, "history", detail=failed or "the history is written again")
        self.history_error = failed


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
