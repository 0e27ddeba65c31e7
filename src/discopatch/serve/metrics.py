"""Prometheus metrics and the structured log."""

import logging
import sys
from collections.abc import Callable
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

import discopatch
from discopatch.images import RefusalReason
from discopatch.monitor import MonitorStatus
from discopatch.results import PredictedImage

LOG = logging.getLogger("discopatch.serve")
SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
P_VALUES = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1)
SCORES = (-8, -4, -2, -1, 0, 1, 2, 3, 4, 6, 8, 12, 16, 32, 64)


def log_event(level: int, event: str, *, exc_info: bool = False, **fields: Any) -> None:
    """Logs one event; the fields become fields of its JSON line."""
    LOG.log(level, event, exc_info=exc_info, extra={"fields": fields})


class Metrics:
    """Counters, histograms and gauges of one service, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = self._make(Counter, "requests", "Requests.", "route", "method", "status")
        self.seconds = self._make(Histogram, "request_seconds", "Time to the response.", "route", buckets=SECONDS)
        self._images = self._make(Counter, "images", "Images that were scored.", "detector")
        self._scores = self._make(Histogram, "score", "Scores.", "detector", buckets=SCORES)
        self._p_values = self._make(Histogram, "p_value", "P-values.", "detector", buckets=P_VALUES)
        self._flagged = self._make(Counter, "flagged_images", "Images flagged as out-of-distribution.", "detector")
        self._refused = self._make(Counter, "refused_images", "Images refused, by reason.", "detector", "reason")
        self._evidence = self._make(Gauge, "monitor_log10_evidence", "Evidence of a change.", "detector")
        self._threshold = self._make(Gauge, "monitor_threshold", "Evidence that raises an alarm.", "detector")
        self._alarm = self._make(Gauge, "monitor_alarm", "1 after an alarm of the monitor.", "detector")
        self._uncounted = self._make(
            Gauge, "monitor_uncounted_images", "Images since the last that counted.", "detector"
        )
        self._few_count = self._make(Gauge, "monitor_few_count", "1 while far too few images count.", "detector")
        self.batch = self._make(Histogram, "batch_images", "Images scored together.", buckets=(1, 2, 4, 8, 16, 32, 64))
        self.history_errors = self._make(Counter, "history_errors", "Failed writes to the history.")
        self.history_lost = self._make(Counter, "history_lost_images", "Predictions not in the history.", "detector")
        self.reloads = self._make(Counter, "reloads", "Reloads by outcome.", "outcome")
        build = self._make(Gauge, "build_info", "Versions, with the value 1.", "version", "python")
        build.labels(discopatch.__version__, sys.version.partition(" ")[0]).set(1)

    def _make(self, kind: Any, name: str, text: str, *labels: str, **options: Any) -> Any:
        return kind(f"discopatch_{name}", text, labels, registry=self.registry, **options)

    def gauge(self, name: str, text: str, value: Callable[[], float]) -> None:
        """A gauge whose value is computed when it is read."""
        self._make(Gauge, name, text).set_function(value)

    def begin(self, detector: str) -> None:
        """Begins the counters of a detector at 0: Prometheus sees no increase in a series that is new."""
        for each in (self._images, self._flagged, self.history_lost):
            each.labels(detector)
        for reason in RefusalReason:
            self._refused.labels(detector, reason)

    def count(self, detector: str, predicted: PredictedImage) -> None:
        prediction = predicted.prediction
        if predicted.refusal is not None:
            self._refused.labels(detector, predicted.refusal.reason).inc()
        else:
            self._images.labels(detector).inc()
            self._scores.labels(detector).observe(prediction.score or 0.0)
            self._p_values.labels(detector).observe(prediction.p_value or 0.0)
            self._flagged.labels(detector).inc(bool(prediction.is_ood))

    def show(self, detector: str, status: MonitorStatus) -> None:
        self._evidence.labels(detector).set(status.log10_evidence)
        self._threshold.labels(detector).set(status.threshold)
        self._alarm.labels(detector).set(status.alarm)
        self._uncounted.labels(detector).set(status.uncounted)
        self._few_count.labels(detector).set(status.few_count)
