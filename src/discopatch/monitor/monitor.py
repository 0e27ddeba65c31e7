"""Detects a change of a stream of images as a whole, from its predictions, one by one."""

import hashlib
import json
from math import exp, inf, isfinite, log
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import msgspec
import numpy as np
from numpy.typing import NDArray

from discopatch.errors import ParameterError, WeightsError
from discopatch.groups import group_names
from discopatch.monitor.change import KEPT, ChangePoint, change_interval, moved_component, row_type, rows_of_classes
from discopatch.monitor.evidence import CALIBRATION, DIRECTIONS, STREAM, Direction, Evidence, Ranking, tie_breaker
from discopatch.results import COMPONENT_WORDS, FittedDetector, Prediction
from discopatch.schema import Count, LongDigest, between
from discopatch.utils import counted, escaped, write_atomically

FALSE_ALARM_RATE = 0.01
LARGEST_LOG = 690.0  # of evidence as a number; log10_evidence is not limited
N_EXAMPLES = 8  # images of each direction that are kept
DESCRIBED = 64  # images after an alarm that still refine the beginning and the component of the change
FORGETTING = 100  # images after which one has e times less weight as an example, until there is an alarm
MORE_THAN_SHIFTED = 10  # times the evidence: images in one outer band are alike too
LONGEST_NAME = 300  # characters, from the end
LONG_RUN = 10  # times the images of a normal group, from which on images of one group in a row are reported
NEW_STREAM = "continue with the same, or begin a new stream (--restart, Monitor(detector))"
CHANGES = {
    "higher": "scores are higher than those of normal images",
    "lower": "scores are lower than those of normal images",
    "alike": "scores are more alike than those of normal images",
}


class ExampleImage(msgspec.Struct, frozen=True):
    """An image that shows the change."""

    name: str
    image: int  # its number in the stream, from 1
    score: float
    p_value: float


class Findings(msgspec.Struct, kw_only=True):
    """The counts of a stream and the description of its change; images are numbered from 1, including refused ones."""

    images: Count = 0  # with a score
    counted: Count = 0  # one of each run of images of one group, if there are groups
    uncounted: Count = 0  # since the last image that counted
    refused: Count = 0
    alarm_at: Count | None = None  # the number of the image with which the threshold was reached
    since: ChangePoint | None = None
    direction: Direction | None = None
    component: str | None = None  # with another mean since the change, if there is a clear one


class MonitorStatus(Findings, kw_only=True):
    """The result of a monitor after an image."""

    evidence: float  # against the stream being like the calibration images: 1 / rate is an alarm
    log10_evidence: float
    threshold: float  # 1 / rate
    alarm: bool  # whether the threshold was ever reached
    few_count: bool  # whether far more images in a row are of one group than in normal groups
    examples: list[ExampleImage]  # images that show the change; before an alarm those with the highest scores

    @property
    def caution(self) -> str | None:
        """A sentence where the monitor does not see the images, since their names put them into one group."""
        if not self.few_count:
            return None
        return (
            f"the last {counted(self.uncounted, 'image')} did not count: by name they are of one group, of which the "
            "first counts; give images names or folders as those of the normal images"
        )

    @property
    def text(self) -> str:
        return "; ".join(filter(None, (self._finding, self.caution)))

    @property
    def _finding(self) -> str:
        images = counted(self.images, "image") + f", {self.refused:,} refused" * (self.refused > 0)
        evidence = f"evidence {evidence_text(self.log10_evidence)}, an alarm from {self.threshold:,.4g} on"
        if self.alarm_at is None:
            return f"no change: {images}; {evidence}"
        text = f"the stream has changed (alarm at image {self.alarm_at:,} of {images}; {evidence})"
        if self.since is not None:
            text += f" since about image {self.since.image:,} ({self.since.earliest:,} to {self.since.latest:,})"
        if self.direction is not None:
            text += f": {CHANGES[self.direction]}"
        if self.component is not None:
            text += f", most of all in {self.component} ({COMPONENT_WORDS.get(self.component, 'a component')})"
        return text

    def as_dict(self) -> dict[str, Any]:
        return {**msgspec.to_builtins(self), "text": self.text}


class MonitorState(Findings, kw_only=True, forbid_unknown_fields=True):
    """The stored fields of a monitor."""

    kind: Literal["discopatch-monitor-4"] = "discopatch-monitor-4"
    detector: LongDigest  # of the calibration scores and the names of the components
    false_alarm_rate: Annotated[float, between(0, 1)]
    number: Count = 0  # of the last image, refused ones included
    ranked: Count = 0  # images of all streams, which number the random numbers
    last_group: LongDigest | None = None
    examples: dict[Literal["higher", "lower", "latest"], list[ExampleImage]] = msgspec.field(
        default_factory=lambda: {"higher": [], "lower": [], "latest": []}
    )
    arrays: dict[str, bytes] = msgspec.field(default_factory=dict)  # little-endian, since the last `to_bytes`


def evidence_text(log10: float) -> str:
    """The evidence as a short number: 0.83, 42, 1,300, or 10^9 from a million on."""
    return f"10^{log10:.0f}" if log10 >= 6 else f"{10**log10:,.2g}" if log10 < 1 else f"{10**log10:,.0f}"


class Monitor:
    """Raises an alarm when a stream of images is no longer like the calibration images, even if no image is flagged.

    While images and calibration images are exchangeable, the chance of an alarm, ever, is at most `false_alarm_rate`:
    `evidence.py` has the proof, docs/serving.md the measurements.

    With classes, images of each are compared with its calibration images, so that any mix of classes is normal.

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
        fitted = detector.guarantee_ if self._rule else None
        fitted_groups = 1 if fitted is None else max(1, (fitted.n_groups or 0) - fitted.n_calibration)
        self._longest_run = inf if fitted is None else LONG_RUN * fitted.n_fit / fitted_groups
        self._calibration = np.asarray(detector.calibration_scores_, np.float64)
        self._names = detector.component_names
        self._parts = detector.calibration_.parts
        ties = [tie_breaker(CALIBRATION, each) for each in range(len(self._calibration))]
        self._ties = np.split(np.array(ties), np.cumsum([len(part.scores) for part in self._parts.values()])[:-1])
        stored = detector.calibration_.stored.astype("<f8").tobytes()
        content = json.dumps([*self._names]).encode() + b"\0" + stored
        digest = hashlib.sha256(content).hexdigest()
        self.false_alarm_rate = float(false_alarm_rate)
        self._state = MonitorState(detector=digest, false_alarm_rate=self.false_alarm_rate)
        self._row_type = row_type(len(self._names), len(self._parts))
        self._numbers = {name: (number,) * (len(self._parts) > 1) for number, name in enumerate(self._parts)}
        self.restart()

    def restart(self) -> None:
        """Begins a new stream: the evidence is 1 again, and only the calibration images are known.

        The rate holds for each stream by itself; the chance of a false alarm in any of k streams is at most k times it.
        """
        self._by_class = {name: Evidence(len(part.scores)) for name, part in self._parts.items()}
        self._evidence = next(iter(self._by_class.values()))  # of the class of the last image, with the sums of all
        pairs = zip(self._by_class.items(), self._ties, strict=True)
        self._rankings = {
            name: Ranking(self._parts[name].scores[None], ties[None], own.alternatives.highest)
            for (name, own), ties in pairs
        }
        self._recent = bytearray()  # rows of the last images that count
        detector, rate, ranked = self._state.detector, self.false_alarm_rate, self._state.ranked
        self._state = MonitorState(detector=detector, false_alarm_rate=rate, ranked=ranked)
        self.status = self._status()

    def update(self, prediction: Prediction, *, group: str | None = None) -> MonitorStatus:
        """Adds the next prediction of the stream; one without a score is counted, and is no evidence.

        With `group`, such as a minute of a video, that is the group of the image instead of the one by its name.
        """
        if not isinstance(prediction, Prediction):
            raise ParameterError(f"{type(prediction).__name__} is no Prediction: give those of a fitted detector")
        score, p_value = prediction.score, prediction.p_value
        are_numbers = all(isinstance(each, int | float | np.floating) for each in (score, p_value))
        if score is not None and not (
            (are_numbers and isfinite(score) and p_value is not None and 0 < p_value <= 1)
            and prediction.class_name in self._parts
        ):
            raise ParameterError(
                f"{prediction.name}: score {score!r}, p-value {p_value!r}: give predictions of a fitted detector"
            )
        self._state.number += 1
        if score is None or p_value is None:
            self._state.refused += 1
        else:
            self._state.images += 1
            self._state.uncounted += group is None  # `few_count` is about names
            if self._begins_group(prediction.name, group):
                self._count(prediction, score, p_value)
        self.status = self._status()
        return self.status

    def _begins_group(self, name: str, given: str | None) -> bool:
        group = group_names([name], self._rule)[0] if given is None and self._rule else given
        if group is None:
            return True
        digest = hashlib.sha256(str(group).encode(errors="surrogateescape")).hexdigest()
        begins, self._state.last_group = digest != self._state.last_group, digest
        return begins

    def _count(self, prediction: Prediction, score: float, p_value: float) -> None:
        state, name = self._state, prediction.class_name
        own, before = self._by_class[name], self._evidence
        below, record = self._rankings[name].add(np.array([score]), np.array([tie_breaker(STREAM, state.ranked)]))
        band = own.alternatives.band_of_gap[below]
        own.log_sums, own.images, self._evidence = before.log_sums, before.images, own
        own.update(band, record)
        state.ranked += 1
        state.counted, state.uncounted = state.counted + 1, 0
        z = {each.name: each.z for each in prediction.components}
        z_scores = tuple(z.get(name, np.nan) for name in self._names)
        row = state.number, band[0], record[0], z_scores, *self._numbers[name]
        self._recent += np.array(row, self._row_type).tobytes()
        del self._recent[: -KEPT * self._row_type.itemsize]
        name = escaped(prediction.name)[-LONGEST_NAME:]
        self._keep_example(ExampleImage(name, state.number, float(score), float(p_value)))
        if state.alarm_at is None and self._evidence.log_evidence[0] >= -log(self.false_alarm_rate):
            state.alarm_at = state.number
        if state.alarm_at is not None:
            later = state.number - state.alarm_at
            if later & (later - 1) == 0 and later <= DESCRIBED:  # more is known with twice as many images
                self._describe_change()

    def _describe_change(self) -> None:
        if self._state.direction is None:
            by_direction = self._evidence.log_by_direction[0] - np.log([1, 1, MORE_THAN_SHIFTED])
            self._state.direction = DIRECTIONS[int(by_direction.argmax())]
        rows = self._rows()
        places = change_interval(rows, list(self._by_class.values()))
        self._state.since = ChangePoint(*rows["number"][list(places)].tolist())
        moved = moved_component(rows["z_scores"], places[0])
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

    def _best_examples(self) -> list[ExampleImage]:
        direction, since = self._state.direction, self._state.since
        images = self._state.examples["latest" if direction == "alike" else direction or "higher"]
        if since is not None:
            images = [each for each in images if since.earliest <= each.image] or images
        if direction == "alike":
            return list(images)
        return sorted(images, key=lambda each: each.score, reverse=direction != "lower")

    def _status(self) -> MonitorStatus:
        log_evidence = float(self._evidence.log_evidence[0])
        return MonitorStatus(
            **{name: getattr(self._state, name) for name in Findings.__struct_fields__},
            evidence=exp(min(log_evidence, LARGEST_LOG)),
            log10_evidence=log_evidence / log(10),
            threshold=1 / self.false_alarm_rate,
            alarm=self._state.alarm_at is not None,
            few_count=self._state.uncounted >= self._longest_run,
            examples=self._best_examples(),
        )

    def save(self, path: Path | str) -> None:
        """Writes the state, atomically."""
        content = self.to_bytes()
        write_atomically(Path(path), lambda partial: partial.write_bytes(content))

    @classmethod
    def load(cls, path: Path | str, detector: FittedDetector, false_alarm_rate: float | None = None) -> Self:
        """The monitor of a file, as `from_bytes`."""
        return cls.from_bytes(Path(path).read_bytes(), detector, false_alarm_rate, str(path))

    def to_bytes(self) -> bytes:
        """The state without the detector, as JSON: tens of thousands of bytes, for streams of any length."""
        arrays = {name: values.astype("<f8").tobytes() for name, values in self._arrays().items()}
        self._state.arrays = {**arrays, "recent": bytes(self._recent)}
        return msgspec.json.encode(self._state)

    @classmethod
    def from_bytes(
        cls, content: bytes, detector: FittedDetector, false_alarm_rate: float | None = None, where: str = "the state"
    ) -> Self:
        """The monitor of `to_bytes`; WeightsError if the bytes are damaged, another detector's, or of another rate."""
        try:
            state = msgspec.json.decode(content, type=MonitorState)
            monitor = cls(detector, state.false_alarm_rate)
            if monitor._state.detector != state.detector:
                raise WeightsError(f"{where} belongs to another detector, or it was fitted again: {NEW_STREAM}")
            if false_alarm_rate not in (None, state.false_alarm_rate):
                raise WeightsError(f"{where} has a stream with a rate of {state.false_alarm_rate:g}: {NEW_STREAM}")
            for name, values in monitor._arrays().items():
                values[:] = np.frombuffer(state.arrays[name], "<f8").reshape(values.shape)
            monitor._recent = bytearray(state.arrays["recent"])
            if len(monitor._rows()) != min(state.counted, KEPT):
                raise ValueError("images are missing")
        except (ValueError, KeyError) as error:  # of msgspec, and of arrays with another size
            raise WeightsError(f"{where} is no state of a monitor ({error}): {NEW_STREAM}") from error
        monitor._state, monitor._evidence.images = state, state.counted
        rows = monitor._rows()
        for own, evidence in zip(rows_of_classes(rows), monitor._by_class.values(), strict=False):
            evidence.last = rows["band"][own][-1:].astype(np.int64) if own.any() else None
        monitor.status = monitor._status()
        return monitor

    def _rows(self) -> NDArray[np.void]:
        return np.frombuffer(bytes(self._recent), self._row_type)

    def _arrays(self) -> dict[str, Any]:
        found = {"log_sums": self._evidence.log_sums}
        for number, (name, ranking) in enumerate(self._rankings.items()):
            of = f" {number}" * (number > 0)
            found |= {f"urn{of}": self._by_class[name].urn}
            found |= {f"highest{of}": ranking.highest, f"ties{of}": ranking.highest_ties}
        return found
