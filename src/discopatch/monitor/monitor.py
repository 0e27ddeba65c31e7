"""Detects a change of a stream of images as a whole, from its predictions, one by one."""

import hashlib
import json
from collections.abc import Iterator
from math import exp, isfinite, log
from pathlib import Path
from typing import Any, Literal, Self

import msgspec
import numpy as np
from numpy.typing import NDArray

from discopatch.errors import ParameterError, WeightsError
from discopatch.groups import group_names
from discopatch.monitor.change import KEPT, ChangePoint, Recent, change_interval, moved_component
from discopatch.monitor.evidence import (
    CALIBRATION,
    DIRECTIONS,
    STREAM,
    Evidence,
    Ranking,
    tie_breaker,
)
from discopatch.monitor.status import ExampleImage, MonitorState, MonitorStatus
from discopatch.results import FittedDetector, Prediction
from discopatch.utils import write_atomically

FALSE_ALARM_RATE = 0.01
LARGEST_LOG = 690.0  # of evidence as a number; log10_evidence is not limited
N_EXAMPLES = 8  # images of each direction that are kept
DESCRIBED = 64  # images after an alarm that still refine the beginning and the component of the change
FORGETTING = 100  # images after which one has e times less weight as an example, until there is an alarm
MORE_THAN_SHIFTED = 10  # times the evidence: images in one outer band are alike too
LONGEST_NAME = 300  # characters, from the end
NEW_STREAM = "continue with the same, or begin a new stream (--restart, Monitor(detector))"


class Monitor:
    """Raises an alarm when a stream of images is no longer like the calibration images, even if no image is flagged.

    While images and calibration images are exchangeable, the chance of an alarm, ever, is at most `false_alarm_rate`:
    `evidence.py` has the proof, docs/serving.md the measurements.

    The first of consecutive images of one group counts: images of one folder, or images whose names differ in their
    trailing number, as the detector was fitted.

    Examples
    --------
    >>> monitor = Monitor(detector)  # doctest: +SKIP
    >>> for prediction in detector.predict_iter("stream"):  # doctest: +SKIP
    ...     if monitor.update(prediction).alarm:
    ...         print(monitor.status.text)
    """

    def __init__(self, detector: FittedDetector, false_alarm_rate: float = FALSE_ALARM_RATE) -> None:
        if not (isinstance(false_alarm_rate, int | float) and 0 < false_alarm_rate < 1):
            raise ParameterError(f"false_alarm_rate is {false_alarm_rate!r}: give a number between 0 and 1, as 0.01")
        rule = detector.settings()["groups"]
        self._rule: Literal["folder", "name"] | None = rule if rule in ("folder", "name") else None
        self._calibration = np.asarray(detector.calibration_scores_, np.float64)
        if not len(self._calibration):
            raise ParameterError("the detector has no calibration images: fit it again")
        self._names = detector.component_names
        self._ties = np.array([[tie_breaker(CALIBRATION, each) for each in range(len(self._calibration))]])
        digest = calibration_digest(self._calibration, self._names)
        self._state = MonitorState(detector=digest, false_alarm_rate=float(false_alarm_rate))
        self.restart()

    @property
    def false_alarm_rate(self) -> float:
        return self._state.false_alarm_rate

    def restart(self) -> None:
        """Begins a new stream: the evidence is 1 again, and only the calibration images are known.

        The rate holds for each stream by itself; the chance of a false alarm in any of k streams is at most k times it.
        """
        self._evidence = Evidence(len(self._calibration))
        self._ranking = Ranking(self._calibration[None], self._ties, self._evidence.alternatives.highest)
        self._recent = Recent(len(self._names))
        before = self._state
        self._state = MonitorState(
            detector=before.detector, false_alarm_rate=before.false_alarm_rate, ranked=before.ranked
        )
        self.status = self._status()

    def update(self, prediction: Prediction) -> MonitorStatus:
        """Adds the next prediction of the stream; one without a score is counted, and is no evidence."""
        score, p_value = prediction.score, prediction.p_value
        if score is not None and not (isfinite(score) and p_value is not None and 0 < p_value <= 1):
            raise ParameterError(
                f"{prediction.name}: score {score}, p-value {p_value}: give predictions of a fitted detector"
            )
        self._state.number += 1
        if score is None or p_value is None:
            self._state.refused += 1
        else:
            self._state.images += 1
            if self._begins_group(prediction.name):
                self._count(prediction, score, p_value)
        self.status = self._status()
        return self.status

    def _begins_group(self, name: str) -> bool:
        """Whether the image belongs to another group than the one before."""
        if self._rule is None:
            return True
        (group,) = group_names([name], self._rule)
        digest = hashlib.sha256(str(group).encode(errors="surrogateescape")).hexdigest()
        begins, self._state.last_group = digest != self._state.last_group, digest
        return begins

    def _count(self, prediction: Prediction, score: float, p_value: float) -> None:
        tie = tie_breaker(STREAM, self._state.ranked)
        place = self._ranking.add(np.array([score]), np.array([tie]))
        band = self._evidence.alternatives.band_of_gap[place.below]
        self._evidence.update(band, place.record)
        self._state.ranked += 1
        self._state.counted += 1
        z = {each.name: each.z for each in prediction.components}
        z_scores = tuple(z.get(name, np.nan) for name in self._names)
        self._recent.add(self._state.number, int(band[0]), bool(place.record[0]), z_scores)
        self._keep_example(ExampleImage(short_name(prediction.name), self._state.number, float(score), float(p_value)))
        if self._state.alarm_at is None and self._evidence.log_evidence[0] >= -log(self.false_alarm_rate):
            self._state.alarm_at = self._state.number
        if self._state.alarm_at is not None:
            later = self._state.number - self._state.alarm_at
            if later & (later - 1) == 0 and later <= DESCRIBED:  # more is known with twice as many images
                self._describe_change()

    def _describe_change(self) -> None:
        if self._state.direction is None:
            by_direction = self._evidence.log_by_direction[0] - np.log([1, 1, MORE_THAN_SHIFTED])
            self._state.direction = DIRECTIONS[int(by_direction.argmax())]
        if (found := change_interval(self._recent, self._evidence)) is not None:
            self._state.since = ChangePoint(*(int(self._recent.numbers[place]) for place in found))
            moved = moved_component(self._recent, found[0])
            self._state.component = None if moved is None else self._names[moved]

    def _keep_example(self, image: ExampleImage) -> None:
        """Keeps the image among the highest, the lowest and the latest, each with few others."""
        n = len(self._calibration)
        now = image.image if self._state.alarm_at is None else self._state.alarm_at

        def age(each: ExampleImage) -> float:
            return max(0, now - each.image) / FORGETTING

        keys = {
            "higher": lambda each: (-log(each.p_value) - age(each), each.score),
            "lower": lambda each: (-log(1 - each.p_value + 1 / (n + 1)) - age(each), -each.score),
            "latest": lambda each: each.image,
        }
        for name, kept in self._state.examples.items():
            kept.append(image)
            if len(kept) > N_EXAMPLES:
                kept.remove(min(kept, key=keys[name]))

    def _best_examples(self) -> tuple[ExampleImage, ...]:
        direction = self._state.direction
        images = self._state.examples["latest" if direction == "alike" else direction or "higher"]
        if self._state.since is not None:
            images = [each for each in images if self._state.since.earliest <= each.image] or images
        if self._state.direction == "alike":
            return tuple(images)
        return tuple(sorted(images, key=lambda each: each.score, reverse=self._state.direction != "lower"))

    def _status(self) -> MonitorStatus:
        log_evidence = float(self._evidence.log_evidence[0])
        return MonitorStatus(
            images=self._state.images,
            counted=self._state.counted,
            refused=self._state.refused,
            evidence=exp(min(log_evidence, LARGEST_LOG)),
            log10_evidence=log_evidence / log(10),
            threshold=1 / self.false_alarm_rate,
            alarm=self._state.alarm_at is not None,
            alarm_at=self._state.alarm_at,
            since=self._state.since,
            direction=self._state.direction,
            component=self._state.component,
            examples=self._best_examples(),
        )

    def save(self, path: Path | str) -> None:
        """Writes the state, atomically."""
        content = self.to_bytes()
        write_atomically(Path(path), lambda partial: partial.write_bytes(content))

    @classmethod
    def load(cls, path: Path | str, detector: FittedDetector, false_alarm_rate: float | None = None) -> Self:
        """The monitor of a file, as `from_bytes`."""
        return cls.from_bytes(Path(path).read_bytes(), detector, false_alarm_rate, where=str(path))

    def to_bytes(self) -> bytes:
        """The state without the detector, as JSON: tens of thousands of bytes, for streams of any length."""
        self._recent.settle()
        self._state.arrays = {name: little_endian(getattr(of, name)).tobytes() for of, name in self._arrays()}
        return msgspec.json.encode(self._state)

    @classmethod
    def from_bytes(
        cls,
        content: bytes,
        detector: FittedDetector,
        false_alarm_rate: float | None = None,
        *,
        where: str = "the state",
    ) -> Self:
        """The monitor of `to_bytes`; WeightsError if the bytes are damaged, another detector's, or of another rate."""
        try:
            state = msgspec.json.decode(content, type=MonitorState)
            monitor = cls(detector, state.false_alarm_rate)
            if monitor._state.detector != state.detector:
                raise WeightsError(f"{where} belongs to another detector, or it was fitted again: {NEW_STREAM}")
            if false_alarm_rate not in (None, state.false_alarm_rate):
                raise WeightsError(f"{where} has a stream with a rate of {state.false_alarm_rate:g}: {NEW_STREAM}")
            for of, name in monitor._arrays():
                new = getattr(of, name)
                found = np.frombuffer(state.arrays[name], little_endian(new).dtype).astype(new.dtype)
                setattr(of, name, found.reshape(len(new) or min(state.counted, KEPT), *new.shape[1:]))
        except (ValueError, KeyError) as error:  # of msgspec, and of arrays with another size
            raise WeightsError(f"{where} is no state of a monitor ({error}): {NEW_STREAM}") from error
        monitor._state, monitor._evidence.images = state, state.counted
        if state.counted:
            monitor._evidence.last = monitor._recent.bands[-1:].astype(np.int64)
        monitor.status = monitor._status()
        return monitor

    def _arrays(self) -> Iterator[tuple[object, str]]:
        """The arrays of the state: objects, and names of their attributes."""
        yield from ((self._evidence, name) for name in ("urn", "log_sums"))
        yield from ((self._ranking, name) for name in ("highest", "highest_ties"))
        yield from ((self._recent, name) for name in ("numbers", "bands", "records", "z_scores"))


def little_endian(values: NDArray[Any]) -> NDArray[Any]:
    return values.astype(values.dtype.newbyteorder("<"))


def calibration_digest(calibration: NDArray[np.float64], names: tuple[str, ...]) -> str:
    """A digest of the calibration scores and the components, on which the evidence depends."""
    content = json.dumps([*names]).encode() + b"\0" + np.ascontiguousarray(calibration, "<f8").tobytes()
    return hashlib.sha256(content).hexdigest()


def short_name(name: str) -> str:
    """The name, or the end of a long one; bytes that are not Unicode are escaped."""
    text = name.encode(errors="backslashreplace").decode()
    return text if len(text) <= LONGEST_NAME else f"...{text[-LONGEST_NAME:]}"
