"""What follows from an image that was scored, written together: all of it or nothing."""

import json
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple
from uuid import uuid4

from discopatch.errors import HistoryError, WatchError
from discopatch.history import Change, Counts, History
from discopatch.results import Prediction, as_row
from discopatch.utils import legible
from discopatch.watch.arrivals import Arrival
from discopatch.watch.notify import Delivery

if TYPE_CHECKING:
    from discopatch.monitor import Monitor

COMMIT_IMAGES, COMMIT_SECONDS = 64, 1.0  # after so many images, or so long after the first, they are kept
FULL_PAUSE = 5.0  # seconds before another try to write to a full disk

Say = Callable[[str, str, Mapping[str, Any]], object]  # called with an event's name, a sentence and its values


class Outcome(NamedTuple):
    """An image that was scored and is not kept yet, with the monitor's status if it raised an alarm."""

    arrival: Arrival
    prediction: Prediction
    time: float
    evidence: float  # log10, of the monitor after it
    alarm: Mapping[str, Any] | None


class Keeper:
    """Passes predictions to the monitor, and keeps them a few at a time.

    With predictions go the marks of their files, the monitor's state, alarms and their messages, in one transaction.
    `on` is what messages are about: alarms of the monitor, or flagged images too.
    """

    def __init__(
        self,
        history: History,
        monitor: "Monitor",
        folder: Path,
        *,
        name: str,
        on: Literal["alarm", "flagged"],
        deliveries: Sequence[Delivery],
        say: Say,
        stopped: threading.Event,
    ) -> None:
        self.monitor, self._history, self._folder, self._name = monitor, history, folder, name
        self._on, self._deliveries, self._say, self._stopped = on, deliveries, say, stopped
        self._outcomes: list[Outcome] = []
        self._first_at = 0.0
        self.counts = Counts(0, 0, 0)  # of images that were kept

    def add(self, arrival: Arrival, prediction: Prediction) -> None:
        before = self.monitor.status.alarm
        status = self.monitor.update(prediction)
        alarm = status.as_dict() if status.alarm and not before else None
        if not self._outcomes:
            self._first_at = time.monotonic()
        self._outcomes.append(Outcome(arrival, prediction, time.time(), status.log10_evidence, alarm))

    @property
    def is_due(self) -> bool:
        """Whether what was added should be kept now."""
        if not self._outcomes:
            return False
        late = time.monotonic() - self._first_at >= COMMIT_SECONDS
        return late or len(self._outcomes) >= COMMIT_IMAGES or self._outcomes[-1].alarm is not None

    def keep(self) -> list[Arrival]:
        """Writes what was added, as often as it takes, and gives the files that are done with.

        Where the disk is full it waits, so that nothing else is scored; WatchError when it is stopped meanwhile.
        """
        outcomes, self._outcomes = self._outcomes, []
        told = False
        while outcomes:
            try:
                self._write_all(outcomes)
                break
            except HistoryError as error:
                if not told:
                    told = True
                    self._say("full", f"{error}; scoring waits until it can be written", {"reason": str(error)})
                if self._stopped.wait(FULL_PAUSE):
                    left = len(outcomes)
                    raise WatchError(f"{error}; {left} images are scored again at the next start") from error
        if told:
            self._say("written", "the history can be written again: nothing was lost", {})
        for outcome in outcomes:
            if outcome.alarm is not None:
                self._say("alarm", f"alarm: {outcome.alarm['text']}", {"monitor": outcome.alarm})
        flagged = sum(bool(outcome.prediction.is_ood) for outcome in outcomes)
        refused = sum(outcome.prediction.error is not None for outcome in outcomes)
        images, *others = self.counts
        self.counts = Counts(images + len(outcomes), others[0] + flagged, others[1] + refused)
        for delivery in self._deliveries if outcomes else ():
            delivery.wake()
        return [outcome.arrival for outcome in outcomes]

    def _write_all(self, outcomes: Sequence[Outcome]) -> None:
        with self._history.transaction() as change:
            for outcome in outcomes:
                self._write(change, outcome)
            change.put_state(self._name, self.monitor.to_bytes())

    def _write(self, change: Change, outcome: Outcome) -> None:
        (path, stamp), prediction = outcome.arrival, outcome.prediction
        number = change.add(self._name, prediction, time=outcome.time, source=path, evidence=outcome.evidence)
        change.mark_file(self._name, path, **stamp._asdict(), prediction=number)
        if outcome.alarm is not None:
            alarm = change.add_alarm(self._name, outcome.time, outcome.alarm)
            body = self._message("alarm", outcome, {"monitor": outcome.alarm, "text": outcome.alarm["text"]})
            for delivery in self._deliveries:
                delivery.add(change, alarm, body)
        if prediction.is_ood and self._on == "flagged":
            body = self._message("flagged", outcome, {})
            for delivery in self._deliveries:
                delivery.add(change, None, body)

    def _message(self, event: str, outcome: Outcome, more: Mapping[str, Any]) -> str:
        return json.dumps(
            {
                "id": uuid4().hex,
                "event": event,
                "time": datetime.fromtimestamp(outcome.time, UTC).isoformat(),
                "detector": legible(self._name),
                "folder": legible(str(self._folder)),
                "image": {**as_row(outcome.prediction), "name": legible(outcome.prediction.name)},
                **more,
            }
        )
