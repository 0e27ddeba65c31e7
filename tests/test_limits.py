"""Limits of images are arguments of detectors, and explain takes one image."""

from pathlib import Path

import numpy as np
import pytest

import discopatch
from discopatch import Detector
from discopatch.errors import ParameterError
from discopatch.images import DEFAULT_LIMITS, NamedImage, RefusalReason
from discopatch.sklearn import ImageOutlierDetector

from .samples import new_detector, one_camera, save_images


def refused(detector: discopatch.FittedDetector, image: object) -> str:
    (prediction,) = detector.predict(image, workers=1)
    assert prediction.error is not None
    return prediction.error


def test_limits_can_be_changed_after_the_fit_and_are_not_stored(detector_file: Path, tmp_path: Path) -> None:
    image = np.zeros((70, 70, 3), np.uint8)
    limited = discopatch.load(detector_file, max_pixels=70 * 70 - 1, device="cpu")
    assert isinstance(limited, Detector)
    assert refused(limited, image).startswith(RefusalReason.TOO_LARGE)
    limited.max_pixels = 70 * 70
    assert limited.predict(image)[0].error is None
    limited.max_bytes = 10
    assert refused(limited, b"0123456789a").startswith(RefusalReason.TOO_LARGE)
    assert "max_pixels" not in limited.settings()
    assert limited.with_rate(0.2).max_bytes == 10
    limited.save(tmp_path / "again")
    again = discopatch.load(tmp_path / "again")
    assert (again.max_pixels, again.max_bytes) == (DEFAULT_LIMITS.max_pixels, DEFAULT_LIMITS.max_bytes)


def test_fit_uses_the_limits_of_the_detector() -> None:
    large = NamedImage("large", np.zeros((100, 100, 3), np.uint8))
    fitted = new_detector(max_pixels=64 * 64).fit([*one_camera(40), large])
    assert fitted.refusals_.refused == {RefusalReason.TOO_LARGE: 1}
    with pytest.raises(ParameterError, match="max_bytes"):
        new_detector(max_bytes=0).fit(one_camera(40))
    assert ImageOutlierDetector(max_bytes=7).get_params()["max_bytes"] == 7


def test_explain_refuses_more_than_one_image_before_the_network_runs(
    detector: Detector, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = save_images(tmp_path / "folder", one_camera(3))
    monkeypatch.setattr(type(detector.encoder_), "start", lambda *_: pytest.fail("the network ran"))
    for source in (str(tmp_path / "folder"), paths, one_camera(2), np.zeros((2, 64, 64, 3), np.uint8)):
        with pytest.raises(ParameterError, match="--report"):
            detector.explain(source)
