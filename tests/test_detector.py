"""Detector: normal images in, decisions about new ones out, at a false-alarm rate that it keeps."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.base import clone

from discopatch import Detector
from discopatch.calibration import p_values, threshold
from discopatch.corruptions import corrupt
from discopatch.demo import crops, sample_photos
from discopatch.errors import FrozenError, ImageError, NoImagesError, NotFittedError, ParameterError, TooFewImagesError
from discopatch.heads import PROBES
from discopatch.images import NamedImage
from discopatch.results import UNUSUAL_SHAPE
from tests.samples import TOO_SMALL, natural_detector, new_detector, one_camera, save_images, tiny_weights


@pytest.fixture(scope="module")
def fitted() -> Detector:
    return new_detector(reason_images=16).fit(one_camera(60), workers=1)


# What it says


def test_before_a_fit_it_says_what_to_do(tmp_path: Path) -> None:
    new, images = new_detector(), one_camera(1)
    asked: list[Callable[[], object]] = [
        lambda: new.predict(images),
        lambda: new.score(images),
        lambda: next(new.predict_iter(images)),
        lambda: new.explain(images[0]),
        lambda: new.with_rate(0.2),
        lambda: new.threshold_,
        lambda: new.guarantee_,
        lambda: new.head_,
        lambda: new.settings(),
        lambda: new.save(tmp_path / "file"),
    ]
    for ask in asked:
        with pytest.raises(NotFittedError, match=r"fit.*discopatch\.load"):
            ask()
    assert list(tmp_path.iterdir()) == []


def test_a_prediction_is_the_score_its_p_value_and_the_decision_that_follows(fitted: Detector) -> None:
    new = [*one_camera(10, seed=1), *crops(sample_photos(["coins", "rocket"]), 5, size=64, seed=0)]
    predictions = fitted.predict(new, workers=1)
    assert predictions.names.tolist() == [each.name for each in new]
    assert np.array_equal(predictions.scores, fitted.score(new, workers=1))
    assert np.array_equal(predictions.p_values, p_values(predictions.scores, fitted.calibration_scores_))
    assert np.array_equal(predictions.is_ood, predictions.p_values <= 0.1)
    assert set(predictions.is_ood) == {True, False}
    assert all(each.error is None for each in predictions)
    assert fitted.threshold_ == threshold(fitted.calibration_scores_, 0.1)


def test_an_image_at_the_threshold_is_not_flagged() -> None:
    """Its p-value is beyond the rate; only a higher score is flagged."""
    found = new_detector(head="logit").fit(one_camera(30), workers=1)
    (at,) = [each for each in found.predict(one_camera(30), workers=1) if each.score == found.threshold_]
    assert at.p_value == 2 / 10
    assert at.is_ood is False


def test_a_score_depends_on_its_own_image_alone(fitted: Detector) -> None:
    new = one_camera(8, seed=1)
    together = fitted.score(new, workers=1)
    assert [fitted.score([each], workers=1)[0] for each in new] == together.tolist()
    assert fitted.score(new[::-1], workers=1)[::-1].tolist() == together.tolist()
    assert fitted.score([new[0], new[5]], workers=1).tolist() == [together[0], together[5]]


def test_a_calibration_image_that_comes_again_scores_what_it_was_calibrated_with(fitted: Detector) -> None:
    """To the bit: or an image just like the one at the threshold would be flagged by rounding alone."""
    again = set(fitted.score(one_camera(60), workers=1).tolist())
    assert [score for score in fitted.calibration_scores_.tolist() if score not in again] == []


def test_one_bad_file_among_many_is_one_prediction_with_an_error(tmp_path: Path) -> None:
    paths = save_images(tmp_path, one_camera(40))
    paths[7].write_bytes(paths[7].read_bytes()[:300])
    paths[20].write_bytes(b"")
    found = new_detector().fit(paths, workers=2)
    assert found.guarantee_.n_fit + len(found.calibration_scores_) == found.refusals_.accepted == 38
    assert found.refusals_.count == 2
    predictions = found.predict(paths, workers=2)
    assert predictions.names.tolist() == [str(path) for path in paths]
    assert [place for place, error in enumerate(predictions.errors) if error] == [7, 20]
    assert predictions[20].error is not None
    assert predictions[20].error.startswith("empty: ")
    assert (predictions[20].score, predictions[20].p_value, predictions[20].is_ood) == (None, None, None)
    assert np.flatnonzero(np.isnan(found.score(paths, workers=2))).tolist() == [7, 20]


def test_nothing_but_bad_files_is_an_error_to_fit_and_predictions_to_predict(fitted: Detector, tmp_path: Path) -> None:
    for number in range(30):
        (tmp_path / f"{number}.png").write_bytes(b"no image")
    with pytest.raises(NoImagesError, match="30 of 30"):
        new_detector().fit(tmp_path, workers=1)
    assert all(each.error for each in fitted.predict(tmp_path, workers=1))


def test_an_explanation_is_the_prediction_the_image_a_map_and_reasons(fitted: Detector) -> None:
    noisy = corrupt(one_camera(1, size=80, seed=1)[0].pixels, "gaussian_noise", 5, seed=0)
    explanation = fitted.explain(noisy)
    assert explanation.prediction == fitted.predict([noisy], workers=1)[0]
    assert np.array_equal(explanation.image, fitted.transform_(noisy))
    assert explanation.anomaly_map.shape == (64, 64)
    assert explanation.size == (80, 80)
    assert explanation.anomaly_map.max() > 0
    assert 1 <= len(explanation.reasons) <= 3
    z = [reason.z for reason in explanation.reasons]
    assert z == sorted(z, reverse=True)
    for reason in explanation.reasons:
        assert reason.text == PROBES[reason.id].text


def test_an_image_that_cannot_be_read_cannot_be_explained(fitted: Detector, tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(b"")
    with pytest.raises(ImageError, match=r"a\.png"):
        fitted.explain(tmp_path / "a.png")


# Whole images


@pytest.fixture(scope="module")
def wide() -> list[NamedImage]:
    """Images of 96 x 144 pixels."""
    return [replace(each, pixels=each.pixels[:96]) for each in one_camera(40, size=144)]


def test_images_are_seen_whole_and_regions_are_in_pixels_of_the_original(wide: list[NamedImage]) -> None:
    found = new_detector().fit(wide, workers=1)
    assert found.transform_.shape == (64, 96)
    assert found.settings()["aspects"] == [1.5, 1.5]
    explanation = found.explain(wide[0])
    assert explanation.image.shape[:2] == explanation.anomaly_map.shape == (64, 96)
    assert explanation.size == (96, 144)
    anomaly_map = np.zeros((64, 96), np.float32)
    anomaly_map[32:48, 60:90] = 2
    content = json.loads(json.dumps(replace(explanation, anomaly_map=anomaly_map).as_dict()))
    assert content["size"] == [96, 144]
    assert content["regions"][0]["box"] == [90, 48, 45, 24]
    again = found.explain(NamedImage("after the transform", explanation.image, explanation.size))
    assert np.array_equal(again.anomaly_map, explanation.anomaly_map)
    assert (again.size, again.prediction.caution) == ((96, 144), None)


def test_images_of_several_shapes_are_fitted_calibrated_and_explained() -> None:
    square = one_camera(60, size=144)
    mixed = [replace(each, pixels=each.pixels[: 48 + 16 * (place % 7)]) for place, each in enumerate(square)]
    found = new_detector(reason_images=4).fit(mixed, workers=1)
    assert len(found.calibration_scores_) == 60 - found.settings()["images"]
    for image in (mixed[0], mixed[5], square[0]):
        explanation = found.explain(image)
        assert explanation.anomaly_map.shape == explanation.image.shape[:2]
        assert explanation.prediction == found.predict([image])[0]


def test_an_image_of_an_unusual_shape_has_a_caution(wide: list[NamedImage], tmp_path: Path) -> None:
    found = new_detector(head="statistics").fit(wide, workers=1)
    found.save(tmp_path / "file")
    images = [wide[0], replace(wide[0], pixels=wide[0].pixels[:, :96]), TOO_SMALL]
    for each in (found, Detector.load(tmp_path / "file", device="cpu"), found.with_rate(0.3)):
        assert [one.caution for one in each.predict(images)] == [None, UNUSUAL_SHAPE, None]
        assert each.explain(images[1]).prediction.caution == UNUSUAL_SHAPE


def test_ignored_pixels_change_neither_score_nor_map(wide: list[NamedImage], tmp_path: Path) -> None:
    found = new_detector().fit(wide, ignore=[(100, 0, 44, 30)], workers=1)
    found.save(tmp_path / "file")
    changed, elsewhere = wide[0].pixels.copy(), wide[0].pixels.copy()
    changed[:30, 100:] = np.random.default_rng(0).integers(0, 256, (30, 44, 3))
    elsewhere[40:70, 50:94] = changed[:30, 100:]
    for each in (found, Detector.load(tmp_path / "file", device="cpu")):
        before, after, other = (each.explain(pixels) for pixels in (wide[0].pixels, changed, elsewhere))
        assert after.prediction.score == before.prediction.score != other.prediction.score
        assert after.anomaly_map.tobytes() == before.anomaly_map.tobytes() != other.anomaly_map.tobytes()
    with pytest.raises(ParameterError, match="whole images"):
        new_detector(resolution="crop").fit(wide, ignore=[(100, 0, 44, 30)], workers=1)


# What was fitted never changes


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("weights", "natural-v2"),
        ("head", "logit"),
        ("false_alarm_rate", 0.2),
        ("patches", 16),
        ("sampling", "grid"),
        ("seed", 1),
        ("precision", "bfloat16"),
        ("resolution", 96),
    ],
)
def test_a_parameter_can_be_set_before_a_fit_and_not_after(fitted: Detector, name: str, value: object) -> None:
    new = new_detector()
    setattr(new, name, value)
    assert new.get_params()[name] == value
    before = fitted.get_params()
    with pytest.raises(FrozenError, match=name):
        setattr(fitted, name, value)
    assert fitted.get_params() == before
    with pytest.raises(FrozenError, match=name):
        setattr(fitted.with_rate(0.2), name, value)


def test_device_and_batch_size_may_change_and_are_honoured() -> None:
    found, new = new_detector().fit(one_camera(30), workers=1), one_camera(5, seed=1)
    before = found.score(new)
    assert (found.batch_size, found.encoder_.batch_size) == (None, 8)
    found.batch_size = 2
    assert found.encoder_.batch_size == 2
    assert [len(batch.items) for batch in found.encoder_.batches([new])] == [2, 2, 1]
    assert np.array_equal(found.score(new), before)
    found.device = "meta"  # stands for a device that a machine may not have
    assert found.encoder_.device == torch.device("meta")
    found.device = "cpu"
    assert np.array_equal(found.score(new), before)
    assert found.scorer_ is found.scorer_, "made once"


def test_at_another_rate_nothing_is_fitted_again(fitted: Detector) -> None:
    new = one_camera(20, seed=1)
    other = fitted.with_rate(0.3)
    assert (fitted.false_alarm_rate, other.false_alarm_rate) == (0.1, 0.3)
    assert np.array_equal(other.calibration_scores_, fitted.calibration_scores_)
    assert np.array_equal(other.score(new), fitted.score(new))
    assert other.threshold_ == threshold(fitted.calibration_scores_, 0.3) < fitted.threshold_
    assert np.array_equal(other.predict(new).is_ood, other.predict(new).p_values <= 0.3)
    assert other.guarantee_ == replace(fitted.guarantee_, false_alarm_rate=0.3)
    assert other.settings() == {**fitted.settings(), "false_alarm_rate": 0.3}
    assert fitted.threshold_ == threshold(fitted.calibration_scores_, 0.1)


def test_a_rate_that_the_calibration_cannot_keep_is_refused(fitted: Detector) -> None:
    with pytest.raises(TooFewImagesError, match="99"):
        fitted.with_rate(0.01)
    with pytest.raises(ParameterError, match="false_alarm_rate"):
        fitted.with_rate(1.5)


# Features instead of images


def test_features_are_those_of_the_encoder_before_and_after_a_fit(fitted: Detector) -> None:
    images = one_camera(5, seed=1)
    before, after = new_detector().extract_features(images), fitted.extract_features(images)
    expected = fitted.encoder_.extract_pixels(np.stack([each.pixels for each in images]))
    assert all(map(np.array_equal, after, expected))
    assert all(map(np.array_equal, before[1:3], expected[1:3]))
    assert before.logits.mean(1) == pytest.approx(expected.logits[:, 0], abs=1e-5), "of whole images, the mean"
    assert after.places.shape == before.places.shape[:3] == (5, 16, 16), "compared with normal ones after the fit"


def test_features_of_an_image_that_cannot_be_read_are_an_error(fitted: Detector) -> None:
    with pytest.raises(ImageError, match="too_small"):
        fitted.extract_features([*one_camera(2), TOO_SMALL], workers=1)
    with pytest.raises(NoImagesError):
        fitted.extract_features([], workers=1)


# Parameters


def test_parameters_can_be_read_and_make_the_same_detector() -> None:
    weights = tiny_weights()
    new = Detector(weights, head="logit", patches=9, seed=4)
    names = ["weights", "head", "false_alarm_rate", "confidence", "patches", "sampling", "seed"]
    names += [
        "reason_images",
        "detection_images",
        "resolution",
        "levels",
        "bands",
        "device",
        "batch_size",
        "precision",
        "decoder",
    ]
    names += ["max_pixels", "max_bytes"]
    assert list(new.get_params()) == names
    assert new.get_params()["weights"] is weights
    assert (new.get_params()["head"], new.get_params()["patches"]) == ("logit", 9)
    assert Detector(**new.get_params()).get_params() == new.get_params()


def test_a_clone_has_the_parameters_and_has_learnt_nothing(fitted: Detector) -> None:
    again = clone(fitted)
    assert again is not fitted
    theirs, ours = again.get_params(), fitted.get_params()
    assert theirs.pop("weights").digest == ours.pop("weights").digest
    assert theirs == ours
    with pytest.raises(NotFittedError):
        again.score(one_camera(1))


@pytest.mark.slow
@pytest.mark.parametrize("weights", ["natural-small-v2", "natural-v2"])
def test_the_released_weights_tell_a_camera_from_its_corrupted_images(weights: str, tmp_path: Path) -> None:
    found, new = natural_detector(weights), one_camera(6, size=256, seed=9)
    fresh = found.predict(new)
    assert fresh.is_ood.sum() <= 2
    for corruption, probe in (("gaussian_noise", "noise"), ("gaussian_blur", "blur")):
        explanation = found.explain(corrupt(new[0].pixels, corruption, 4, seed=0))
        assert explanation.prediction.is_ood
        assert explanation.prediction.score is not None
        assert explanation.prediction.score > found.threshold_ + 4, "scores are minus logarithms: fifty times rarer"
        assert probe in {reason.id for reason in explanation.reasons}

    found.save(tmp_path / "camera")
    assert (tmp_path / "camera").stat().st_size < 8e6, "released weights stay outside"
    again = Detector.load(tmp_path / "camera")
    assert again.weights == weights
    assert again.predict(new[:2]) == fresh[:2]
