"""A folder that is watched: each image that arrives is scored once, and kept with all that follows from it."""

import json
import os
import threading
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol
from uuid import uuid4

from discopatch.errors import HistoryError, OutputError, ParameterError, WatchError
from discopatch.history import Change, History
from discopatch.images import DEFAULT_WORKERS, Refusal, RefusalReason, Workers
from discopatch.images.source import Item
from discopatch.results import PredictedImage, Prediction, Predictor, as_dict
from discopatch.watch.arrivals import Arrival, Arrivals, Stamp
from discopatch.watch.notify import Delivery
from discopatch.watch.parts import PartWriter, legible, release

TAKEN_AT_ONCE = 256  # files between two looks at the folder
COMMIT_IMAGES, COMMIT_SECONDS = 64, 1.0  # after so many images, or so long after the first, they are kept
UNREADABLE_TRIES = 3  # before a file that the system does not let us read is a prediction with an error
MINUTE = 60.0
FULL_PAUSE = 5.0  # seconds before another try to write to a full disk
END_PAUSE = 5.0  # seconds that a message in delivery has at the end; one that takes longer is delivered next time


class Status(Protocol):
    """What the watcher asks of `discopatch.monitor.MonitorStatus`."""

    @property
    def alarm(self) -> bool: ...
    @property
    def log10_evidence(self) -> float: ...
    @property
    def text(self) -> str: ...
    def as_dict(self) -> dict[str, Any]: ...


class StreamMonitor(Protocol):
    """What the watcher asks of `discopatch.monitor.Monitor`."""

    @property
    def status(self) -> Status: ...
    def update(self, prediction: Prediction) -> Status: ...
    def to_bytes(self) -> bytes: ...


Say = Callable[[str, str, Mapping[str, Any]], object]  # called with an event's name, a sentence and its values


@dataclass(frozen=True, kw_only=True)
class WatchOptions:
    """How a folder is watched."""

    pattern: str = "*"
    recursive: bool = False
    poll: float = 0.5  # seconds between two looks at the folder
    settle: float = 1.0  # seconds for which a complete file has stood still
    on: Literal["alarm", "flagged"] = "alarm"  # what messages are about; flagged: alarms too

    def __post_init__(self) -> None:
        if self.poll <= 0 or self.settle < 0:
            raise ParameterError(
                f"poll={self.poll}, settle={self.settle}: poll above 0 s, and settle for no less than 0"
            )


class Outcome(NamedTuple):
    """An image that was scored and is not kept yet, with the monitor's status if that raised an alarm."""

    arrival: Arrival
    prediction: Prediction
    time: float
    alarm: Mapping[str, Any] | None
    text: str


class Watcher:
    """Scores the files of a folder as they arrive, and keeps each with its mark in one transaction of the history.

    `name` is the detector's in the history. With the prediction go the mark of its file, the monitor's state, an alarm
    and its messages: a process that is killed leaves all of it or nothing, and what was not kept is scored again.
    """

    def __init__(
        self,
        predictor: Predictor,
        monitor: StreamMonitor,
        history: History,
        folder: Path,
        *,
        name: str,
        options: WatchOptions,
        say: Say,
        deliveries: Sequence[Delivery] = (),
        parquet: Path | None = None,
        workers: Workers = DEFAULT_WORKERS,
    ) -> None:
        self._predictor, self._monitor, self._history, self._name = predictor, monitor, history, name
        self.folder, self._options, self._say, self._workers = Path(os.path.abspath(folder)), options, say, workers  # noqa: PTH100
        self._deliveries = deliveries
        self.stopped = threading.Event()
        self._arrivals = Arrivals(
            self.folder,
            pattern=options.pattern,
            recursive=options.recursive,
            settle=options.settle,
            known=known_files(history, name, self.folder),
        )
        self._parts: PartWriter | None = None
        if parquet is None:
            release(history, name)
        else:
            self._parts = PartWriter(history, name, parquet)
        self._outcomes: list[Outcome] = []
        self._unreadable: dict[Arrival, int] = {}
        self._told: set[str] = set()  # of troubles that last
        self._images = self._flagged = self._refused = 0
        self._counted, self._minute = 0, time.monotonic()  # of the last line
        self._forgotten = 0  # images when files were forgotten last

    def run(self, *, once: bool = False) -> None:
        """Watches until `stopped` is set; `once`, until all complete files that are there have been scored."""
        for delivery in self._deliveries:
            delivery.start()
        try:
            try:
                self._watch_once() if once else self._watch()
            finally:
                self._keep()
            self._write_parts(all_of_them=True)
            self.tell_status()
        finally:
            for delivery in self._deliveries:
                if once and not self.stopped.is_set():
                    delivery.flush(MINUTE)
                delivery.stop(END_PAUSE)
        self._tell_left()

    def _watch(self) -> None:
        while not self.stopped.is_set():
            began = time.monotonic()
            self._poll()
            while not self.stopped.is_set() and (arrivals := self._arrivals.take(TAKEN_AT_ONCE)):
                self._score(arrivals)
                if time.monotonic() - began >= self._options.poll:
                    break
            self._write_parts()
            self._forget()
            self._tell_minute()
            if not self._arrivals.ready:
                self.stopped.wait(max(0.0, began + self._options.poll - time.monotonic()))

    def _watch_once(self) -> None:
        """What is complete now or after it had time to settle, and what can be read, if not at once."""
        for look in range(1 + UNREADABLE_TRIES):
            self.stopped.wait((self._options.settle + 0.05) * (look > 0))
            self._poll()
            if self._arrivals.away:
                raise WatchError(f"{self.folder} cannot be listed ({self._arrivals.away}): check the folder")
            while not self.stopped.is_set() and (arrivals := self._arrivals.take(TAKEN_AT_ONCE)):
                self._score(arrivals)
            if self.stopped.is_set() or not self._arrivals.waiting:
                break
        for path in () if self.stopped.is_set() else self._arrivals.unfinished():
            self._say("left", f"{path} is still being written: it is left for the next time", {"path": path})

    def _poll(self) -> None:
        self._arrivals.poll()
        away, told = self._arrivals.away, "away" in self._told
        if away and not told:
            self._told.add("away")
            self._say("away", f"{self.folder} cannot be listed ({away}): waiting for it", {"reason": away})
        elif told and not away:
            self._told.discard("away")
            self._say("back", f"{self.folder} is there again", {})
        for path in self._arrivals.gone:
            self._tell_gone(path)
        self._arrivals.gone.clear()
        for path, reason in self._arrivals.closed.items():
            if path not in self._told:
                self._told.add(path)
                self._say("closed", f"{path} cannot be listed ({reason}): check its rights", {"path": path})

    def _tell_gone(self, path: str) -> None:
        self._say("gone", f"{path} was gone before it was scored", {"path": path})

    def _score(self, arrivals: Sequence[Arrival]) -> None:
        """Scores the files in their order; where it is stopped in between, the rest is left."""
        items = [Item(os.path.relpath(path, self.folder), Path(path)) for path, _ in arrivals]
        first_at = time.monotonic()
        predicted = self._predictor.predict_images(items, workers=self._workers)
        with closing(predicted) if isinstance(predicted, Generator) else nullcontext():  # it reads ahead
            for arrival, found in zip(arrivals, predicted, strict=True):
                if self._is_final(arrival, found):
                    first_at = first_at if self._outcomes else time.monotonic()
                    self._add(arrival, found.prediction)
                full = len(self._outcomes) >= COMMIT_IMAGES or time.monotonic() - first_at >= COMMIT_SECONDS
                if self._outcomes and (full or self._outcomes[-1].alarm is not None):
                    self._keep()
                self._tell_minute()
                if self.stopped.is_set():
                    break
        self._keep()

    def _is_final(self, arrival: Arrival, found: PredictedImage) -> bool:
        """Whether the prediction is about the file that arrived; otherwise it waits again, or is gone."""
        try:
            now = Stamp.of(os.stat(arrival.path))  # noqa: PTH116 - of the same kind as those of arrivals
        except FileNotFoundError:
            if found.refusal is None:
                return True
            self._arrivals.drop(arrival)
            self._tell_gone(arrival.path)
            return False
        except OSError:
            now = arrival.stamp
        if now != arrival.stamp:
            self._arrivals.put_back(arrival)
            return False
        if is_unreadable(found.refusal):
            tries = self._unreadable.pop(arrival, 0) + 1
            if tries < UNREADABLE_TRIES:
                self._unreadable[arrival] = tries
                self._arrivals.put_back(arrival)
                return False
        return True

    def _add(self, arrival: Arrival, prediction: Prediction) -> None:
        before = self._monitor.status.alarm
        status = self._monitor.update(prediction)
        alarm = status.as_dict() if status.alarm and not before else None
        self._outcomes.append(Outcome(arrival, prediction, time.time(), alarm, status.text))

    def _keep(self) -> None:
        """Writes the outcomes in one transaction, as often as it takes: nothing else is scored before."""
        if not self._outcomes:
            return
        while True:
            try:
                with self._history.transaction() as change:
                    for outcome in self._outcomes:
                        self._write(change, outcome)
                    change.put_state(self._name, self._monitor.to_bytes())
                break
            except HistoryError as error:
                if "full" not in self._told:
                    self._told.add("full")
                    self._say("full", f"{error}; scoring waits until it can be written", {"reason": str(error)})
                if self.stopped.wait(FULL_PAUSE):
                    left = len(self._outcomes)
                    self._outcomes.clear()
                    raise WatchError(f"{error}; {left} images are scored again at the next start") from error
        if "full" in self._told:
            self._told.discard("full")
            self._say("written", "the history can be written again: nothing was lost", {})
        self._end_outcomes()

    def _end_outcomes(self) -> None:
        for outcome in self._outcomes:
            self._arrivals.done(outcome.arrival)
            self._images += 1
            self._flagged += bool(outcome.prediction.is_ood)
            self._refused += outcome.prediction.error is not None
            if outcome.alarm is not None:
                self._say("alarm", f"alarm: {outcome.text}", {"monitor": outcome.alarm})
        self._outcomes.clear()
        for delivery in self._deliveries:
            delivery.wake()

    def _write(self, change: Change, outcome: Outcome) -> None:
        (path, stamp), prediction = outcome.arrival, outcome.prediction
        number = change.add(self._name, prediction, time=outcome.time, source=path)
        change.mark_file(self._name, path, **stamp._asdict(), prediction=number)
        if outcome.alarm is not None:
            alarm = change.add_alarm(self._name, outcome.time, outcome.alarm)
            body = self._message("alarm", outcome, {"monitor": outcome.alarm, "text": outcome.text})
            for delivery in self._deliveries:
                delivery.add(change, alarm, body)
        if prediction.is_ood and self._options.on == "flagged":
            body = self._message("flagged", outcome, {})
            for delivery in self._deliveries:
                delivery.add(change, None, body)

    def _message(self, event: str, outcome: Outcome, more: Mapping[str, Any]) -> str:
        image = as_dict(outcome.prediction)
        return json.dumps(
            {
                "id": uuid4().hex,
                "event": event,
                "time": datetime.fromtimestamp(outcome.time, UTC).isoformat(),
                "detector": legible(self._name),
                "folder": legible(str(self.folder)),
                "image": {**image, "name": legible(outcome.prediction.name)},
                **more,
            }
        )

    def _write_parts(self, *, all_of_them: bool = False) -> None:
        if self._parts is None:
            return
        try:
            self._parts.step(all_of_them=all_of_them)
        except (OutputError, HistoryError) as error:
            if "parts" not in self._told:
                self._told.add("parts")
                self._say("full", f"{error}; what is missing there waits in the history", {"reason": str(error)})
        else:
            self._told.discard("parts")

    def _forget(self) -> None:
        if self._images - self._forgotten < self._history.keep // 10 + 1:
            return
        self._forgotten = self._images
        forgotten = self._arrivals.forget(self._history.keep)
        if forgotten:
            with self._history.transaction() as change:
                number = change.detector_number(self._name)
                for path in forgotten:
                    change.execute("DELETE FROM files WHERE detector = ? AND path = CAST(? AS TEXT)", number, path)

    def _tell_minute(self) -> None:
        if time.monotonic() - self._minute >= MINUTE:
            self.tell_status()

    def tell_status(self) -> None:
        """One line about what was done since the start."""
        now = time.monotonic()
        rate = (self._images - self._counted) / max(now - self._minute, 1e-3)
        self._counted, self._minute = self._images, now
        values = {
            "images": self._images,
            "flagged": self._flagged,
            "refused": self._refused,
            "rate": rate,
            "waiting": self._arrivals.waiting,
            "queued": sum(delivery.queued() for delivery in self._deliveries),
            "log10_evidence": self._monitor.status.log10_evidence,
            "alarm": self._monitor.status.alarm,
        }
        text = (
            f"{values['images']:,} images, {values['flagged']:,} flagged, {values['refused']:,} refused; "
            f"{rate:.1f}/s; {values['waiting']:,} files and {values['queued']:,} messages wait; "
            f"evidence 10^{values['log10_evidence']:.1f}{', ALARM' if values['alarm'] else ''}"
        )
        self._say("status", text, values)

    def _tell_left(self) -> None:
        left = sum(delivery.queued() for delivery in self._deliveries)
        if left:
            self._say("queued", f"{left:,} messages stay queued: the next start delivers them", {"queued": left})


def is_unreadable(refusal: Refusal | None) -> bool:
    return refusal is not None and refusal.reason == RefusalReason.UNREADABLE


def known_files(history: History, name: str, folder: Path) -> dict[str, Stamp]:
    """The files of the folder that were scored, in that order."""
    found = history.rows(
        "SELECT path, size, mtime_ns, inode FROM files JOIN detectors ON detector = detectors.id"
        " WHERE name = CAST(? AS TEXT) ORDER BY prediction",
        name,
    )
    start = f"{folder}{os.sep}".replace(os.sep * 2, os.sep)
    return {path: Stamp(size, mtime, int(inode)) for path, size, mtime, inode in found if path.startswith(start)}
