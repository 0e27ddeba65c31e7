"""The result of a monitor: alarm, beginning, direction and examples of a change; and its stored state."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from discopatch import Detector, Monitor, Prediction
from discopatch.errors import NotFittedError, ParameterError, WeightsError
from discopatch.monitor.change import KEPT

from .samples import REFUSED, MadeDetector, changing, monitor_of, predictions_of, watch, with_components

DETECTOR = MadeDetector()
NAMES = ("acquisition", "content", "place")


def loaded(content: bytes, detector: MadeDetector = DETECTOR) -> Monitor:
    return Monitor.from_bytes(content, detector)  # type: ignore[arg-type]


def test_a_normal_stream_raises_no_alarm() -> None:
    status = watch(monitor_of(DETECTOR), [*changing(DETECTOR, 1000, 0, 0), REFUSED])
    assert (status.images, status.counted, status.refused) == (1000, 1000, 1)
    assert [status.alarm, status.alarm_at, status.since, status.direction, status.component] == [False, *[None] * 4]
    assert status.threshold == pytest.approx(100)
    assert 0 < status.evidence < 100
    assert status.log10_evidence == pytest.approx(np.log10(status.evidence))


@pytest.mark.parametrize(
    ("by", "direction", "within", "normal"),
    [(2.0, "higher", 30, 0), (1.0, "higher", 120, 400), (-1.0, "lower", 120, 400)],
)
def test_a_change_is_found_with_its_direction_and_its_beginning(
    by: float, direction: str, within: int, normal: int
) -> None:
    status = watch(monitor_of(DETECTOR), changing(DETECTOR, normal, 200, by))
    assert status.alarm_at is not None
    assert status.since is not None
    assert normal < status.alarm_at <= normal + within
    assert status.direction == direction
    assert status.since.earliest <= status.since.image <= status.since.latest <= status.alarm_at + 200
    assert abs(status.since.image - (normal + 1)) <= 30
    assert all(each.image >= status.since.earliest for each in status.examples)
    plain = json.loads(json.dumps(status.as_dict(), allow_nan=False))
    assert plain["examples"][0].keys() == {"name", "image", "score", "p_value"}
    assert set(plain["since"]) == {"image", "earliest", "latest"}


@pytest.mark.parametrize("noise", [0.0, 0.01])
def test_a_frozen_camera_is_found_within_a_few_images(noise: float) -> None:
    """The same normal score again and again, exactly or nearly."""
    scores = np.random.default_rng(5).normal(size=300)
    scores[250:] = scores[250] + noise * np.random.default_rng(0).normal(size=50)
    status = watch(monitor_of(DETECTOR), predictions_of(scores, DETECTOR))
    assert status.alarm_at is not None
    assert 250 < status.alarm_at <= 262
    assert (status.direction, status.examples[-1].name) == ("alike", "299.png")
    tied = watch(monitor_of(DETECTOR), predictions_of([DETECTOR.calibration_scores_[50]] * 30, DETECTOR))
    assert (tied.alarm, tied.direction) == (True, "alike")


def test_a_few_images_far_off_are_found_after_a_long_normal_stream() -> None:
    scores = np.random.default_rng(5).normal(size=2400)
    scores[2000::20] += 100
    status = watch(monitor_of(DETECTOR), predictions_of(scores, DETECTOR))
    assert status.direction == "higher"
    assert {each.name for each in status.examples} <= {f"{place}.png" for place in range(2000, 2400, 20)}


def test_an_alarm_stays_until_a_restart() -> None:
    monitor, new = monitor_of(DETECTOR), monitor_of(DETECTOR)
    first = watch(monitor, changing(DETECTOR, 0, 60, 2.0))
    later = watch(monitor, changing(DETECTOR, 3000, 0, 0))
    assert (later.alarm, later.alarm_at, later.direction) == (True, first.alarm_at, "higher")
    assert later.evidence < first.evidence
    monitor.restart()
    assert monitor.status == new.status
    scores = changing(DETECTOR, 100, 50, 1.0)
    assert watch(monitor, scores) == watch(new, scores)


def test_refused_images_are_counted_and_are_no_evidence() -> None:
    scores = changing(DETECTOR, 50, 30, 1.0)
    plain, monitor = watch(monitor_of(DETECTOR), scores), monitor_of(DETECTOR)
    found = watch(monitor, [one for each in scores for one in (REFUSED, each)])
    assert (found.images, found.refused, found.evidence) == (80, 80, plain.evidence)
    assert found.alarm_at == (None if plain.alarm_at is None else 2 * plain.alarm_at)
    status = watch(monitor_of(DETECTOR), [REFUSED] * 5)
    assert (status.images, status.refused, status.evidence, status.examples) == (0, 5, 1.0, [])


def test_the_first_image_of_each_group_counts() -> None:
    names = [f"scene-{scene}_{frame}.png" for scene in "abcabc" for frame in range(10)]
    scores = predictions_of(np.repeat(np.random.default_rng(5).normal(size=6), 10), DETECTOR, names)
    assert watch(monitor_of(DETECTOR), scores).alarm, "frames of one scene are more alike than normal images"
    status = watch(monitor_of(MadeDetector(groups="name")), scores)
    assert (status.alarm, status.images, status.counted) == (False, 60, 6)
    for fitted, counted in (("folder", 1), ("auto", 60)):
        assert watch(monitor_of(MadeDetector(groups=fitted)), scores).counted == counted


@pytest.mark.parametrize(("rule", "one_group"), [("name", "image.png"), ("name", "x_{}.png"), ("folder", "{}.png")])
def test_many_images_of_one_group_in_a_row_are_a_caution(rule: str, one_group: str) -> None:
    """The samples have three images a normal group."""
    monitor = monitor_of(MadeDetector(groups=rule))
    scores = predictions_of(np.full(31, 9.0), DETECTOR, [one_group.format(number) for number in range(31)])
    before = watch(monitor, [*scores[:30], REFUSED])
    assert (before.counted, before.uncounted, before.few_count, before.caution) == (1, 29, False, None)
    found = loaded(monitor.to_bytes(), MadeDetector(groups=rule)).update(scores[30])
    assert (found.counted, found.uncounted, found.few_count) == (1, 30, True)
    assert "the last 30 images did not count" in found.text
    assert json.loads(json.dumps(found.as_dict()))["few_count"] is True
    (other,) = predictions_of([9.0], DETECTOR, ["another/part_1.png"])
    assert watch(monitor, [scores[30], other]).caution is None
    assert not watch(monitor_of(DETECTOR), scores).few_count, "without groups every image counts"


def test_the_component_that_moved_is_named() -> None:
    detector, rng = MadeDetector(names=NAMES), np.random.default_rng(2)
    monitor = monitor_of(detector)
    for place, each in enumerate(changing(detector, 300, 100, 1.5)):
        z = rng.normal(size=3)
        z[1] += 2 * (place >= 300)
        monitor.update(with_components(each, **dict(zip(NAMES, z.tolist(), strict=True))))
    assert monitor.status.component == "content"


@pytest.mark.parametrize("names", [(), NAMES])
@pytest.mark.parametrize("stop", [0, 1, 31, 130])
def test_a_resumed_monitor_continues_to_the_bit(stop: int, names: tuple[str, ...]) -> None:
    detector = MadeDetector(names=names)
    scores = [with_components(each, **dict.fromkeys(names, 0.5)) for each in changing(detector, 100, 50, 1.0)]
    scores[20] = scores[70] = REFUSED
    scores[30] = predictions_of([0.5], detector, ["caf\udce9 a\nb\x00.png"])[0]
    through, stopped = monitor_of(detector), monitor_of(detector)
    for place, each in enumerate(scores):
        if place == stop:
            stopped = loaded(stopped.to_bytes(), detector)
        assert stopped.update(each) == through.update(each)
    assert stopped.to_bytes() == through.to_bytes()


def test_a_restarted_monitor_is_resumed_from_a_file(tmp_path: Path) -> None:
    monitor = monitor_of(DETECTOR, 0.05)
    watch(monitor, changing(DETECTOR, 20, 0, 0))
    monitor.restart()
    monitor.save(tmp_path / "state")
    again = Monitor.load(tmp_path / "state", DETECTOR)  # type: ignore[arg-type]
    tied = predictions_of([DETECTOR.calibration_scores_[10]] * 8, DETECTOR)
    assert (again.false_alarm_rate, watch(again, tied)) == (0.05, watch(monitor, tied))
    with pytest.raises(WeightsError, match="rate"):
        Monitor.load(tmp_path / "state", DETECTOR, 0.1)  # type: ignore[arg-type]


@pytest.mark.slow
def test_the_state_stays_small_and_evidence_beyond_floats_finite() -> None:
    detector = MadeDetector(999, names=NAMES)
    stream = predictions_of(np.full(2 * KEPT + 5, 9.0), detector, ["x" * 4000] * (2 * KEPT + 5))
    monitor = monitor_of(detector)
    status = watch(monitor, (with_components(each, acquisition=1.0, content=2.0, place=3.0) for each in stream))
    assert len(monitor.to_bytes()) < 100_000
    assert np.isfinite(status.evidence)
    assert status.log10_evidence > 300
    json.dumps(status.as_dict(), allow_nan=False)


@pytest.mark.parametrize(
    "change", [{"arrays": {}}, {"counted": 29}, {"false_alarm_rate": 0.0}, {"surprise": 1}, {"kind": "another"}]
)
def test_a_damaged_state_is_refused(change: dict[str, object]) -> None:
    monitor = monitor_of(DETECTOR)
    watch(monitor, changing(DETECTOR, 30, 0, 0))
    content = monitor.to_bytes()
    for damaged in (json.dumps({**json.loads(content), **change}).encode(), b"", content[:-1]):
        with pytest.raises(WeightsError):
            loaded(damaged)
    with pytest.raises(WeightsError, match="detector"):
        loaded(content, MadeDetector(seed=2))


def test_wrong_settings_and_predictions_are_refused() -> None:
    for rate in (0, 1, -0.1, float("nan"), "auto"):
        with pytest.raises(ParameterError, match="false_alarm_rate"):
            monitor_of(DETECTOR, rate)
    with pytest.raises(NotFittedError):
        Monitor(Detector())
    monitor = monitor_of(DETECTOR)
    values: list[tuple[Any, Any]] = [(1.0, None), (float("nan"), 0.5), (float("inf"), 0.5), (1.0, 0.0), (1.0, 1.5)]
    for score, p_value in [*values, ("1.0", 0.5), (1.0, "0.5"), ("high", None)]:
        with pytest.raises(ParameterError):
            monitor.update(Prediction("a.png", score, p_value, False))
    with pytest.raises(ParameterError, match="str is no Prediction"):
        monitor.update("a.png")  # type: ignore[arg-type]
    assert monitor.status.images == 0
