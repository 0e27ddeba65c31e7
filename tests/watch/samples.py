"""A stand-in for a detector that reads scores from files, so that thousands are scored quickly, and its watcher."""

import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from discopatch import Prediction
from discopatch.calibration import p_values
from discopatch.history import History
from discopatch.images import Item, Refusal, RefusalReason, Workers
from discopatch.monitor import Monitor
from discopatch.results import PredictedImage
from discopatch.watch.arrivals import Arrivals
from discopatch.watch.notify import Delivery
from discopatch.watch.watcher import Watcher

PATIENCE = 300.0  # seconds


class ReadScores:
    """Each file holds a score, or nothing, which is refused."""

    component_names = ()
    digest_ = "0123456789abcdef"

    def __init__(self) -> None:
        self.calibration_scores_ = np.random.default_rng(0).normal(size=99)
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
    """A folder, a history and the reported events, with a new watcher for every run."""

    def __init__(self, root: Path, predictor: ReadScores | None = None, **options: Any) -> None:
        self.folder, self.database = root / "in", root / "history.sqlite"
        self.folder.mkdir(parents=True, exist_ok=True)
        self.predictor = predictor or ReadScores()
        self.options = {"settle": 0.1, **options}  # of the folder
        self.reported: list[str] = []

    def put(self, name: str, score: object = 0.0, *, age: float = 3600.0) -> Path:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f"{path.name}.part")
        part.write_text(str(score))
        os.utime(part, (time.time() - age, time.time() - age))
        part.rename(path)
        return path

    def watcher(self, history: History, *deliveries: Delivery, **arguments: Any) -> Watcher:
        state = history.state("camera")
        monitor = Monitor(self.predictor) if state is None else Monitor.from_bytes(state, self.predictor)  # type: ignore[arg-type]
        return Watcher(
            self.predictor,  # type: ignore[arg-type]
            monitor,
            history,
            Arrivals(self.folder, **self.options),
            name="camera",
            report=lambda event, text, values: self.reported.append(event),
            deliveries=deliveries,
            **arguments,
        )

    def once(self, **arguments: Any) -> list[str]:
        """Scores the files that are there; the names of all stored predictions, oldest first."""
        with History(self.database) as history:
            self.watcher(history, **arguments).run(once=True)
            return kept(history)

    def events(self, *names: str) -> list[str]:
        return [event for event in self.reported if event in names]


def kept(history: History) -> list[str]:
    return [entry.prediction.name for entry in reversed(history.recent("camera", limit=10**6))]


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, "nothing happened for long"
        time.sleep(0.01)
