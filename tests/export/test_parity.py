"""How far an export and its detector are apart is measured truly, and too far is refused."""

import json
from dataclasses import asdict, replace

import numpy as np
import pytest

from discopatch import Detector, Runtime
from discopatch.errors import ParityError
from discopatch.export import Parity
from discopatch.export.engines import GraphOutput
from discopatch.export.metadata import Metadata
from discopatch.export.parity import MAX_DIFFERENCE, measure_parity
from discopatch.export.references import References
from discopatch.images import Pixels
from tests.export.samples import ShiftedEngine, camera_pixels, tiny_detector
from tests.samples import one_camera, tiny_weights
from tests.test_components_detector import place_detector

FINE = Parity(64, 1e-5, 1e-6, p_values_changed=0, predictions_changed=0, anomaly_maps=8, max_map_difference=1e-5)


def measured(by: float, *, sign: int = 1, corrupted: Pixels | None = None) -> Parity:
    detector = tiny_detector()
    calibration = {"scores": detector.calibration_scores_.tolist()}
    metadata = Metadata({**detector.settings(), "calibration": calibration})
    references = References(camera_pixels(12), synthetic=False, corrupted=corrupted)
    return measure_parity(detector, Runtime(metadata, ShiftedEngine(detector, by, sign)), references)


def test_equal_outputs_are_no_distance_apart() -> None:
    parity = measured(0)
    parity.check()
    assert (parity.images, parity.anomaly_maps) == (12, 8)
    assert parity.max_difference == pytest.approx(0, abs=1e-12)
    assert (parity.max_map_difference, parity.p_values_changed) == (0, 0)
    assert "12 reference images (64 are better)" in parity.text


@pytest.mark.parametrize("by", [0.9e-3, -0.9e-3, 1.1e-3, -1.1e-3, 3.0])
def test_a_difference_is_measured_in_spreads_of_normal_scores_and_refused_above_a_thousandth(by: float) -> None:
    parity = measured(by)
    assert parity.max_difference == pytest.approx(abs(by))
    assert parity.mean_difference == pytest.approx(by)
    assert MAX_DIFFERENCE == 1e-3
    if abs(by) <= 1e-3:
        parity.check()
    else:
        with pytest.raises(ParityError, match=rf"{abs(by):.2g}\b.* 0\.001"):
            parity.check()


def test_p_values_and_predictions_that_differ_are_counted() -> None:
    """Pushed far beyond the threshold, all are flagged with the smallest p-value there is."""
    detector, parity = tiny_detector(), measured(100)
    expected = detector.predict(list(camera_pixels(12)), workers=1)
    assert parity.predictions_changed == sum(not each.is_ood for each in expected) > 6
    assert parity.p_values_changed == sum(each.p_value != 1 / 20 for each in expected)
    assert str(parity.p_values_changed) in parity.text


@pytest.mark.parametrize(
    "refused",
    [
        {"max_map_difference": 0.02},
        {"max_component_difference": 1.1e-2},
        {"max_component_difference": float("nan")},
        {"max_difference": float("nan")},
        {"max_map_difference": float("nan")},
        {"auroc_detector": 0.9, "auroc_export": float("nan")},
        {"max_difference": 0.4, "auroc_detector": 0.95, "auroc_export": 0.9449},
    ],
)
def test_what_differs_visibly_is_refused(refused: dict[str, float]) -> None:
    with pytest.raises(ParityError):
        replace(FINE, **refused).check()  # type: ignore[arg-type]


@pytest.mark.parametrize("after", [0.96, 0.9451])
def test_8_bits_may_lose_half_a_point_of_auroc(after: float) -> None:
    replace(FINE, max_difference=0.4, auroc_detector=0.95, auroc_export=after).check()


def test_8_bits_are_compared_by_the_auroc_against_corrupted_references() -> None:
    """With its sign turned round an export ranks corrupted images as normal."""
    corrupted = np.random.default_rng(0).integers(0, 256, camera_pixels(12).shape, dtype=np.uint8)
    parity = measured(0, sign=-1, corrupted=corrupted)
    assert parity.auroc_detector is not None
    assert parity.auroc_detector > 0.9
    assert parity.auroc_export == pytest.approx(1 - parity.auroc_detector)
    with pytest.raises(ParityError, match=r"more reference images.*int8"):
        parity.check()
    with pytest.raises(ParityError, match=r"written; export without int8"):
        replace(parity, images=64).check()


class ComponentsOffBy:
    """What a detector of components says, each z-score off by so much."""

    def __init__(self, detector: Detector, by: float) -> None:
        self.detector, self.by = detector, by

    def __call__(self, pixels: Pixels, *, anomaly_map: bool = False) -> GraphOutput:
        (prediction,) = self.detector.predict(list(pixels), workers=1)
        assert prediction.score is not None
        at_least = (self.detector.calibration_scores_ >= prediction.score).sum(keepdims=True)
        components = np.array([[each.z + self.by for each in prediction.components]])
        maps = (np.zeros((1, 64, 64), np.float32), np.zeros((1, 16, 16), np.float32)) if anomaly_map else (None, None)
        return GraphOutput(np.array([prediction.score]), at_least, maps[0], components, maps[1])


@pytest.mark.parametrize("by", [0.9e-2, -1.1e-2, 100.0])
def test_components_may_differ_by_a_hundredth_of_their_spread(by: float) -> None:
    detector = place_detector()
    content = {
        **detector.settings(),
        "calibration": {"scores": detector.calibration_scores_.tolist()},
        "components": {"names": detector.component_names, "significance_level": detector.head_.significance_level},
    }
    runtime = Runtime(Metadata(content), ComponentsOffBy(detector, by))
    parity = replace(
        measure_parity(detector, runtime, References(camera_pixels(8), synthetic=False)), max_map_difference=0.0
    )
    assert parity.max_component_difference == pytest.approx(abs(by))
    assert parity.components_changed == (8 if by == 100 else 0)
    assert "components" in parity.text
    if abs(by) < 1e-2:
        parity.check()
    else:
        with pytest.raises(ParityError, match="components"):
            parity.check()


def test_it_can_be_stored_as_json() -> None:
    for parity in (FINE, measured(0), replace(FINE, auroc_detector=0.9, auroc_export=0.8)):
        assert Parity(**json.loads(json.dumps(asdict(parity)))) == parity


def test_a_detector_whose_calibration_scores_are_all_equal_cannot_be_compared() -> None:
    (image,) = one_camera(1)
    fitted = Detector(tiny_weights(), false_alarm_rate=0.1, device="cpu").fit(one_camera(30), workers=1)
    detector = fitted._accept(replace(fitted.state_, calibration_scores=np.zeros(9)))
    references = References(image.pixels[None], synthetic=False)
    with pytest.raises(ParityError, match="fit"):
        measure_parity(detector, detector, references)  # type: ignore[arg-type]  # a detector answers like a runtime
