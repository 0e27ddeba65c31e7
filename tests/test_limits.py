"""Limits of images are arguments of detectors and exports, and explain takes one image."""

from pathlib import Path

import numpy as np
import pytest

import discopatch
from discopatch import Detector
from discopatch.errors import ParameterError
from discopatch.images import DEFAULT_LIMITS, NamedImage, RefusalReason
from discopatch.sklearn import ImageOutlierDetector

from .samples import new_detector, one_camera, save_images


@pytest.fixture(scope="module")
def detector() -> Detector:
    return new_detector().fit(one_camera(40))


@pytest.fixture(scope="module")
def saved(detector: Detector, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("saved") / "detector"
    detector.save(path)
    return path


def refused(detector: Detector, image: object) -> str:
    (prediction,) = detector.predict(image, workers=1)
    assert prediction.error is not None
    return prediction.error


def test_limits_are_arguments_that_a_fitted_detector_can_still_change(detector: Detector, saved: Path) -> None:
    image = np.zeros((70, 70, 3), np.uint8)
    assert detector.predict(image)[0].error is None
    limited = discopatch.load(saved, max_pixels=70 * 70 - 1)
    assert isinstance(limited, Detector)
    error = refused(limited, image)
    assert error.startswith(RefusalReason.TOO_LARGE)
    assert "max_pixels (--max-pixels)" in error
    limited.max_pixels = 70 * 70
    assert limited.predict(image)[0].error is None
    limited.max_bytes = 10
    assert "max_bytes (--max-bytes)" in refused(limited, b"0123456789a")


def test_limits_are_not_stored(detector: Detector, saved: Path, tmp_path: Path) -> None:
    small = discopatch.load(saved, max_pixels=5000, max_bytes=1000)
    assert isinstance(small, Detector)
    assert "max_pixels" not in small.settings()
    assert small.with_rate(0.2).max_bytes == 1000
    small.save(tmp_path / "again")
    again = discopatch.load(tmp_path / "again")
    assert (again.max_pixels, again.max_bytes) == (DEFAULT_LIMITS.max_pixels, DEFAULT_LIMITS.max_bytes)


def test_fit_goes_by_the_limits_of_the_detector() -> None:
    large = NamedImage("large", np.zeros((100, 100, 3), np.uint8))
    fitted = new_detector(max_pixels=64 * 64).fit([*one_camera(40), large])
    assert fitted.refusals_.refused == {RefusalReason.TOO_LARGE: 1}


@pytest.mark.parametrize("name", ["max_pixels", "max_bytes"])
def test_senseless_limits_are_errors(name: str, saved: Path) -> None:
    with pytest.raises(ParameterError, match=name):
        new_detector(**{name: 0}).fit(one_camera(40))  # type: ignore[arg-type]
    with pytest.raises(ParameterError, match=name):
        discopatch.load(saved, **{name: 0}).predict(np.zeros((70, 70), np.uint8))  # type: ignore[arg-type]


def test_limits_are_parameters_for_scikit_learn() -> None:
    assert ImageOutlierDetector(max_bytes=7).get_params()["max_bytes"] == 7


def test_explain_refuses_more_than_one_image_before_the_network_runs(
    detector: Detector, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = save_images(tmp_path / "folder", one_camera(3))
    network = detector.encoder_
    monkeypatch.setattr(type(network), "start", lambda *_: pytest.fail("the network ran"))
    for source in (
        tmp_path / "folder",
        str(tmp_path / "folder"),
        paths,
        one_camera(2),
        np.zeros((2, 64, 64, 3), np.uint8),
    ):
        with pytest.raises(ParameterError, match="--report"):
            detector.explain(source)
    monkeypatch.undo()
    with paths[0].open("rb") as file:
        assert detector.explain(file).prediction == detector.explain(paths[0]).prediction
