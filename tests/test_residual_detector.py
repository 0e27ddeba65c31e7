"""A detector with a residual network of either kind fits, scores, explains, is saved and exported as any other."""

from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import pytest

import discopatch
from discopatch import Detector
from discopatch.errors import ExportError
from discopatch.export import export_detector
from discopatch.model import Weights
from discopatch.training import get_preset
from tests.export.samples import camera_pixels
from tests.samples import inverted_weights, new_detector, one_camera


@cache
def fitted(make: Callable[[], Weights]) -> Detector:
    return new_detector(make()).fit(one_camera(60), workers=1)


BOTH = pytest.mark.parametrize("make", [inverted_weights])


@BOTH
def test_it_scores_explains_and_survives_its_file(tmp_path: Path, make: Callable[[], Weights]) -> None:
    detector, images = fitted(make), list(camera_pixels(6))
    scores = detector.score(images, workers=1)
    assert np.isfinite(scores).all()
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    assert detector.score([noise], workers=1)[0] > scores.max()
    assert detector.explain(noise).anomaly_map.max() > 0
    detector.save(tmp_path / "detector")
    loaded = discopatch.load(tmp_path / "detector")
    np.testing.assert_array_equal(loaded.score(images, workers=1), scores)


@BOTH
@pytest.mark.slow
def test_its_export_agrees_with_it(tmp_path: Path, make: Callable[[], Weights]) -> None:
    detector, images = fitted(make), camera_pixels(6)
    exported = export_detector(detector, tmp_path / "onnx", reference=one_camera(8, seed=5))
    assert exported.caution is None
    runtime = discopatch.load(tmp_path / "onnx")
    expected = detector.score(list(images), workers=1)
    tolerance = 1e-3 * detector.calibration_scores_.std()
    np.testing.assert_allclose(runtime.score(list(images)), expected, rtol=0, atol=tolerance)


@BOTH
@pytest.mark.slow
def test_8_bits_agree_with_it(tmp_path: Path, make: Callable[[], Weights]) -> None:
    detector, images = fitted(make), camera_pixels(6)
    export_detector(detector, tmp_path / "int8", int8=True, reference=one_camera(96, seed=5))
    found = discopatch.load(tmp_path / "int8").score(list(images))
    np.testing.assert_allclose(
        found, detector.score(list(images), workers=1), rtol=0, atol=0.5 * detector.calibration_scores_.std()
    )


def test_8_bits_that_openvino_cannot_read_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="leave out int8"):
        export_detector(
            fitted(inverted_weights), tmp_path / "o", format="openvino", int8=True, reference=one_camera(12, seed=5)
        )
    assert not (tmp_path / "o").exists()


@BOTH
def test_it_adapts_to_the_images(make: Callable[[], Weights]) -> None:
    weights = make()
    adapted = new_detector(weights).fit(one_camera(60), adapt_steps=1, workers=1)
    assert adapted.weights_.digest != weights.digest
    assert adapted.weights_.origin["config"]["crop"] == get_preset("natural-v2").crop
