"""Detectors that are fitted on what `discopatch score --features` wrote."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from discopatch import Detector, load
from discopatch.batch import score_to
from discopatch.batch.stored_features import open_features
from discopatch.cli import app
from discopatch.errors import ParameterError, ScoresError
from discopatch.streamed_fitting import FeatureStream
from tests.batch.samples import image_folder
from tests.samples import new_detector, one_camera, tiny_weights


@pytest.fixture(scope="module")
def detector() -> Detector:
    return new_detector().fit(one_camera(40))


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = image_folder(tmp_path_factory.mktemp("scored") / "images", 60)
    (folder / "020b.png").write_bytes(b"no image")
    return folder


@pytest.fixture(scope="module")
def scores(detector: Detector, images: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("scores") / "scores"
    score_to(detector, images, out, per_part=17, features=True, workers=1)
    return out


def test_the_detector_is_that_of_the_same_features_but_for_their_rounding(
    detector: Detector, images: Path, scores: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Features are stored in 16 bits, so that scores differ by some hundredths of a standard deviation."""
    good = [path for path in sorted(images.iterdir()) if path.name != "020b.png"]
    features = new_detector().extract_features([str(path) for path in good]).without_places()
    expected = new_detector().fit_features(features)
    at_once = new_detector().fit_features(scores)
    monkeypatch.setattr(FeatureStream, "read_small", lambda stream: None)
    in_parts = new_detector().fit_features(str(scores))
    assert len(open_features(scores)) == 60
    spread = expected.calibration_scores_.std()
    for found in (at_once, in_parts):
        assert found.guarantee_ == expected.guarantee_
        difference = found.predict(one_camera(20, seed=5)).scores - expected.predict(one_camera(20, seed=5)).scores
        assert np.abs(difference).max() < 0.05 * spread
    np.testing.assert_allclose(in_parts.calibration_scores_, at_once.calibration_scores_, rtol=1e-5, atol=1e-6)


def test_features_of_other_networks_are_refused(scores: Path) -> None:
    with pytest.raises(ParameterError, match="other networks"):
        new_detector(tiny_weights(seed=1)).fit_features(scores)
    with pytest.raises(ParameterError, match="other networks"):
        new_detector(patches=4).fit_features(scores)


def test_scores_without_features_or_with_missing_parts_are_refused(
    detector: Detector, images: Path, scores: Path, tmp_path: Path
) -> None:
    score_to(detector, images, tmp_path / "plain", workers=1)
    with pytest.raises(ScoresError, match="--features"):
        new_detector().fit_features(tmp_path / "plain")
    score_to(detector, images, tmp_path / "half", per_part=17, features=True, rank=0, world=2, workers=1)
    with pytest.raises(ScoresError, match="parts"):
        new_detector().fit_features(tmp_path / "half")


def test_the_command_fits_on_stored_features(scores: Path, tmp_path: Path) -> None:
    weights = tiny_weights()
    weights.save(tmp_path / "tiny.safetensors")
    out = tmp_path / "detector"
    options = ["--weights", str(tmp_path / "tiny.safetensors"), "--false-alarm-rate", "0.1", "--device", "cpu"]
    result = CliRunner().invoke(app, ["fit", "--features", str(scores), "-o", str(out), *options])
    assert result.exit_code == 0, result.output
    expected = new_detector().fit_features(scores)
    assert np.array_equal(load(out).calibration_scores_, expected.calibration_scores_)
    picture = tmp_path / "picture.png"
    Image.fromarray(one_camera(1)[0].pixels).save(picture)
    assert load(out).predict(str(picture))[0].error is None


@pytest.mark.parametrize("arguments", [[], ["images", "--features", "scores"], ["--features", "s", "--groups", "name"]])
def test_the_command_takes_either_images_or_features(arguments: list[str], tmp_path: Path) -> None:
    assert CliRunner().invoke(app, ["fit", *arguments, "-o", str(tmp_path / "detector")]).exit_code == 2
