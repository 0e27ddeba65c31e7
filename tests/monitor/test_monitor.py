"""What a monitor says about a stream: whether, since when, in which direction, by which images; and its state."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from discopatch import Detector, Monitor, Prediction, StateError
from discopatch.errors import NotFittedError, ParameterError
from discopatch.monitor.change import KEPT
from tests.monitor.samples import (
    REFUSED,
    made_detector,
    normal_scores,
    predictions_of,
    spread_of,
    watch,
    with_components,
)


@pytest.fixture(scope="module")
def detector() -> Detector:
    return made_detector()


def changing(detector: Detector, normal: int, changed: int, by: float) -> list[Prediction]:
    scores = normal_scores(detector, normal + changed)
    scores[normal:] += by * spread_of(detector)
    return predictions_of(scores, detector)


def test_a_normal_stream_raises_no_alarm(detector: Detector) -> None:
    status = watch(Monitor(detector), changing(detector, 1000, 0, 0))
    assert (status.images, status.counted, status.refused) == (1000, 1000, 0)
    assert not status.alarm
    assert [status.alarm_at, status.since, status.direction, status.component] == [None] * 4
    assert status.threshold == pytest.approx(100)
    assert 0 < status.evidence < 100
    assert status.log10_evidence == pytest.approx(np.log10(status.evidence))
    assert status.text.startswith("no change: 1,000 images")


@pytest.mark.parametrize(
    ("by", "direction", "within"), [(2.0, "higher", 30), (1.0, "higher", 120), (-1.0, "lower", 120)]
)
@pytest.mark.parametrize("normal", [0, 400])
def test_a_change_is_found_with_its_direction_and_its_beginning(
    detector: Detector, by: float, direction: str, within: int, normal: int
) -> None:
    status = watch(Monitor(detector), changing(detector, normal, 200, by))
    assert status.alarm
    assert status.alarm_at is not None
    assert status.since is not None
    assert normal < status.alarm_at <= normal + within
    assert status.direction == direction
    assert status.since.earliest <= status.since.image <= status.since.latest <= status.alarm_at + 200
    assert abs(status.since.image - (normal + 1)) <= 30
    assert all(each.image >= status.since.earliest for each in status.telling)
    assert f"alarm at image {status.alarm_at:,}" in status.text


@pytest.mark.parametrize("noise", [0.0, 0.01])
def test_a_frozen_camera_is_found_within_a_few_images(detector: Detector, noise: float) -> None:
    """The same normal score again and again, exactly or nearly."""
    scores = normal_scores(detector, 300)
    scores[250:] = scores[250] + noise * spread_of(detector) * np.random.default_rng(0).normal(size=50)
    status = watch(Monitor(detector), predictions_of(scores, detector))
    assert status.alarm_at is not None
    assert 250 < status.alarm_at <= 262
    assert status.direction == "alike"
    assert status.telling[-1].name == "299.png"


def test_a_frozen_camera_with_the_score_of_a_calibration_image_is_found_too(detector: Detector) -> None:
    """Equal scores are ordered at random, so that they fall on both sides of it."""
    status = watch(Monitor(detector), predictions_of([detector.calibration_scores_[50]] * 30, detector))
    assert status.alarm
    assert status.direction == "alike"


def test_a_few_images_far_off_are_found_after_a_long_normal_stream(detector: Detector) -> None:
    scores = normal_scores(detector, 2400)
    scores[2000::20] += 100 * spread_of(detector)
    status = watch(Monitor(detector), predictions_of(scores, detector))
    assert status.alarm
    assert status.direction == "higher"
    far = {f"{place}.png" for place in range(2000, 2400, 20)}
    assert {each.name for each in status.telling} <= far


def test_an_alarm_stays_when_the_stream_is_normal_again(detector: Detector) -> None:
    monitor = Monitor(detector)
    first = watch(monitor, changing(detector, 0, 60, 2.0))
    later = watch(monitor, changing(detector, 3000, 0, 0))
    assert later.alarm
    assert later.alarm_at == first.alarm_at
    assert later.direction == "higher"
    assert later.evidence < first.evidence


def test_a_restart_begins_with_nothing_but_the_calibration_images(detector: Detector) -> None:
    monitor, new = Monitor(detector), Monitor(detector)
    watch(monitor, changing(detector, 0, 60, 2.0))
    monitor.restart()
    assert monitor.status == new.status
    scores = changing(detector, 100, 50, 1.0)
    assert watch(monitor, scores) == watch(new, scores)


def test_refused_images_are_counted_and_move_nothing(detector: Detector) -> None:
    scores = changing(detector, 50, 30, 1.0)
    plain, monitor = watch(Monitor(detector), scores), Monitor(detector)
    for each in scores:
        monitor.update(REFUSED)
        monitor.update(each)
    found = monitor.status
    assert (found.images, found.refused, found.evidence) == (80, 80, plain.evidence)
    assert found.alarm_at == (None if plain.alarm_at is None else 2 * plain.alarm_at)
    assert "80 refused" in found.text


def test_a_stream_of_refused_images_alone_says_nothing(detector: Detector) -> None:
    status = watch(Monitor(detector), [REFUSED] * 5)
    assert (status.images, status.refused, status.evidence, status.telling) == (0, 5, 1.0, ())


def test_of_a_run_of_images_of_one_group_the_first_counts(detector: Detector) -> None:
    names = [f"scene-{scene}_{frame}.png" for scene in "abcabc" for frame in range(10)]
    scores = np.repeat(normal_scores(detector, 6), 10)
    given_names = predictions_of(scores, detector, names)
    assert watch(Monitor(detector), given_names).alarm, "frames of one scene are more alike than normal images"
    status = watch(Monitor(detector, groups="name"), given_names)
    assert (status.alarm, status.images, status.counted) == (False, 60, 6)
    assert watch(Monitor(detector, groups="folder"), given_names).counted == 1


def test_groups_are_those_of_the_fit_where_names_tell_them(detector: Detector, monkeypatch: pytest.MonkeyPatch) -> None:
    given_names = predictions_of(normal_scores(detector, 9), detector, [f"a-{place}.png" for place in range(9)])
    for fitted, counted in (("name", 1), ("folder", 1), ("auto", 9), (None, 9)):
        changed = {**detector.settings(), "groups": fitted}
        monkeypatch.setattr(Detector, "settings", lambda self, changed=changed: changed)
        assert watch(Monitor(detector), given_names).counted == counted


def test_the_component_that_moved_is_named(detector: Detector, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("acquisition", "content", "place")
    monkeypatch.setattr(Detector, "component_names", property(lambda self: names))
    rng, monitor = np.random.default_rng(2), Monitor(detector)
    for place, each in enumerate(changing(detector, 300, 100, 1.5)):
        z = rng.normal(size=3)
        z[1] += 2 * (place >= 300)
        monitor.update(with_components(each, **dict(zip(names, z.tolist(), strict=True))))
    assert monitor.status.component == "content"
    assert "what is in it" in monitor.status.text


def test_a_status_is_plain_values(detector: Detector) -> None:
    status = watch(Monitor(detector), changing(detector, 0, 60, 2.0))
    plain = json.loads(json.dumps(status.as_dict(), allow_nan=False))
    assert plain["text"] == status.text
    assert set(plain["since"]) == {"image", "earliest", "latest"}
    assert plain["telling"][0].keys() == {"name", "image", "score", "p_value"}
    assert plain["alarm"] is True


@given(st.integers(0, 150), st.integers(0, 2**40))
@settings(max_examples=15, deadline=None)
def test_a_resumed_monitor_goes_on_to_the_bit(stop: int, seed: int) -> None:
    detector = made_detector()
    given_scores = changing(detector, 100, 50, 1.0)
    given_scores[20] = given_scores[70] = REFUSED
    through, stopped = Monitor(detector, seed=seed), Monitor(detector, seed=seed)
    for place, each in enumerate(given_scores):
        if place == stop:
            stopped = Monitor.from_bytes(stopped.to_bytes(), detector)
        assert stopped.update(each) == through.update(each)
    assert stopped.to_bytes() == through.to_bytes()


def test_a_restarted_monitor_is_resumed_too(detector: Detector) -> None:
    monitor = Monitor(detector, 0.05, seed=3)
    watch(monitor, changing(detector, 20, 0, 0))
    monitor.restart()
    loaded = Monitor.from_bytes(monitor.to_bytes(), detector)
    assert (loaded.false_alarm_rate, loaded.seed) == (0.05, 3)
    tied = predictions_of([detector.calibration_scores_[10]] * 8, detector)
    assert watch(loaded, tied) == watch(monitor, tied)


def test_the_file_is_the_state(detector: Detector, tmp_path: Path) -> None:
    monitor = Monitor(detector)
    watch(monitor, changing(detector, 30, 30, 2.0))
    monitor.save(tmp_path / "state")
    assert (tmp_path / "state").read_bytes() == monitor.to_bytes()
    assert Monitor.load(tmp_path / "state", detector).status == monitor.status
    assert list(tmp_path.iterdir()) == [tmp_path / "state"]


def test_the_state_stays_small(detector: Detector, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Detector, "component_names", ("acquisition", "content", "place"))
    monitor = Monitor(detector)
    scores = predictions_of(
        np.resize(normal_scores(detector, 500), 2 * KEPT + 5), detector, ["x" * 4000] * (2 * KEPT + 5)
    )
    watch(monitor, (with_components(each, acquisition=1.0, content=2.0, place=3.0) for each in scores))
    assert len(monitor.to_bytes()) < 100_000


@pytest.mark.parametrize("keep", [0, 10, 100, -1])
def test_a_file_that_is_cut_short_is_refused(detector: Detector, tmp_path: Path, keep: int) -> None:
    monitor = Monitor(detector)
    watch(monitor, changing(detector, 30, 0, 0))
    (tmp_path / "state").write_bytes(monitor.to_bytes()[:keep])
    with pytest.raises(StateError, match="state"):
        Monitor.load(tmp_path / "state", detector)


def test_any_changed_byte_is_noticed(detector: Detector) -> None:
    monitor = Monitor(detector)
    watch(monitor, changing(detector, 30, 0, 0))
    whole = monitor.to_bytes()
    for place in range(0, len(whole), 97):
        changed = bytearray(whole)
        changed[place] ^= 1
        with pytest.raises(StateError):
            Monitor.from_bytes(bytes(changed), detector)


@pytest.mark.parametrize(
    "change",
    [
        {"urn": ""},
        {"urn": "AAAA"},
        {"counted": 29},
        {"images": 31},
        {"bands": "!"},
        {"last_band": 200},
        {"last_band": None},
        {"false_alarm_rate": 0.0},
        {"seed": "x"},
        {"direction": "sideways"},
        {"surprise": 1},
    ],
)
def test_a_state_that_no_stream_leads_to_is_refused(detector: Detector, change: dict[str, object]) -> None:
    import hashlib

    from discopatch.errors import DiscopatchError
    from discopatch.monitor.state import FORMAT

    monitor = Monitor(detector)
    watch(monitor, changing(detector, 30, 0, 0))
    _, _, content = monitor.to_bytes().partition(b"\n")
    forged = json.dumps({**json.loads(content), **change}).encode()
    sealed = FORMAT + hashlib.sha256(forged).hexdigest().encode() + b"\n" + forged
    with pytest.raises(DiscopatchError):
        Monitor.from_bytes(sealed, detector)


def test_the_state_of_another_detector_is_refused(detector: Detector, tmp_path: Path) -> None:
    Monitor(detector).save(tmp_path / "state")
    with pytest.raises(StateError, match="another detector"):
        Monitor.load(tmp_path / "state", made_detector(seed=2))


def test_names_of_any_bytes_can_be_stored(detector: Detector) -> None:
    monitor = Monitor(detector)
    watch(monitor, predictions_of([5.0, 6.0], detector, ["caf\udce9.png", "a\nb\x00.png"]))
    assert Monitor.from_bytes(monitor.to_bytes(), detector).status == monitor.status


@pytest.mark.parametrize("rate", [0, 1, -0.1, float("nan"), "auto"])
def test_a_rate_is_a_share(detector: Detector, rate: float) -> None:
    with pytest.raises(ParameterError, match="false_alarm_rate"):
        Monitor(detector, rate)


def test_what_is_no_prediction_of_a_fitted_detector_is_refused(detector: Detector) -> None:
    monitor = Monitor(detector)
    for score, p_value in ((1.0, None), (float("nan"), 0.5), (float("inf"), 0.5), (1.0, 0.0), (1.0, 1.5)):
        with pytest.raises(ParameterError, match="fitted detector"):
            monitor.update(Prediction("a.png", score, p_value, False))
    assert monitor.status.images == 0
    with pytest.raises(ParameterError, match="groups"):
        Monitor(detector, groups="colour")  # type: ignore[arg-type]
    with pytest.raises(ParameterError, match="seed"):
        Monitor(detector, seed=2**70)
    with pytest.raises(NotFittedError):
        Monitor(Detector())


def test_evidence_beyond_all_numbers_is_told_by_its_logarithm() -> None:
    detector = made_detector(999)
    monitor = Monitor(detector)
    watch(monitor, changing(detector, 0, 4000, 6.0))
    status = monitor.status
    assert np.isfinite(status.evidence)
    assert status.log10_evidence > 300
    json.dumps(status.as_dict(), allow_nan=False)
