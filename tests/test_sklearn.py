"""The detector as a scikit-learn estimator: signs, parameters, pipelines."""

from pathlib import Path

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import FunctionTransformer

from discopatch import Detector
from discopatch.corruptions import corrupt
from discopatch.demo import crops, sample_photos
from discopatch.errors import ImageError
from discopatch.images import Pixels
from discopatch.sklearn import ImageOutlierDetector
from tests.samples import tiny_weights


def stack(count: int, *, seed: int) -> Pixels:
    return np.stack([each.pixels for each in crops(sample_photos(["cat"]), count, size=64, seed=seed)])


@pytest.fixture(scope="module")
def outliers() -> ImageOutlierDetector:
    few = {"reason_images": 0, "detection_images": 0, "device": "cpu"}
    made = ImageOutlierDetector(tiny_weights(), head="statistics", false_alarm_rate=0.1, **few)
    return made.fit(stack(60, seed=0))  # type: ignore[no-any-return]


def test_signs_are_those_of_scikit_learn(outliers: ImageOutlierDetector) -> None:
    normal = stack(12, seed=1)
    noisy = np.stack([corrupt(each, "gaussian_noise", 5, seed=0) for each in normal])
    assert (outliers.predict(noisy) == -1).all()
    assert (outliers.predict(normal) == 1).mean() > 0.5
    assert outliers.score_samples(normal).min() > outliers.score_samples(noisy).max()
    for images in (normal, noisy):
        detector = outliers.detector_
        assert np.array_equal(outliers.score_samples(images), -detector.score(images))
        assert np.array_equal(outliers.predict(images) == -1, detector.predict(images).is_ood)
        assert np.array_equal(outliers.decision_function(images) < 0, outliers.predict(images) == -1)


def test_it_has_the_parameters_of_the_detector() -> None:
    original = ImageOutlierDetector(false_alarm_rate=0.05, head="statistics", seed=7, precision="bfloat16")
    assert original.get_params().keys() == Detector().get_params().keys()
    copy = clone(original)
    assert copy.get_params() == original.get_params()
    assert copy.set_params(seed=8).seed == 8
    with pytest.raises(NotFittedError):
        copy.predict(stack(1, seed=0))


def test_it_is_fitted_again_with_other_parameters_in_a_pipeline(outliers: ImageOutlierDetector) -> None:
    upright, other = FunctionTransformer(lambda images: images[:, ::-1]), clone(outliers).set_params(head="sigmoid")
    pipeline = Pipeline([("upright", upright), ("outliers", other)])
    labels = pipeline.fit(stack(40, seed=0)).predict(stack(5, seed=1))
    assert set(labels) <= {-1, 1}
    assert labels.shape == (5,)
    assert other.detector_.settings()["head"] == "sigmoid"


def test_an_image_that_cannot_be_read_is_an_error(outliers: ImageOutlierDetector, tmp_path: Path) -> None:
    (tmp_path / "broken.png").write_bytes(b"nothing")
    with pytest.raises(ImageError, match=r"broken\.png"):
        outliers.predict([stack(1, seed=0)[0], tmp_path / "broken.png"])
