"""The detector among scikit-learn's: its signs, its parameters, its pipelines."""

from pathlib import Path

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import FunctionTransformer

from discopatch import Detector
from discopatch.corruptions import corrupt
from discopatch.errors import ImageError
from discopatch.images import Pixels
from discopatch.images.samples import crops, sample_photos
from discopatch.model import Weights
from discopatch.sklearn import ImageOutlierDetector
from tests.samples import tiny_weights


def stack(count: int, *, seed: int) -> Pixels:
    return np.stack([each.pixels for each in crops(sample_photos(["cat"]), count, size=64, seed=seed)])


@pytest.fixture(scope="module")
def weights() -> Weights:
    return tiny_weights()


@pytest.fixture(scope="module")
def outliers(weights: Weights) -> ImageOutlierDetector:
    return ImageOutlierDetector(weights, false_alarm_rate=0.1).fit(stack(60, seed=0))


def test_signs_are_those_of_scikit_learn(outliers: ImageOutlierDetector) -> None:
    normal = stack(12, seed=1)
    noisy = np.stack([corrupt(each, "gaussian_noise", 5, seed=0) for each in normal])
    assert (outliers.predict(noisy) == -1).all()
    assert (outliers.predict(normal) == 1).mean() > 0.5
    assert outliers.score_samples(normal).min() > outliers.score_samples(noisy).max()
    assert np.array_equal(outliers.decision_function(noisy) < 0, outliers.predict(noisy) == -1)
    assert np.array_equal(outliers.decision_function(normal), outliers.score_samples(normal) - outliers.offset_)


def test_it_decides_as_the_detector_does(outliers: ImageOutlierDetector, weights: Weights) -> None:
    images = stack(20, seed=2)
    detector = Detector(weights, false_alarm_rate=0.1).fit(stack(60, seed=0))
    assert np.array_equal(outliers.score_samples(images), -detector.score(images))
    assert np.array_equal(outliers.predict(images) == -1, detector.predict(images).is_ood)


def test_it_has_the_parameters_of_the_detector_and_takes_others_after_a_fit() -> None:
    original = ImageOutlierDetector(false_alarm_rate=0.05, head="statistics", seed=7, precision="bfloat16")
    assert original.get_params().keys() == Detector().get_params().keys()
    assert original.get_params()["precision"] == "bfloat16"
    copy = clone(original)
    assert copy is not original
    assert copy.get_params() == original.get_params()
    assert copy.set_params(seed=8).seed == 8
    with pytest.raises(NotFittedError):
        copy.predict(stack(1, seed=0))


def test_fitting_again_takes_the_parameters_of_then(weights: Weights) -> None:
    found = ImageOutlierDetector(weights, head="logit", false_alarm_rate=0.1).fit(stack(30, seed=0))
    before = found.score_samples(stack(3, seed=1))
    again = found.set_params(head="sigmoid").fit(stack(30, seed=0))
    assert again.detector_.settings()["head"] == "sigmoid"
    assert not np.array_equal(again.score_samples(stack(3, seed=1)), before)


def test_it_sits_in_a_pipeline(weights: Weights) -> None:
    upright = FunctionTransformer(lambda images: images[:, ::-1])
    pipeline = Pipeline([("upright", upright), ("outliers", ImageOutlierDetector(weights, false_alarm_rate=0.1))])
    labels = pipeline.fit(stack(40, seed=0)).predict(stack(5, seed=1))
    assert set(labels) <= {-1, 1}
    assert labels.shape == (5,)


def test_an_image_that_cannot_be_read_is_an_error(outliers: ImageOutlierDetector, tmp_path: Path) -> None:
    broken = tmp_path / "broken.png"
    broken.write_bytes(b"nothing")
    with pytest.raises(ImageError, match=r"broken\.png"):
        outliers.predict([stack(1, seed=0)[0], str(broken)])
