"""A stand-in for a detector that reads scores from files, so that thousands are scored quickly, and its watcher."""

import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np

from discopatch import Prediction
from discopatch.calibration import Calibration, p_values
from discopatch.history import History
from discopatch.images import Item, Refusal, RefusalReason, Workers
from discopatch.monitor import Monitor
from discopatch.results import PredictedImage
from discopatch.watch.arrivals import Arrivals, Source
from discopatch.watch.notify import Delivery
from discopatch.watch.watcher import Watcher

PATIENCE = 300.0  # seconds


class ReadScores:
    """Each file holds a score, or nothing, which is refused."""

    component_names = column_names = ()
    digest_ = "0123456789abcdef"

    def __init__(self) -> None:
        self.calibration_scores_ = np.random.default_rng(0).normal(size=99)
        self.calibration_ = Calibration(self.calibration_scores_, 0.01)
        self.scored: Counter[str] = Counter()

    def settings(self) -> dict[str, Any]:
        return {"groups": None}

    def predict_images(self, images: object, *, workers: Workers = 1) -> Iterator[PredictedImage]:
        assert isinstance(images, Iterable)
        for item in images:
            assert isinstance(item, Item)
            yield self.predict_item(item)

    def predict_item(self, item: Item) -> PredictedImage:
        assert isinstance(item.content, Path)
        self.scored[item.name] += 1
        try:
            score = float(item.content.read_text())
        except (OSError, ValueError):
            return PredictedImage.refused(Refusal(item.name, RefusalReason.TRUNCATED, "cut short"))
        p_value = float(p_values([score], self.calibration_scores_)[0])
        return PredictedImage(Prediction(item.name, score, p_value, p_value <= 0.01), None, None)


class Watched:
    """A folder or a stream, a history and what was reported, with a new watcher for every run."""

    def __init__(self, root: Path, predictor: ReadScores | None = None, **options: Any) -> None:
        self.folder, self.database = root / "in", root / "history.sqlite"
        self.folder.mkdir(parents=True, exist_ok=True)
        self.predictor = predictor or ReadScores()
        self.options = {"settle": 0.1, **options}  # of the folder
        self.reported: list[tuple[str, str]] = []

    def put(self, name: str, score: object = 0.0, *, age: float = 3600.0) -> Path:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f"{path.name}.part")
        part.write_text(str(score))
        os.utime(part, (time.time() - age, time.time() - age))
        part.rename(path)
        return path

    def source(self) -> Source:
        return Arrivals(self.folder, **self.options)

    def watcher(self, history: History, *deliveries: Delivery, **arguments: Any) -> Watcher:
        state = history.state("camera")
        monitor = Monitor(self.predictor) if state is None else Monitor.from_bytes(state, self.predictor)  # type: ignore[arg-type]
        return Watcher(
            self.predictor,  # type: ignore[arg-type]
            monitor,
            history,
            self.source(),
            name="camera",
            report=lambda event, text, values: self.reported.append((event, text)),
            deliveries=deliveries,
            **arguments,
        )

    def run(self, *deliveries: Delivery, once: bool = True, **arguments: Any) -> list[str]:
        """The names of all stored predictions after a run to its end, oldest first."""
        with History(self.database) as history:
            self.watcher(history, *deliveries, **arguments).run(once=once)
            return kept(history)

    @contextmanager
    def running(self, *deliveries: Delivery, history: History | None = None, **arguments: Any) -> Iterator[History]:
        """The watcher in a thread, which is stopped and has to end without an error."""
        errors: list[BaseException] = []

        def work() -> None:
            try:
                watcher.run()
            except BaseException as error:
                errors.append(error)

        with nullcontext(history) if history is not None else History(self.database) as found:
            watcher = self.watcher(found, *deliveries, **arguments)
            thread = threading.Thread(target=work)
            thread.start()
            try:
                yield found
            finally:
                watcher.stopped.set()
                thread.join(PATIENCE)
        assert not thread.is_alive()
        assert errors == []

    def events(self, *names: str) -> list[str]:
        """The reported events with these names, or all but the status."""
        return [event for event, _ in self.reported if (event in names if names else event != "status")]


def kept(history: History) -> list[str]:
    return [entry.prediction.name for entry in reversed(history.recent("camera", limit=10**6))]


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, "nothing happened for long"
        time.sleep(0.01)
