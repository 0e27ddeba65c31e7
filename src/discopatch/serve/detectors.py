"""The detectors of a service: loaded, tried, described, and swapped all at once."""

import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import discopatch
from discopatch.errors import DiscopatchError, ParameterError
from discopatch.export.metadata import METADATA_FILE
from discopatch.export.runtime import Runtime
from discopatch.history import History
from discopatch.images import NamedImage, Transform
from discopatch.monitor import Monitor
from discopatch.serve.metrics import Metrics
from discopatch.serve.problems import ProblemError
from discopatch.serve.recording import Stream, time_text
from discopatch.serve.settings import ServeSettings
from discopatch.utils import file_digest

if TYPE_CHECKING:
    from discopatch.detector import Detector

TRIES = 3  # to read a file that is replaced meanwhile
KEPT_STREAMS = 8  # of detectors that were replaced, for requests that end with them
BINS = 24  # of the histogram of calibration scores


@dataclass(frozen=True, eq=False)
class Loaded:
    """A detector in memory, as it was at one moment; requests keep the one that they began with."""

    name: str
    path: Path
    digest: str  # SHA-256 of its file
    predictor: "Detector | Runtime"
    stream: Stream
    since: float

    @property
    def is_export(self) -> bool:
        return isinstance(self.predictor, Runtime)

    def at_once(self, batch_size: int) -> int:
        """How many images it takes together: an export has no gain from more than one."""
        return 1 if self.is_export else batch_size

    @cached_property
    def short(self) -> dict[str, Any]:
        """What a list of detectors says of it."""
        return {
            "name": self.name,
            "kind": "export" if self.is_export else "detector",
            "digest": self.digest,
            "loaded": time_text(self.since),
            "false_alarm_rate": self.predictor.false_alarm_rate_,
        }

    @cached_property
    def full(self) -> dict[str, Any]:
        """All that one may want to know of it, as JSON; the threshold is null where no image can be flagged."""
        predictor, guarantee, threshold = self.predictor, self.predictor.guarantee_, self.predictor.threshold_
        scores = predictor.calibration_scores_
        counts, edges = np.histogram(scores, BINS)
        return {
            **self.short,
            "settings": settings_of(predictor),
            "guarantee": {
                "text": guarantee.text,
                "rate": predictor.false_alarm_rate_,
                "n_calibration": len(scores),
            },
            "threshold": threshold if isfinite(threshold) else None,
            "transform": transform_of(predictor).to_dict(),
            "component_names": list(predictor.component_names),
            "calibration": {"edges": edges.tolist(), "counts": counts.tolist()},
        }


def transform_of(predictor: "Detector | Runtime") -> Transform:
    return predictor.transform_


def settings_of(predictor: "Detector | Runtime") -> dict[str, Any]:
    """What its results depend on, by name and digest."""
    return predictor.settings()


class Registry:
    """The detectors by name. `load` reads all of them anew, and then puts them in place of the old ones at once."""

    def __init__(self, settings: ServeSettings, history: History, metrics: Metrics, log: Callable[..., None]) -> None:
        self._settings, self._history, self._metrics, self._log = settings, history, metrics, log
        self._loaded: Mapping[str, Loaded] = {}
        self._retired: deque[Stream] = deque(maxlen=KEPT_STREAMS)
        self.threads = settings.threads or default_threads(settings.detectors.values())

    def __getitem__(self, name: str) -> Loaded:
        try:
            return self._loaded[name]
        except KeyError:
            there = ", ".join(self._loaded)
            raise ProblemError(404, "no-such-detector", f"there is no detector {name[:100]!r}, but {there}") from None

    @property
    def all(self) -> list[Loaded]:
        return list(self._loaded.values())

    @property
    def streams(self) -> list[Stream]:
        """Those of all detectors, and of such as were replaced not long ago."""
        return [*(each.stream for each in self._loaded.values()), *self._retired]

    def load(self) -> list[str]:
        """The names of those that have changed; where one cannot be loaded none is, and the error says which."""
        old = self._loaded
        found = {}
        for name, path in self._settings.detectors.items():
            try:
                digest, predictor = self._read(path)
                found[name] = self._with_stream(name, path, digest, predictor, old.get(name))
            except (DiscopatchError, OSError) as error:
                raise ParameterError(f"detector {name}: {error}") from error
        changed = [name for name, each in found.items() if name not in old or old[name].digest != each.digest]
        for name in changed:
            if name in old:
                old[name].stream.is_retired = True
                self._retired.append(old[name].stream)
        self._loaded = found
        return changed

    def _read(self, path: Path) -> tuple[str, "Detector | Runtime"]:
        """The digest and the detector of one and the same file, tried on an image."""
        for _ in range(TRIES):
            digest = content_digest(path)
            predictor = self._load(path)
            if content_digest(path) == digest:
                size = transform_of(predictor).size
                grey = NamedImage("trial", np.full((size, size, 3), 128, np.uint8))
                predictor.predict([grey], workers=1)
                return digest, predictor
        raise ParameterError(f"{path} changes while it is read: replace it by a rename")

    def _load(self, path: Path) -> "Detector | Runtime":
        settings = self._settings
        if path.is_dir():
            threads = max(1, (os.cpu_count() or 1) // self.threads)
            return Runtime.load(path, threads=threads, max_pixels=settings.max_pixels, max_bytes=settings.max_bytes)
        return discopatch.load(
            path,
            weights=settings.weights,
            device=settings.device,
            batch_size=settings.batch_size,
            max_pixels=settings.max_pixels,
            max_bytes=settings.max_bytes,
        )

    def _with_stream(
        self, name: str, path: Path, digest: str, predictor: "Detector | Runtime", old: Loaded | None
    ) -> Loaded:
        """The stream goes on where the file is the same, and otherwise where the history has one of this detector."""
        if old is not None and old.digest == digest:
            return Loaded(name, path, digest, predictor, old.stream, time.time())
        monitor = None
        if old is None and (state := self._history.state(name)) is not None:
            try:
                monitor = Monitor.from_bytes(state, predictor)
            except DiscopatchError as error:
                self._log("warning", "monitor", detector=name, detail=f"a new stream begins: {error}")
        if monitor is None or monitor.false_alarm_rate != self._settings.monitor_rate:
            monitor = Monitor(predictor, false_alarm_rate=self._settings.monitor_rate)
        return Loaded(name, path, digest, predictor, Stream(name, monitor, digest, self._metrics), time.time())


def content_digest(path: Path) -> str:
    """Of a saved detector its file's; of an export that of its metadata, which hold the digests of the other files."""
    return file_digest(path / METADATA_FILE if path.is_dir() else path)


def default_threads(paths: Iterable[Path]) -> int:
    """One a core for exports, each of which passes in one thread; one where there is a detector of torch.

    torch itself uses all cores for one image, and several at once would take them from each other.
    """
    return (os.cpu_count() or 1) if all(path.is_dir() for path in paths) else 1
