"""A folder that is watched: each image that arrives is scored once, and kept with all that follows from it."""

import os
import threading
import time
from collections.abc import Generator, Sequence
from contextlib import closing, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from discopatch.errors import HistoryError, OutputError, ParameterError, WatchError
from discopatch.history import History
from discopatch.images import DEFAULT_WORKERS, Refusal, RefusalReason, Workers
from discopatch.images.items import Item
from discopatch.results import PredictedImage, Predictor
from discopatch.watch.arrivals import Arrival, Arrivals, Stamp
from discopatch.watch.keeper import Keeper, Say
from discopatch.watch.notify import Delivery
from discopatch.watch.parts import PartWriter, release

if TYPE_CHECKING:
    from discopatch.monitor import Monitor

TAKEN_AT_ONCE = 256  # files between two looks at the folder
UNREADABLE_TRIES = 3  # before a file that the system does not let us read is a prediction with an error
MINUTE = 60.0
END_PAUSE = 5.0  # seconds that a message in delivery has at the end; one that takes longer is delivered next time


@dataclass(frozen=True, kw_only=True)
class WatchOptions:
    """How a folder is watched."""

    pattern: str = "*"
    recursive: bool = False
    poll: float = 0.5  # seconds between two looks at the folder
    settle: float = 1.0  # seconds for which a complete file has stood still
    on: Literal["alarm", "flagged"] = "alarm"  # what messages are about; flagged: alarms too

    def __post_init__(self) -> None:
        if not (self.poll > 0 and self.settle >= 0):
            raise ParameterError(f"poll={self.poll}, settle={self.settle}: poll above 0 s, and settle from 0 s on")


class Watcher:
    """Scores the files of a folder as they arrive; `name` is the detector's in the history.

    A process that is killed leaves each image either kept, with the mark of its file, or to be scored at the next
    start. `say` is called with what a user should know.
    """

    def __init__(
        self,
        predictor: Predictor,
        monitor: "Monitor",
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
        self.folder = Path(os.path.abspath(folder))  # noqa: PTH100 - a link may lead elsewhere later
        self.stopped = threading.Event()
        self._predictor, self._history, self._name, self._options = predictor, history, name, options
        self._say, self._deliveries, self._workers = say, deliveries, workers
        self._keeper = Keeper(
            history,
            monitor,
            self.folder,
            name=name,
            on=options.on,
            deliveries=deliveries,
            say=say,
            stopped=self.stopped,
        )
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
        self._unreadable: dict[Arrival, int] = {}
        self._told: set[str] = set()  # troubles that last
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
            self._tell_status()
        finally:
            for delivery in self._deliveries:
                if once and not self.stopped.is_set():
                    delivery.flush(MINUTE)
                delivery.stop(END_PAUSE)
        if queued := self._queued():
            self._say("queued", f"{queued:,} messages stay queued: the next start delivers them", {"queued": queued})

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
                return
        for path in self._arrivals.unfinished():
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

    def _score(self, arrivals: Sequence[Arrival]) -> None:
        """Scores the files in their order; where it is stopped in between, the rest is left."""
        items = [Item(os.path.relpath(path, self.folder), Path(path)) for path, _ in arrivals]
        predicted = self._predictor.predict_images(items, workers=self._workers)
        with closing(predicted) if isinstance(predicted, Generator) else nullcontext():  # it reads ahead
            for arrival, found in zip(arrivals, predicted, strict=True):
                if self._is_final(arrival, found):
                    self._keeper.add(arrival, found.prediction)
                if self._keeper.is_due:
                    self._keep()
                self._tell_minute()
                if self.stopped.is_set():
                    break
        self._keep()

    def _is_final(self, arrival: Arrival, found: PredictedImage) -> bool:
        """Whether the prediction is about the file that arrived; otherwise it waits again, or is gone."""
        try:
            now = Stamp.of(os.stat(arrival.path))  # noqa: PTH116 - as in arrivals
        except FileNotFoundError:
            if found.refusal is None:
                return True
            self._arrivals.drop(arrival)
            self._tell_gone(arrival.path)
            return False
        except OSError:
            now = arrival.stamp
        tries = self._unreadable.pop(arrival, 0) + 1
        if is_unreadable(found.refusal) and tries < UNREADABLE_TRIES:
            self._unreadable[arrival] = tries
        elif now == arrival.stamp:
            return True
        self._arrivals.put_back(arrival)
        return False

    def _keep(self) -> None:
        for arrival in self._keeper.keep():
            self._arrivals.done(arrival)

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
        """Now and then removes marks of files that are long gone, which would be ever more."""
        images = self._keeper.counts.images
        if images - self._forgotten <= self._history.keep // 10:
            return
        self._forgotten = images
        if forgotten := self._arrivals.forget(self._history.keep):
            with suppress(HistoryError), self._history.transaction() as change:  # those that stay do no harm
                number = change.detector_number(self._name)
                for path in forgotten:
                    change.execute("DELETE FROM files WHERE detector = ? AND path = CAST(? AS TEXT)", number, path)

    def _tell_gone(self, path: str) -> None:
        self._say("gone", f"{path} was gone before it was scored", {"path": path})

    def _tell_minute(self) -> None:
        if time.monotonic() - self._minute >= MINUTE:
            self._tell_status()

    def _tell_status(self) -> None:
        """One line about what was done since the start."""
        now, counts, status = time.monotonic(), self._keeper.counts, self._keeper.monitor.status
        rate = (counts.images - self._counted) / max(now - self._minute, 1e-3)
        self._counted, self._minute = counts.images, now
        waiting, queued, evidence = self._arrivals.waiting, self._queued(), status.log10_evidence
        text = (
            f"{counts.images:,} images, {counts.flagged:,} flagged, {counts.refused:,} refused; {rate:.1f} images/s; "
            f"waiting: {waiting:,} files, {queued:,} messages; evidence 10^{evidence:.1f}{', ALARM' * status.alarm}"
        )
        more = {"rate": rate, "waiting": waiting, "queued": queued, "log10_evidence": evidence, "alarm": status.alarm}
        self._say("status", text, {**counts._asdict(), **more})

    def _queued(self) -> int:
        return sum(delivery.queued() for delivery in self._deliveries)


def is_unreadable(refusal: Refusal | None) -> bool:
    return refusal is not None and refusal.reason == RefusalReason.UNREADABLE


def known_files(history: History, name: str, folder: Path) -> dict[str, Stamp]:
    """The files of the folder that were scored, in that order."""
    found = history.rows(
        "SELECT path, size, mtime_ns, inode FROM files JOIN detectors ON detector = detectors.id"
        " WHERE name = CAST(? AS TEXT) ORDER BY prediction",
        name,
    )
    start = os.path.join(folder, "")  # noqa: PTH118 - with one separator at its end
    return {path: Stamp(size, mtime, int(inode)) for path, size, mtime, inode in found if path.startswith(start)}
