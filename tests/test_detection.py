"""Detection rates: what is tried, their intervals, and where a detector has them."""

from pathlib import Path

import numpy as np
import pytest
from scipy.stats import binomtest

from discopatch import Detector, Runtime
from discopatch.calibration import DetectionRate
from discopatch.detection import SIZES, STRENGTHS, measure_detection
from discopatch.errors import ParameterError, SchemaError, WeightsError
from discopatch.images import Pixels
from tests.images.samples import noise, photo
from tests.samples import new_detector, one_camera, with_header

IMAGES = [photo(120, 90), photo(96, 128), noise(80, 100)]
N_CHANGES = sum(map(len, SIZES.values())) + 2 * len(STRENGTHS)


def found_by(flag: bool, images: list[Pixels], **options: int) -> tuple[DetectionRate, ...]:
    return measure_detection(images, lambda changed: [flag] * len(changed), **options)


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


def test_every_kind_and_size_is_tried_on_the_same_number_of_images() -> None:
    everything, nothing = (found_by(flag, IMAGES, count=2) for flag in (True, False))
    assert len(everything) == N_CHANGES
    assert {(each.found, each.tried, each.rate, each.high) for each in everything} == {(2, 2, 1.0, 1.0)}
    assert {(each.found, each.tried, each.rate, each.low) for each in nothing} == {(0, 2, 0.0, 0.0)}
    sizes = {kind: [each.size for each in nothing if each.kind == kind] for kind in SIZES | STRENGTHS}
    assert sizes["scratch"] == ["2 px", "4 px", "8 px"]
    assert sizes["blur"] == ["slight", "plain"]


def test_a_change_is_tried_on_different_images_in_turn_and_is_the_same_for_a_seed() -> None:
    before = [image.copy() for image in IMAGES]

    def changed(seed: int) -> list[Pixels]:
        passed: list[Pixels] = []

        def record(images: list[Pixels]) -> list[bool]:
            passed.extend(images)
            return [False] * len(images)

        measure_detection(IMAGES, record, count=2, seed=seed)
        return passed

    first, again, other = (changed(seed) for seed in (0, 0, 1))
    assert [image.shape for image in first] == [IMAGES[place % 3].shape for place in range(2 * N_CHANGES)]
    assert all(map(np.array_equal, first, again))
    assert not all(map(np.array_equal, first, other))
    assert all(map(np.array_equal, IMAGES, before))
    for place, image in enumerate(first):
        assert image.dtype == np.uint8
        assert not np.array_equal(image, IMAGES[place % 3])


def test_slight_changes_are_smaller_than_plain_ones() -> None:
    moved: list[float] = []

    def record(images: list[Pixels]) -> list[bool]:
        moved.extend(abs(image.astype(float) - IMAGES[0]).mean() for image in images)
        return [False] * len(images)

    measure_detection(IMAGES[:1], record)
    slight, plain = np.reshape(moved[-2 * len(STRENGTHS) :], (-1, 2)).T
    assert (slight > 0.2).all()
    assert (plain > 1.3 * slight).all()


def test_no_more_images_are_tried_than_there_are_and_no_change_is_larger_than_half_an_image() -> None:
    rates = found_by(True, [photo(40, 60)])
    assert {each.tried for each in rates} == {1}
    assert "16 px" in {each.size for each in rates}
    assert "32 px" not in {each.size for each in rates}
    assert found_by(True, []) == ()


def test_a_detector_has_rates_of_images_that_it_was_not_fitted_on() -> None:
    new = new_detector(head="statistics", detection_images=20).fit(one_camera(30), workers=1)
    assert len(new.detection_rates_) == N_CHANGES
    assert {each.tried for each in new.detection_rates_} == {len(new.calibration_scores_)} == {9}
    given = new_detector(head="statistics", detection_images=2)
    given.fit(one_camera(30), calibration=one_camera(9, seed=1), workers=1)
    assert {each.tried for each in given.detection_rates_} == {2}


def test_rates_are_stored_exported_and_left_out_at_another_rate(
    detector: Detector, detector_file: Path, runtime: Runtime, tmp_path: Path
) -> None:
    rates = detector.detection_rates_
    assert {each.tried for each in rates} == {2}
    assert DetectionRate("noise", "plain", 2, 2) in rates
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
