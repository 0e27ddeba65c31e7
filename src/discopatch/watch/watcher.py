"""A watched folder or stream: each image that arrives is scored once, and stored with all that follows from it."""

import json
import os
import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal, NamedTuple
from uuid import uuid4

from discopatch.batch.output import legible_row
from discopatch.errors import OutputError, RunError, StoreError
from discopatch.history import Counts, History, default_path
from discopatch.images import DEFAULT_WORKERS, Workers
from discopatch.monitor import Monitor
from discopatch.results import FittedDetector, Prediction
from discopatch.utils import counted, legible, resolved
from discopatch.watch.arrivals import Arrival, Source
from discopatch.watch.frames import KeptFrames
from discopatch.watch.notify import Delivery

COMMIT_IMAGES, COMMIT_SECONDS = 64, 1.0  # predictions are stored after so many, or so long after the first
FULL_PAUSE = 5.0  # seconds between tries to write to a full disk
MINUTE = 60.0
END_PAUSE = 5.0  # seconds for a message in delivery at the end

Report = Callable[[str, str, Mapping[str, Any]], object]  # called with the name of an event, a sentence and its values


class Outcome(NamedTuple):
    """A prediction that is not stored yet, and the monitor's status if it raised an alarm."""

    arrival: Arrival
    prediction: Prediction
    time: float
    evidence: float  # log10, of the monitor after it
    alarm: Mapping[str, Any] | None
    frames: Path | None  # the folder with the last frames, where they are kept


class Watcher:
    """Scores the images of a source as they arrive; `name` is the name of the detector in the history.

    Predictions are stored in one transaction with the marks of their files, the state of the monitor, alarms and
    messages: after a kill each image is either stored or scored at the next start. Messages are about alarms, with
    `on="flagged"` also about flagged images; `frames` of a stream are written for each. `put_state` is called with the
    state at the start, every minute, at each alarm and at the end.
    """

    def __init__(
        self,
        detector: FittedDetector,
        monitor: Monitor,
        history: History,
        source: Source,
        *,
        name: str,
        report: Report,
        deliveries: Sequence[Delivery] = (),
        on: Literal["alarm", "flagged"] = "alarm",
        frames: KeptFrames | None = None,
        put_state: Callable[[Mapping[str, Any]], object] = lambda state: None,
        workers: Workers = DEFAULT_WORKERS,
    ) -> None:
        self.stopped = threading.Event()
        self._detector, self._monitor, self._history, self._name = detector, monitor, history, name
        self._source, self._report, self._deliveries, self._workers = source, report, deliveries, workers
        self._on, self._frames, self._put_state = on, frames, put_state
        with history.transaction():
            history.put(name, state=monitor.to_bytes())
        marks = history.rows("SELECT path, stamp FROM files WHERE detector = ?", name)
        source.resume({os.fsdecode(path): stamp for path, stamp in marks})
        self._last_flagged: dict[str, Any] | None = None
        self._outcomes: list[Outcome] = []
        self._problems: set[str] = set()  # those reported that last
        self._before = history.counts(name)
        self._minute_images = self._forgotten_at = self._before.images
        self._minute_at = time.monotonic()

    def run(self, *, once: bool = False) -> None:
        """Watches until `stopped` is set or a file ends; with `once` until all images that are there are scored."""
        for delivery in self._deliveries:
            delivery.start()
        self._put_state(self._state())
        try:
            for _ in self._source.watch(self.stopped, once=once):
                self._score()
                self._forget()
                self._report_status()
        finally:
            finish = not self.stopped.is_set()
            for delivery in self._deliveries:
                delivery.stop(MINUTE if finish else END_PAUSE, finish=finish)
        for path in sorted(self._source.waiting) if finish else ():
            self._report("left", f"{path} is still being written: it is left for the next time", {"path": path})
        self._report_status(every=0)

    def _score(self) -> None:
        """Scores the complete images in their order, until it is stopped."""
        away, there = self._source.away, f"{self._source.name} is there again"
        self._report_problem("away", f"{away}: it is tried again" if away else None, over=there)
        arrivals = self._source.complete()
        items = [arrival.item for arrival in arrivals]
        for arrival, found in zip(arrivals, self._detector.predict_images(items, workers=self._workers), strict=True):
            if self._source.is_final(arrival, found):
                self._add(arrival, found.prediction)
            else:
                self._source.put_back(arrival)
            self._report_status()
            if self.stopped.is_set():
                break
        self._store()

    def _add(self, arrival: Arrival, prediction: Prediction) -> None:
        before, now = self._monitor.status.alarm, time.time()
        status = self._monitor.update(prediction, group=arrival.group)
        alarm = status.as_dict() if status.alarm and not before else None
        self._report_problem("uncounted", status.caution)
        if prediction.is_ood:
            self._last_flagged = {"image": legible(prediction.name), "time": utc(now), "score": prediction.score}
        frames = None
        if self._frames is not None:
            self._frames.add(arrival.item)
            if alarm is not None or (prediction.is_ood and self._on == "flagged"):
                try:
                    frames = self._frames.write("flagged" if alarm is None else "alarm", now)
                except OutputError as error:
                    self._report_problem("frames", f"the last frames are not kept: {error}")
                else:
                    self._report_problem("frames", None)
        self._outcomes.append(Outcome(arrival, prediction, now, status.log10_evidence, alarm, frames))
        late = time.time() - self._outcomes[0].time >= COMMIT_SECONDS
        if late or alarm is not None or len(self._outcomes) >= COMMIT_IMAGES:
            self._store()

    def _store(self) -> None:
        """Stores predictions; on a full disk it tries again, and nothing else is scored, until it is stopped.

        Raises RunError if the history was deleted; a new one has no marks, so that the folder is scored again.
        """
        outcomes, self._outcomes = self._outcomes, []
        while outcomes:
            try:
                with self._history.transaction() as history:
                    for outcome in outcomes:
                        self._write(outcome)
                    history.put(self._name, state=self._monitor.to_bytes())
                break
            except (OutputError, StoreError) as error:
                if not self._history.is_in_place:
                    raise RunError(f"{error}; what the file there lacks is scored again then") from error
                self._report_problem("full", f"{error}; scoring continues when it can be written")
                if self.stopped.wait(FULL_PAUSE):
                    left = counted(len(outcomes), "image")
                    raise RunError(f"{error}; {left} not stored: scored again at the next start") from error
        self._report_problem("full", None)
        for outcome in outcomes:
            self._source.done(outcome.arrival)
            if outcome.alarm is not None:
                self._report("alarm", f"alarm: {outcome.alarm['text']}", {"monitor": outcome.alarm})
                self._put_state(self._state())
        for delivery in self._deliveries:
            delivery.wake.set()

    def _write(self, outcome: Outcome) -> None:
        (path, stamp, *_), prediction, history = outcome.arrival, outcome.prediction, self._history
        history.add(self._name, prediction, time=outcome.time, source=path, evidence=outcome.evidence)
        history.mark_file(self._name, path, stamp)
        if outcome.alarm is not None:
            history.add_alarm(self._name, outcome.time, outcome.alarm)
            self._send("alarm", outcome, {"monitor": outcome.alarm, "text": outcome.alarm["text"]})
        if prediction.is_ood and self._on == "flagged":
            self._send("flagged", outcome, {})

    def _send(self, event: str, outcome: Outcome, more: Mapping[str, Any]) -> None:
        """Queues a message for every receiver."""
        body = {
            "id": uuid4().hex,
            "event": event,
            "time": utc(outcome.time),
            "detector": self._name,
            "source": legible(self._source.name),
            "image": legible_row(outcome.prediction, self._detector.column_names),
            **({} if outcome.frames is None else {"frames": legible(str(outcome.frames))}),
            **more,
        }
        for delivery in self._deliveries:
            delivery.add(json.dumps(body))

    def _forget(self) -> None:
        """Removes marks of files that no longer exist, from time to time."""
        images = self._history.counts(self._name).images
        if images - self._forgotten_at <= self._history.keep:
            return
        self._forgotten_at = images
        with suppress(OutputError, StoreError), self._history.transaction() as history:
            for path in self._source.forget(history.keep):
                history.execute("DELETE FROM files WHERE detector = ? AND path = ?", self._name, os.fsencode(path))

    def _report_problem(self, event: str, text: str | None, *, over: str = "the last problem is over") -> None:
        """Reports a lasting problem once, and its end."""
        if (text is not None) != (event in self._problems):
            self._problems ^= {event}
            self._report(f"{event}-ended" if text is None else event, text or over, {})

    def _report_status(self, *, every: float = MINUTE) -> None:
        """Reports the counts since the start in one line, if the last one is long ago."""
        now = time.monotonic()
        if now - self._minute_at < every:
            return
        state, total = self._state(), self._history.counts(self._name).images
        rate = (total - self._minute_images) / max(now - self._minute_at, 1e-3)
        self._minute_images, self._minute_at = total, now
        waiting, queued = len(self._source.waiting), sum(delivery.queued() for delivery in self._deliveries)
        lost = "".join(f", {count:,} {kind}" for kind, count in self._source.lost.items() if count)
        text = (
            f"{counted(state['images'], 'image')}, {state['flagged']:,} flagged, {state['refused']:,} refused{lost}; "
            f"{rate:.1f} images/s; waiting: {counted(waiting, 'image')}, {counted(queued, 'message')}; "
            f"evidence 10^{state['log10_evidence']:.1f}{', ALARM' * state['alarm']}"
        )
        self._report("status", text, {"rate": rate, "waiting": waiting, "queued": queued, **state})
        self._put_state(state)

    def _state(self) -> dict[str, Any]:
        """The counts since the start, the evidence and the last flagged image."""
        total, status = self._history.counts(self._name), self._monitor.status
        return {
            **Counts(*(count - before for count, before in zip(total, self._before, strict=True)))._asdict(),
            **self._source.lost,
            "log10_evidence": status.log10_evidence,
            "alarm": status.alarm,
            "last_flagged": self._last_flagged,
            "source": legible(self._source.name),
            "detector": self._name,
            "digest": self._detector.digest_,
        }


def utc(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat()


def default_database(detector: Path, source: str) -> Path:
    """The history of that detector and source in the user's state folder, on a local disk."""
    parts = os.path.abspath(detector), re.sub(r"(?<=://)[^/]*@", "", source)  # noqa: PTH100
    key = sha256(b"\0".join(map(os.fsencode, parts)))
    return default_path(f"{resolved(detector).name}-{key.hexdigest()[:8]}")
