"""What follows a prediction: the monitor, the history, the events. Scoring never waits for a disk."""

import io
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from threading import Event as Flag
from threading import Lock, Thread
from typing import Any

from PIL import Image

from discopatch.errors import DiscopatchError
from discopatch.history import Entry, History
from discopatch.images import Pixels
from discopatch.monitor import Monitor, MonitorStatus
from discopatch.results import PredictedImage, Prediction
from discopatch.serve.events import Event, Hub
from discopatch.serve.metrics import Metrics

FLUSH_SECONDS = 0.2  # between two transactions
MOST_UNWRITTEN = 2000  # predictions of a detector that wait for a disk; beyond, the oldest are lost
LONGEST_PAUSE = 30.0  # seconds between two tries on a disk that is full
THUMBNAIL = 96  # pixels along a side
QUALITY = 80


@dataclass(frozen=True, slots=True)
class Record:
    """A prediction on its way to the history."""

    time: float
    prediction: Prediction
    thumbnail: bytes | None
    status: MonitorStatus
    is_alarm: bool  # whether this image raised it


class Stream:
    """The predictions of one detector in the order in which they were made, and the monitor that follows them."""

    def __init__(self, name: str, monitor: Monitor, digest: str, metrics: Metrics) -> None:
        self.name, self.digest = name, digest
        self._monitor, self._metrics = monitor, metrics
        self._lock = Lock()
        self._unwritten: deque[Record] = deque(maxlen=MOST_UNWRITTEN)
        self._is_restarted = False
        self.is_retired = False  # another detector has taken its place, and its own monitor with it
        metrics.follow(name, monitor.status)

    @property
    def status(self) -> MonitorStatus:
        return self._monitor.status

    @property
    def unwritten(self) -> int:
        return len(self._unwritten)

    def record(self, predicted: PredictedImage) -> MonitorStatus:
        """What the monitor says after this image; called by the threads that score."""
        thumbnail = None if predicted.pixels is None else thumbnail_of(predicted.pixels)
        with self._lock:
            was_alarm = self._monitor.status.alarm
            status = self._monitor.update(predicted.prediction)
            if len(self._unwritten) == MOST_UNWRITTEN:
                self._metrics.history_lost.labels(self.name).inc()
            is_alarm = status.alarm and not was_alarm
            self._unwritten.append(Record(time.time(), predicted.prediction, thumbnail, status, is_alarm))
        self._metrics.count(self.name, predicted, status)
        return status

    def restart(self) -> MonitorStatus:
        """Begins a new stream of the monitor."""
        with self._lock:
            self._monitor.restart()
            self._is_restarted = True
            self._metrics.follow(self.name, self._monitor.status)
            return self._monitor.status

    def take(self) -> tuple[list[Record], bytes | None]:
        """What is still to be written, and the monitor's state after exactly that, where it has changed."""
        with self._lock:
            if not self._unwritten and not self._is_restarted:
                return [], None
            taken = list(self._unwritten)
            self._unwritten.clear()
            self._is_restarted = False
            return taken, None if self.is_retired else self._monitor.to_bytes()

    def put_back(self, records: Iterable[Record]) -> None:
        """After a disk was full: they wait, before those that have come since, as far as there is room."""
        with self._lock:
            waiting = [*records, *self._unwritten]
            self._metrics.history_lost.labels(self.name).inc(max(0, len(waiting) - MOST_UNWRITTEN))
            self._unwritten = deque(waiting, maxlen=MOST_UNWRITTEN)
            self._is_restarted = True


class Recorder:
    """A thread that writes all streams to the history, many predictions at once, and then tells who listens."""

    def __init__(
        self,
        history: History,
        hub: Hub,
        metrics: Metrics,
        streams: Callable[[], Iterable[Stream]],
        log: Callable[..., None],
    ) -> None:
        self.history, self._hub, self._metrics, self._streams, self._log = history, hub, metrics, streams, log
        self.error: str | None = None  # why nothing is written, while that is so
        self._stop = Flag()
        self._thread = Thread(target=self._run, name="discopatch-history", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Writes what is left, and closes the history."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()
        self.history.close()

    def _run(self) -> None:
        pause = FLUSH_SECONDS
        while not self._stop.wait(pause):
            pause = FLUSH_SECONDS if self.flush() else min(LONGEST_PAUSE, 2 * max(pause, 0.5))
        self.flush()

    def flush(self) -> bool:
        """Whether all that was there could be written."""
        written = [self._write(stream) for stream in self._streams()]
        return all(written)

    def _write(self, stream: Stream) -> bool:
        records, state = stream.take()
        if state is None and not records:
            return True
        alarms = [record for record in records if record.is_alarm]
        numbers: list[int | None] = []
        try:
            with self.history.transaction() as change:
                for record in records:
                    number = change.add(
                        stream.name,
                        record.prediction,
                        time=record.time,
                        digest=stream.digest,
                        thumbnail=record.thumbnail,
                        evidence=record.status.log10_evidence,
                    )
                    numbers.append(number)
                for record in alarms:
                    change.add_alarm(stream.name, record.time, record.status.as_dict())
                if state is not None:
                    change.put_state(stream.name, state)
        except DiscopatchError as error:
            self._metrics.history_errors.inc()
            if self.error is None:
                self._log("error", "history", detail=str(error))
            self.error = str(error)
            self._tell(stream, records, [None] * len(records))
            stream.put_back(records)
            return False
        if self.error is not None:
            self._log("info", "history", detail="the history is written again")
            self.error = None
        self._tell(stream, records, numbers)
        return True

    def _tell(self, stream: Stream, records: list[Record], numbers: list[int | None]) -> None:
        """Predictions and alarms one by one, the monitor once."""
        events = []
        for record, number in zip(records, numbers, strict=True):
            fields = entry_dict(
                *(stream.name, number, record.time, record.prediction),
                has_thumbnail=record.thumbnail is not None,
                evidence=record.status.log10_evidence,
            )
            events.append(Event("prediction", fields, number))
            if record.is_alarm:
                events.append(Event("alarm", alarm_dict(number, record.time, record.status.as_dict())))
        if not stream.is_retired:
            events.append(Event("monitor", stream.status.as_dict()))
        self._hub.publish(stream.name, events)


def thumbnail_of(pixels: Pixels) -> bytes:
    """The image as the model gets it, small, as JPEG."""
    small = Image.fromarray(pixels).resize((THUMBNAIL, THUMBNAIL), Image.Resampling.BOX)
    buffer = io.BytesIO()
    small.save(buffer, "JPEG", quality=QUALITY)
    return buffer.getvalue()


def prediction_dict(prediction: Prediction) -> dict[str, Any]:
    """Name and error, or name, score, p_value, is_ood and, of a head that has such, the components and who significant."""
    if prediction.error is not None:
        return {"name": prediction.name, "error": prediction.error}
    return {
        "name": prediction.name,
        "score": prediction.score,
        "p_value": prediction.p_value,
        "is_ood": prediction.is_ood,
        "components": {each.name: each.z for each in prediction.components},
        "significant": [each.name for each in prediction.significant],
    }


def entry_dict(
    detector: str,
    number: int | None,
    when: float,
    prediction: Prediction,
    *,
    has_thumbnail: bool,
    evidence: float | None,
) -> dict[str, Any]:
    """A prediction with its number, time, the address of its thumbnail, and the monitor's evidence after it (log10)."""
    there = has_thumbnail and number is not None
    return {
        "id": number,
        "time": time_text(when),
        **prediction_dict(prediction),
        "thumbnail": f"/v1/detectors/{detector}/recent/{number}/thumbnail" if there else None,
        "evidence": evidence,
    }


def entry_of(entry: Entry) -> dict[str, Any]:
    fields = entry.detector, entry.id, entry.time, entry.prediction
    return entry_dict(*fields, has_thumbnail=entry.has_thumbnail, evidence=entry.evidence)


def alarm_dict(number: int | None, when: float, status: dict[str, Any]) -> dict[str, Any]:
    return {**status, "id": number, "time": time_text(when)}


def time_text(seconds: float) -> str:
    """ISO 8601, in UTC."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")
