"""Detection rates: what is tried, their intervals, and where a detector has them."""

from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import binomtest

from discopatch import Detector, Runtime, detection
from discopatch.calibration import DetectionRate
from discopatch.detection import SIZES, STRENGTHS, measure_detection
from discopatch.errors import ParameterError, SchemaError, WeightsError
from discopatch.images import Pixels, Transform
from tests.images.samples import noise, photo
from tests.samples import new_detector, one_camera, with_header

IMAGES = [photo(300, 260), photo(256, 320), noise(280, 300)]
WHOLE = Transform.whole(1.0, 64)


def record(images: Sequence[Pixels], *, flag: bool = False, **options: Any) -> tuple[Any, list[list[Pixels]]]:
    """The rates, and the images with each change."""
    passed: list[list[Pixels]] = []

    def predict(changed: list[Pixels]) -> list[bool]:
        passed.append(changed)
        return [flag] * len(changed)

    return measure_detection(images, WHOLE, predict, **options), passed


@pytest.mark.parametrize(("found", "tried"), [(0, 12), (12, 12), (1, 1), (0, 1), (5, 12), (180, 300)])
def test_the_interval_is_that_of_clopper_and_pearson(found: int, tried: int) -> None:
    rate = DetectionRate("stain", "4 px", found, tried)
    expected = binomtest(found, tried).proportion_ci(0.95, method="exact")
    assert (rate.low, rate.high) == pytest.approx(expected, abs=1e-9)
    assert rate.rate == found / tried
    assert rate.text == f"{100 * found / tried:.0f} % ({100 * rate.low:.0f}-{100 * rate.high:.0f})"


def test_no_more_can_be_found_than_was_tried() -> None:
    with pytest.raises(SchemaError):
        DetectionRate("stain", "4 px", 13, 12)


def test_every_kind_is_tried_on_every_image_from_small_to_large_until_all_are_found() -> None:
    everything, nothing = (record(IMAGES, flag=flag)[0] for flag in (True, False))
    assert {(each.found, each.tried, each.rate, each.high) for each in everything} == {(3, 3, 1.0, 1.0)}
    assert {(each.found, each.tried, each.rate, each.low) for each in nothing} == {(0, 3, 0.0, 0.0)}
    sizes = {kind: [each.size for each in nothing if each.kind == kind] for kind in SIZES | STRENGTHS}
    assert sizes["scratch"] == ["2 px", "4 px", "8 px"]
    assert sizes["stain"] == ["4 px", "8 px", "16 px", "32 px"]
    assert sizes["blur"] == ["slight", "plain"]
    assert [(each.kind, each.size) for each in everything] == [(kind, each[0]) for kind, each in sizes.items()]
    assert record([])[0] == ()


def test_larger_changes_are_tried_where_smaller_ones_are_missed() -> None:
    passed: list[int] = []

    def predict(changed: list[Pixels]) -> list[bool]:
        passed.append(len(changed))
        return [number == 1 for number in range(len(changed))]  # the second of each call

    rates = measure_detection(IMAGES, WHOLE, predict)
    assert [each.found for each in rates if each.kind == "stain"] == [1, 2, 2, 2]
    assert passed[:3] == [3, 2, 1]  # scratches of 2, 4 and 8 px
    assert {each.tried for each in rates} == {3}


def test_of_large_images_fewer_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(detection, "MAX_BYTES", 2 * IMAGES[0].nbytes)
    assert {each.tried for each in record([IMAGES[0]] * 5)[0]} == {2}
    monkeypatch.setattr(detection, "MAX_BYTES", 1)
    assert {each.tried for each in record(IMAGES)[0]} == {1}


def test_places_are_changed_in_pixels_of_the_image_and_before_the_transform() -> None:
    rates, changed = record([np.full((512, 512, 3), 120, np.uint8)])
    moved = {each.kind + each.size: (image != 120).any(2).sum() for each, (image,) in zip(rates, changed, strict=True)}
    assert {image.shape for (image,) in changed} == {(64, 64, 3)}
    assert 1 <= moved["missing8 px"] <= 16  # one pixel after the transform, and the filter's reach
    assert 16 <= moved["missing32 px"] <= 60


def test_changes_are_the_same_for_a_seed_and_leave_the_images_as_they_were() -> None:
    before = [image.copy() for image in IMAGES]
    first, again, other = ([*chain(*record(IMAGES, seed=seed)[1])] for seed in (0, 0, 1))
    assert all(map(np.array_equal, first, again))
    assert not all(map(np.array_equal, first, other))
    assert all(map(np.array_equal, IMAGES, before))


def test_slight_changes_are_smaller_than_plain_ones() -> None:
    changed = record(IMAGES[:1])[1][-2 * len(STRENGTHS) :]
    moved = [abs(image.astype(float) - WHOLE(IMAGES[0])).mean() for (image,) in changed]
    slight, plain = np.reshape(moved, (-1, 2)).T
    assert (slight > 0.2).all()
    assert (plain > 1.3 * slight).all()


def test_a_detector_has_rates_of_images_that_it_was_not_fitted_on() -> None:
    new = new_detector(head="statistics", detection_images=20).fit(one_camera(30), workers=1)
    assert {each.kind for each in new.detection_rates_} == {*SIZES, *STRENGTHS}
    assert {each.tried for each in new.detection_rates_} == {len(new.calibration_scores_)} == {9}
    given = new_detector(head="statistics", detection_images=2)
    given.fit(one_camera(30), calibration=one_camera(9, seed=1), workers=1)
    assert {each.tried for each in given.detection_rates_} == {2}


def test_rates_are_stored_exported_and_left_out_at_another_rate(
    detector: Detector, detector_file: Path, runtime: Runtime, tmp_path: Path
) -> None:
    rates = detector.detection_rates_
    assert {each.tried for each in rates} == {2}
    assert any(each.kind == "noise" and each.rate == 1 for each in rates)
    detector.save(tmp_path / "again")
    assert Detector.load(tmp_path / "again").detection_rates_ == runtime.detection_rates_ == rates
    for fitted in (detector, runtime):
        assert fitted.with_rate(fitted.false_alarm_rate_).detection_rates_ == rates
        assert fitted.with_rate(0.2).detection_rates_ == ()
    with_header(tmp_path / "again", lambda header: header["detection_rates"][0].update(found=3))
    with pytest.raises(WeightsError, match="again"):
        Detector.load(tmp_path / "again")


def test_detection_images_are_checked() -> None:
    with pytest.raises(ParameterError, match="detection_images"):
        new_detector(detection_images=-1).fit(one_camera(30))
