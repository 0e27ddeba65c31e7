"""What Prometheus reads at /metrics, in a registry of its own."""

import sys
from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

import discopatch
from discopatch.monitor import MonitorStatus
from discopatch.results import PredictedImage

METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
P_VALUES = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1)
SCORES = (-8, -4, -2, -1, 0, 1, 2, 3, 4, 6, 8, 12, 16, 32, 64)


class Metrics:
    """Counters, histograms and gauges of one service."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self.requests = Counter(
            "discopatch_requests",
            "Requests by route, method and status.",
            ["route", "method", "status"],
            registry=registry,
        )
        self.seconds = Histogram(
            "discopatch_request_seconds",
            "From the header to the answer.",
            ["route"],
            buckets=SECONDS,
            registry=registry,
        )
        self.images = Counter("discopatch_images", "Images that were scored.", ["detector"], registry=registry)
        self.scores = Histogram("discopatch_score", "Scores.", ["detector"], buckets=SCORES, registry=registry)
        self.p_values = Histogram("discopatch_p_value", "P-values.", ["detector"], buckets=P_VALUES, registry=registry)
        self.flagged = Counter(
            "discopatch_flagged_images", "Images flagged as out-of-distribution.", ["detector"], registry=registry
        )
        self.refused = Counter(
            "discopatch_refused_images", "Images refused, by reason.", ["detector", "reason"], registry=registry
        )
        self.batch = Histogram(
            "discopatch_batch_images", "Images taken at once.", buckets=(1, 2, 4, 8, 16, 32, 64), registry=registry
        )
        self.evidence = Gauge(
            "discopatch_monitor_log10_evidence", "Evidence of a change of the stream.", ["detector"], registry=registry
        )
        self.threshold = Gauge(
            "discopatch_monitor_threshold", "Evidence from which on there is an alarm.", ["detector"], registry=registry
        )
        self.alarm = Gauge(
            "discopatch_monitor_alarm", "1 once the monitor has raised an alarm.", ["detector"], registry=registry
        )
        self.history_errors = Counter(
            "discopatch_history_errors", "Writes to the history that failed.", registry=registry
        )
        self.history_lost = Counter(
            "discopatch_history_lost_images", "Predictions that the history lacks.", ["detector"], registry=registry
        )
        self.reloads = Counter("discopatch_reloads", "Reloads by outcome.", ["outcome"], registry=registry)
        build = Gauge("discopatch_build_info", "Versions, with the value 1.", ["version", "python"], registry=registry)
        build.labels(discopatch.__version__, sys.version.partition(" ")[0]).set(1)

    def gauge(self, name: str, text: str, value: Callable[[], float]) -> None:
        """A value that is looked up when it is asked for."""
        Gauge(f"discopatch_{name}", text, registry=self.registry).set_function(value)

    def count(self, detector: str, predicted: PredictedImage, status: MonitorStatus) -> None:
        """Counts an image."""
        prediction = predicted.prediction
        if predicted.refusal is not None:
            self.refused.labels(detector, predicted.refusal.reason).inc()
        else:
            self.images.labels(detector).inc()
            self.scores.labels(detector).observe(prediction.score or 0.0)
            self.p_values.labels(detector).observe(prediction.p_value or 0.0)
            self.flagged.labels(detector).inc(bool(prediction.is_ood))
        self.follow(detector, status)

    def follow(self, detector: str, status: MonitorStatus) -> None:
        """Shows what the monitor says."""
        self.evidence.labels(detector).set(status.log10_evidence)
        self.threshold.labels(detector).set(status.threshold)
        self.alarm.labels(detector).set(status.alarm)

    def answered(self, route: str, method: str, status: int, seconds: float) -> None:
        """Counts a request."""
        self.requests.labels(route, method if method in METHODS else "other", str(status)).inc()
        self.seconds.labels(route).observe(seconds)

    def text(self) -> bytes:
        return generate_latest(self.registry)
