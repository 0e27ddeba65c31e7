"""Detects a change of a stream of images as a whole, from its predictions, one by one."""

import hashlib
import json
from math import exp, isfinite, log
from pathlib import Path
from typing import Any, Literal, Self

import msgspec
import numpy as np
from numpy.typing import DTypeLike, NDArray

from discopatch.errors import ParameterError, WeightsError
from discopatch.gate import NAMED_GROUPS
from discopatch.groups import group_names
from discopatch.monitor.change import KEPT, ChangePoint, Recent, change_interval, moved_component
from discopatch.monitor.evidence import (
    CALIBRATION,
    DIRECTIONS,
    STREAM,
    Direction,
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
NEW_STREAM = "begin a new stream with Monitor(detector)"


class Monitor:
    """Raises an alarm when a stream of images is no longer like the calibration images, even if no image is flagged.

    While images and calibration images are exchangeable, the chance of an alarm, ever, is at most `false_alarm_rate`:
    `evidence.py` has the proof, docs/serving.md the measurements.

    The first of consecutive images of one group counts: images of one folder, or images whose names differ in their
    trailing number, by `groups` or as the detector was fitted. `seed` is that of the random numbers that order equal
    scores.

    Examples
    --------
    >>> monitor = Monitor(detector)  # doctest: +SKIP
    >>> for prediction in detector.predict_iter("stream"):  # doctest: +SKIP
    ...     if monitor.update(prediction).alarm:
    ...         print(monitor.status.text)
    """

    def __init__(
        self,
        detector: FittedDetector,
        false_alarm_rate: float = FALSE_ALARM_RATE,
        *,
        seed: int = 0,
        groups: Literal["fitted", "folder", "name", "none"] = "fitted",
    ) -> None:
        if not (isinstance(false_alarm_rate, int | float) and 0 < false_alarm_rate < 1):
            raise ParameterError(f"false_alarm_rate is {false_alarm_rate!r}: give a number between 0 and 1, as 0.01")
        if not (isinstance(seed, int) and abs(seed) < 2**63):
            raise ParameterError(f"seed is {seed!r}: give a whole number of at most 63 bits")
        if groups not in ("fitted", "none", *NAMED_GROUPS):
            raise ParameterError(f"groups is {groups!r}: give fitted, none, {' or '.join(NAMED_GROUPS)}")
        rule = detector.settings()["groups"] if groups == "fitted" else groups
        self._rule: Literal["folder", "name"] | None = rule if rule in ("folder", "name") else None
        self._calibration = np.asarray(detector.calibration_scores_, np.float64)
        if not len(self._calibration):
            raise ParameterError("the detector has no calibration images: fit it again")
        self._names = detector.component_names
        self._detector = calibration_digest(self._calibration, self._names)
        self.false_alarm_rate, self.seed = float(false_alarm_rate), seed
        self._log_threshold = -log(self.false_alarm_rate)
        self._ties = np.array([[tie_breaker(seed, CALIBRATION, each) for each in range(len(self._calibration))]])
        self._ranked = 0
        self.restart()

    def restart(self) -> None:
        """Begins a new stream: the evidence is 1 again, and only the calibration images are known.

        The rate holds for each stream by itself; the chance of a false alarm in any of k streams is at most k times it.
        """
        n = len(self._calibration)
        self._evidence = Evidence(n)
        self._ranking = Ranking(self._calibration[None], self._ties, self._evidence.alternatives.highest)
        self._recent = Recent(len(self._names))
        self._number = self._images = self._counted = self._refused = 0
        self._last_group: str | None = None
        self._alarm_at: int | None = None
        self._since: ChangePoint | None = None
        self._direction: Direction | None = None
        self._component: str | None = None
        self._examples: dict[str, list[ExampleImage]] = {"higher": [], "lower": [], "latest": []}
        self.status = self._status()

    def update(self, prediction: Prediction) -> MonitorStatus:
        """Adds the next prediction of the stream; one without a score is counted, and is no evidence."""
        score, p_value = prediction.score, prediction.p_value
        if score is not None and not (isfinite(score) and p_value is not None and 0 < p_value <= 1):
            raise ParameterError(
                f"{prediction.name}: score {score}, p-value {p_value}: give predictions of a fitted detector"
            )
        self._number += 1
        if score is None or p_value is None:
            self._refused += 1
        else:
            self._images += 1
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
        begins, self._last_group = digest != self._last_group, digest
        return begins

    def _count(self, prediction: Prediction, score: float, p_value: float) -> None:
        tie = tie_breaker(self.seed, STREAM, self._ranked)
        place = self._ranking.add(np.array([score]), np.array([tie]))
        band = self._evidence.alternatives.band_of_gap[place.below]
        self._evidence.update(band, place.record)
        self._ranked += 1
        self._counted += 1
        z = {each.name: each.z for each in prediction.components}
        z_scores = tuple(z.get(name, np.nan) for name in self._names)
        self._recent.add(self._number, int(band[0]), bool(place.record[0]), z_scores)
        self._keep_example(ExampleImage(short_name(prediction.name), self._number, float(score), float(p_value)))
        if self._alarm_at is None and self._evidence.log_evidence[0] >= self._log_threshold:
            self._alarm_at = self._number
        if self._alarm_at is not None:
            later = self._number - self._alarm_at
            if later & (later - 1) == 0 and later <= DESCRIBED:  # more is known with twice as many images
                self._describe_change()

    def _describe_change(self) -> None:
        if self._direction is None:
            by_direction = self._evidence.log_by_direction[0] - np.log([1, 1, MORE_THAN_SHIFTED])
            self._direction = DIRECTIONS[int(by_direction.argmax())]
        if (found := change_interval(self._recent, self._evidence)) is not None:
            self._since = ChangePoint(*(int(self._recent.numbers[place]) for place in found))
            moved = moved_component(self._recent, found[0])
            self._component = None if moved is None else self._names[moved]

    def _keep_example(self, image: ExampleImage) -> None:
        """Keeps the image among the highest, the lowest and the latest, each with few others."""
        n = len(self._calibration)
        now = image.image if self._alarm_at is None else self._alarm_at

        def age(each: ExampleImage) -> float:
            return max(0, now - each.image) / FORGETTING

        keys = {
            "higher": lambda each: (-log(each.p_value) - age(each), each.score),
            "lower": lambda each: (-log(1 - each.p_value + 1 / (n + 1)) - age(each), -each.score),
            "latest": lambda each: each.image,
        }
        for name, kept in self._examples.items():
            kept.append(image)
            if len(kept) > N_EXAMPLES:
                kept.remove(min(kept, key=keys[name]))

    def _best_examples(self) -> tuple[ExampleImage, ...]:
        names = {"alike": "latest", "lower": "lower"}
        images = self._examples[names.get(self._direction or "", "higher")]
        if self._since is not None:
            images = [each for each in images if self._since.earliest <= each.image] or images
        if self._direction == "alike":
            return tuple(images)
        return tuple(sorted(images, key=lambda each: each.score, reverse=self._direction != "lower"))

    def _status(self) -> MonitorStatus:
        log_evidence = float(self._evidence.log_evidence[0])
        return MonitorStatus(
            images=self._images,
            counted=self._counted,
            refused=self._refused,
            evidence=exp(min(log_evidence, LARGEST_LOG)),
            log10_evidence=log_evidence / log(10),
            threshold=1 / self.false_alarm_rate,
            alarm=self._alarm_at is not None,
            alarm_at=self._alarm_at,
            since=self._since,
            direction=self._direction,
            component=self._component,
            examples=self._best_examples(),
        )

    def save(self, path: Path | str) -> None:
        """Writes the state, atomically."""
        content = self.to_bytes()
        write_atomically(Path(path), lambda partial: partial.write_bytes(content))

    @classmethod
    def load(cls, path: Path | str, detector: FittedDetector) -> Self:
        """The monitor of a file; WeightsError if the file is damaged, or another detector's."""
        return cls.from_bytes(Path(path).read_bytes(), detector, where=str(path))

    def to_bytes(self) -> bytes:
        """The state without the detector, as JSON: tens of thousands of bytes, for streams of any length."""
        evidence, recent = self._evidence, self._recent
        recent.settle()
        state = MonitorState(
            detector=self._detector,
            false_alarm_rate=self.false_alarm_rate,
            seed=self.seed,
            groups=self._rule,
            number=self._number,
            images=self._images,
            counted=self._counted,
            refused=self._refused,
            ranked=self._ranked,
            last_group=self._last_group,
            alarm_at=self._alarm_at,
            since=self._since,
            direction=self._direction,
            component=self._component,
            last_band=None if evidence.last is None else int(evidence.last[0]),
            urn=pack(evidence.urn),
            log_sums=pack(evidence.log_sums),
            highest=pack(self._ranking.highest),
            highest_ties=pack(self._ranking.highest_ties),
            numbers=pack(np.diff(recent.numbers, prepend=0).astype(np.uint32)),
            bands=pack(recent.bands),
            records=pack(recent.records),
            z_scores=pack(recent.z_scores),
            examples=self._examples,
        )
        return msgspec.json.encode(state)

    @classmethod
    def from_bytes(cls, content: bytes, detector: FittedDetector, *, where: str = "the state") -> Self:
        """The monitor of `to_bytes`; WeightsError if the bytes are damaged, or another detector's."""
        try:
            state = msgspec.json.decode(content, type=MonitorState)
            monitor = cls(detector, state.false_alarm_rate, seed=state.seed, groups=state.groups or "none")
            if monitor._detector == state.detector:
                monitor._restore(state)
                return monitor
        except (ValueError, TypeError) as error:  # of msgspec, and of arrays with another size
            raise WeightsError(f"{where} is no state of a monitor ({error}): {NEW_STREAM}") from error
        raise WeightsError(f"{where} belongs to another detector, or was fitted again: give that one, or {NEW_STREAM}")

    def _restore(self, state: MonitorState) -> None:
        evidence, recent, ranking = self._evidence, self._recent, self._ranking
        evidence.images = state.counted
        evidence.urn = unpack(state.urn, np.float64, evidence.urn.shape)
        evidence.log_sums = unpack(state.log_sums, np.float64, evidence.log_sums.shape)
        evidence.last = None if state.last_band is None else np.array([state.last_band])
        ranking.highest = unpack(state.highest, np.float64, ranking.highest.shape)
        ranking.highest_ties = unpack(state.highest_ties, np.float64, ranking.highest.shape)
        steps = unpack(state.numbers, np.uint32, (-1,))
        recent.numbers = np.cumsum(steps, dtype=np.int64)
        recent.bands = unpack(state.bands, np.uint8, steps.shape)
        recent.records = unpack(state.records, np.bool_, steps.shape)
        recent.z_scores = unpack(state.z_scores, np.float32, (len(steps), len(self._names)))
        self._number, self._images, self._counted = state.number, state.images, state.counted
        self._refused, self._ranked, self._last_group = state.refused, state.ranked, state.last_group
        self._alarm_at, self._direction, self._component = state.alarm_at, state.direction, state.component
        self._since, self._examples = state.since, state.examples
        self._check()
        self.status = self._status()

    def _check(self) -> None:
        """Raises ValueError for a state that no stream leads to."""
        evidence, recent, sizes = self._evidence, self._recent, self._evidence.alternatives.sizes
        bands = [*recent.bands.tolist(), *(() if evidence.last is None else evidence.last.tolist())]
        if not (
            (evidence.urn >= sizes).all()
            and evidence.urn.sum() == sizes.sum() + self._counted
            and not np.isnan(evidence.log_sums).any()
            and (evidence.log_sums < np.inf).all()
            and (evidence.last is None) == (self._counted == 0)
            and all(band < len(sizes) for band in bands)
            and len(recent.bands) == min(self._counted, KEPT)
            and self._counted <= self._images <= self._number == self._images + self._refused
            and not np.isnan(self._ranking.highest).any()
            and self._examples.keys() == {"higher", "lower", "latest"}
        ):
            raise ValueError("its numbers contradict each other")


def pack(values: NDArray[Any]) -> bytes:
    """The little-endian bytes of an array."""
    return values.astype(values.dtype.newbyteorder("<")).tobytes()


def unpack(content: bytes, kind: DTypeLike, shape: tuple[int, ...]) -> NDArray[Any]:
    return np.frombuffer(content, np.dtype(kind).newbyteorder("<")).astype(kind).reshape(shape)


def calibration_digest(calibration: NDArray[np.float64], names: tuple[str, ...]) -> str:
    """A digest of the calibration scores and the components, on which the evidence depends."""
    content = json.dumps([*names]).encode() + b"\0" + np.ascontiguousarray(calibration, "<f8").tobytes()
    return hashlib.sha256(content).hexdigest()


def short_name(name: str) -> str:
    """The name, or the end of a long one; bytes that are not Unicode are escaped."""
    text = name.encode(errors="backslashreplace").decode()
    return text if len(text) <= LONGEST_NAME else f"...{text[-LONGEST_NAME:]}"
