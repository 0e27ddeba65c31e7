"""A watched folder: each image that arrives is scored once, and stored with all that follows from it."""

import json
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal, NamedTuple
from uuid import uuid4

from discopatch.batch.output import legible_row, to_parquet, to_table
from discopatch.errors import OutputError, ParameterError, RunError, StoreError
from discopatch.history import Counts, History, default_path
from discopatch.images import DEFAULT_WORKERS, Item, Workers
from discopatch.monitor import Monitor
from discopatch.results import FittedDetector, PredictedImage, Prediction
from discopatch.utils import counted, legible, require, resolved, write_atomically
from discopatch.watch.arrivals import SETTLE, Arrival, Arrivals, stamp_of
from discopatch.watch.notify import Delivery

SETTLING_LOOKS = 3  # with `once`, at files that are still being written
COMMIT_IMAGES, COMMIT_SECONDS = 64, 1.0  # predictions are stored after so many, or so long after the first
PART_ROWS, PART_SECONDS = 10_000, 60.0  # of a Parquet file at most, and the longest delay of a row
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


class Watcher:
    """Scores the files of a folder as they arrive; `name` is the name of the detector in the history.

    Predictions are stored in one transaction with the marks of their files, the state of the monitor, alarms and
    messages: after a kill each image is either stored or scored at the next start. With `parquet` predictions are also
    written to Parquet files in that folder, each of them in one file. Messages are about alarms, with `on="flagged"`
    also about flagged images. With `poll` a folder without notifications is listed every so many seconds.
    """

    def __init__(
        self,
        detector: FittedDetector,
        monitor: Monitor,
        history: History,
        folder: Path,
        *,
        name: str,
        report: Report,
        deliveries: Sequence[Delivery] = (),
        on: Literal["alarm", "flagged"] = "alarm",
        parquet: Path | None = None,
        recursive: bool = False,
        poll: float | None = None,
        settle: float = SETTLE,
        workers: Workers = DEFAULT_WORKERS,
    ) -> None:
        if parquet is not None:
            require("pyarrow", extra="parquet")
        self.folder = Path(os.path.abspath(folder))  # noqa: PTH100 - a link may lead elsewhere later
        self.stopped = threading.Event()
        self._detector, self._monitor, self._history, self._name = detector, monitor, history, name
        self._report, self._deliveries, self._workers = report, deliveries, workers
        self._on, self._poll, self._settle, self._parquet = on, poll, settle, parquet
        with history.transaction():
            history.put(name, exporting=parquet is not None, state=monitor.to_bytes())
        marks = history.rows("SELECT path, stamp FROM files WHERE detector = ?", name)
        known = {os.fsdecode(path): stamp for path, stamp in marks}
        self._arrivals = Arrivals(self.folder, recursive=recursive, settle=settle, known=known)
        self._outcomes: list[Outcome] = []
        self._problems: set[str] = set()  # those reported that last
        self._before = history.counts(name)
        self._minute_images = self._forgotten_at = self._before.images
        self._part_at = self._minute_at = time.monotonic()

    def run(self, *, once: bool = False) -> None:
        """Watches until `stopped` is set; with `once` until all complete files that are there have been scored."""
        for delivery in self._deliveries:
            delivery.start()
        try:
            if once:
                self._watch_once()
            else:
                for _ in self._arrivals.watch(self.stopped, poll=self._poll):
                    self._score()
                    self._write_parts()
                    self._forget()
                    self._report_status()
            self._write_parts(everything=True)
        finally:
            finish = once and not self.stopped.is_set()
            for delivery in self._deliveries:
                delivery.stop(MINUTE if finish else END_PAUSE, finish=finish)
        self._report_status(every=0)

    def _watch_once(self) -> None:
        """Scores files that are complete now or after they had time to settle."""
        for look in range(1 + SETTLING_LOOKS):
            self.stopped.wait((self._settle + 0.05) * (look > 0))
            self._arrivals.look()
            if self._arrivals.away:
                raise RunError(f"{self.folder} cannot be listed ({self._arrivals.away}): check the folder")
            self._score()
            if self.stopped.is_set() or not self._arrivals.waiting:
                return
        for path in sorted(self._arrivals.waiting):
            self._report("left", f"{path} is still being written: it is left for the next time", {"path": path})

    def _score(self) -> None:
        """Scores the complete files in their order, until it is stopped."""
        away = self._arrivals.away
        self._report_problem("away", f"{self.folder} cannot be listed ({away}): it is tried again" if away else None)
        arrivals = self._arrivals.complete()
        items = [Item(os.path.relpath(path, self.folder), Path(path)) for path, _ in arrivals]
        for arrival, found in zip(arrivals, self._detector.predict_images(items, workers=self._workers), strict=True):
            if is_final(arrival, found):
                self._add(arrival, found.prediction)
            else:
                self._arrivals.put_back(arrival)
            self._report_status()
            if self.stopped.is_set():
                break
        self._store()

    def _add(self, arrival: Arrival, prediction: Prediction) -> None:
        before = self._monitor.status.alarm
        status = self._monitor.update(prediction)
        alarm = status.as_dict() if status.alarm and not before else None
        self._report_problem("uncounted", status.caution)
        self._outcomes.append(Outcome(arrival, prediction, time.time(), status.log10_evidence, alarm))
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
            self._arrivals.done(outcome.arrival)
            if outcome.alarm is not None:
                self._report("alarm", f"alarm: {outcome.alarm['text']}", {"monitor": outcome.alarm})
        for delivery in self._deliveries:
            delivery.wake.set()

    def _write(self, outcome: Outcome) -> None:
        (path, stamp), prediction, history = outcome.arrival, outcome.prediction, self._history
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
            "time": datetime.fromtimestamp(outcome.time, UTC).isoformat(),
            "detector": self._name,
            "folder": legible(str(self.folder)),
            "image": legible_row(outcome.prediction, self._detector.component_names),
            **more,
        }
        for delivery in self._deliveries:
            delivery.add(json.dumps(body))

    def _write_parts(self, *, everything: bool = False) -> None:
        """Writes full Parquet files, and every minute or with `everything` the other predictions too.

        A file is named after its first prediction, with the time, as another history has the same numbers, and is
        marked as written afterwards: if the process is killed in between, the next start replaces the same file.
        """
        if self._parquet is None:
            return
        late = everything or time.monotonic() - self._part_at >= PART_SECONDS
        database = Path(self._history.name).absolute()
        key = sha256(f"{database} {self._name}".encode(errors="replace")).hexdigest()[:8]
        try:
            while True:
                ((last,),) = self._history.rows("SELECT exported FROM detectors WHERE name = ?", self._name)
                entries = self._history.following(self._name, last, PART_ROWS)
                if not entries or (len(entries) < PART_ROWS and not late):
                    break
                table = to_table((entry.prediction for entry in entries), self._detector.component_names)
                times = [datetime.fromtimestamp(entry.time, UTC) for entry in entries]
                content = to_parquet(table.append_column("time", [times]))
                path = self._parquet / f"part-{key}-{entries[0].id:012d}-{entries[0].time:.6f}.parquet"
                write_atomically(path, lambda partial, content=content: partial.write_bytes(content))  # type: ignore[misc]
                with self._history.transaction() as history:
                    history.put(self._name, exported=entries[-1].id)
        except (OutputError, StoreError) as error:
            self._report_problem("parts", f"{error}; these predictions are kept in the history")
            return
        self._report_problem("parts", None)
        if late:
            self._part_at = time.monotonic()

    def _forget(self) -> None:
        """Removes marks of files that no longer exist, from time to time."""
        images = self._history.counts(self._name).images
        if images - self._forgotten_at <= self._history.keep:
            return
        self._forgotten_at = images
        with suppress(OutputError, StoreError), self._history.transaction() as history:
            for path in self._arrivals.forget(history.keep):
                history.execute("DELETE FROM files WHERE detector = ? AND path = ?", self._name, os.fsencode(path))

    def _report_problem(self, event: str, text: str | None) -> None:
        """Reports a lasting problem once, and its end."""
        if (text is not None) != (event in self._problems):
            self._problems ^= {event}
            self._report(f"{event}-ended" if text is None else event, text or "the last problem is over", {})

    def _report_status(self, *, every: float = MINUTE) -> None:
        """Reports the counts since the start in one line, if the last one is long ago."""
        now = time.monotonic()
        if now - self._minute_at < every:
            return
        total, status = self._history.counts(self._name), self._monitor.status
        counts = Counts(*(count - before for count, before in zip(total, self._before, strict=True)))
        rate = (total.images - self._minute_images) / max(now - self._minute_at, 1e-3)
        self._minute_images, self._minute_at = total.images, now
        waiting, evidence = len(self._arrivals.waiting), status.log10_evidence
        images = counted(counts.images, "image")
        queued = sum(delivery.queued() for delivery in self._deliveries)
        text = (
            f"{images}, {counts.flagged:,} flagged, {counts.refused:,} refused; {rate:.1f} images/s; "
            f"waiting: {counted(waiting, 'file')}, {counted(queued, 'message')}; "
            f"evidence 10^{evidence:.1f}{', ALARM' * status.alarm}"
        )
        more = {"rate": rate, "waiting": waiting, "queued": queued, "log10_evidence": evidence, "alarm": status.alarm}
        self._report("status", text, {**counts._asdict(), **more})


def is_final(arrival: Arrival, found: PredictedImage) -> bool:
    """Whether the prediction is about the file that arrived, and not about one that replaced it."""
    try:
        return stamp_of(os.stat(arrival.path)) == arrival.stamp  # noqa: PTH116
    except OSError:  # it is gone, after it was read or before
        return found.refusal is None


def default_database(detector: Path, folder: Path) -> Path:
    """The history of that detector and folder in the user's state folder, on a local disk."""
    key = sha256(b"\0".join(os.fsencode(os.path.abspath(path)) for path in (detector, folder)))  # noqa: PTH100
    return default_path(f"{resolved(detector).name}-{key.hexdigest()[:8]}")


def check_places(folder: Path, database: Path, parquet: Path | None) -> None:
    """Raises ParameterError if there is no folder, or if something would be written into it."""
    if not folder.is_dir():
        raise ParameterError(f"{folder} is no folder: check the path")
    for option, path in (("--database", database), ("--parquet", parquet)):
        if path is not None and resolved(path).is_relative_to(resolved(folder)):
            raise ParameterError(f"{option} {path} lies in the watched folder: choose another place")
