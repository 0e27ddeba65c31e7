"""Detector: normal images in, decisions out, with a promise that it keeps."""

import json
import pickle
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors import safe_open
from sklearn.base import clone

import discopatch.model.weights as storage_of_weights
import discopatch.training.loop as loop
from discopatch import Detector, Weights
from discopatch.results import TooFewImagesError, p_values, threshold
from discopatch.detector import NotFittedError
from discopatch.fitting import N_PROBED, N_SAMPLED, Fitted, Seen
from discopatch.images import NoImagesError, Refusal, RefusalReport, Transform, TransformError, open_cache
from discopatch.images.corrupt import corrupt
from discopatch.images.samples import crops, sample_photos
from discopatch.model import Discriminator
from discopatch.model.weights import FORMAT, HEADER, WeightsError
from discopatch.parameters import PARAMETERS
from discopatch.heads import HEADS, Features, get_head
from discopatch.heads.changes import measure_shifts
from discopatch.heads.encoder_ import Extracted
from tests.model.test_weights import with_header
from tests.samples import TINY, natural_detector, one_camera, save_images, tiny_weights


def detector(weights: Weights | None = None, **parameters: Any) -> Detector:
    """Tiny and random, which is as good as any for what a detector promises."""
    return Detector(weights or tiny_weights(), **{"false_alarm_rate": 0.1, "device": "cpu", **parameters})


def tampered(path: Path, **changes: Any) -> Path:
    return with_header(path, lambda header: header.update(changes))


@pytest.fixture(scope="module")
def fitted() -> Detector:
    return detector().fit(one_camera(60), workers=1)


@pytest.fixture
def saved(fitted: Detector, tmp_path: Path) -> Path:
    path = tmp_path / "camera.safetensors"
    fitted.save(path)
    return path


@pytest.fixture
def learnt(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Seen, Features]]:
    """Notes what every fit learns from, and what it holds out."""
    calls: list[tuple[Seen, Features]] = []
    learn = Fitted.learn

    def spy(scorer: Any, head: str, normal: Seen, held_out: Features, *rest: Any, **options: Any) -> Fitted:
        calls.append((normal, held_out))
        return learn(scorer, head, normal, held_out, *rest, **options)

    monkeypatch.setattr(Fitted, "learn", spy)
    return calls


def rows(features: Features) -> list[bytes]:
    return [row.tobytes() for row in features.statistics]


# What it learns from


@pytest.mark.parametrize(("images", "rate", "held_out"), [(30, 0.1, 9), (60, 0.1, 19), (60, 0.05, 19), (40, 0.2, 9)])
def test_some_images_are_held_out_for_the_promise(learnt, images: int, rate: float, held_out: int) -> None:
    images = one_camera(images)
    found = detector(false_alarm_rate=rate).fit(images, workers=1)
    assert (found.n_fit_, len(found.calibration_scores_)) == (images - held_out, held_out)
    ((normal, kept_back),) = learnt
    everything = rows(found.encoder_.extract_pixels(np.stack([each.pixels for each in images])))
    assert len(set(everything)) == images, "or nothing can be told apart"
    assert sorted(rows(normal.features) + rows(kept_back)) == sorted(everything)
    assert len(normal.sample) == N_SAMPLED > N_PROBED
    looked_at = found.encoder_.extract_pixels(np.stack(list(normal.sample.values())))
    assert set(rows(looked_at)) <= set(rows(normal.features)), "what is looked at more closely is never held out"


def test_images_brought_to_calibrate_are_used_for_nothing_else(learnt) -> None:
    images = one_camera(60)
    found = detector().fit(images[:40], calibration=images[40:], workers=1)
    ((normal, held_out),) = learnt
    everything = rows(found.encoder_.extract_pixels(np.stack([each.pixels for each in images])))
    assert rows(normal.features) == everything[:40]
    assert rows(held_out) == everything[40:]
    assert found.n_fit_ == 40
    np.testing.assert_allclose(found.calibration_scores_, np.sort(found.score(images[40:], workers=1)), rtol=1e-12)


def test_too_few_normal_images_are_counted() -> None:
    with pytest.raises(
        TooFewImagesError, match="29 normal images; at least 30 are needed to know what is normal: add images"
    ):
        detector().fit(one_camera(29), workers=1)


def test_too_few_normal_images_are_counted_when_others_calibrate_too() -> None:
    with pytest.raises(TooFewImagesError, match="5 normal images; at least 30"):
        detector().fit(one_camera(5), calibration=one_camera(20, seed=1), workers=1)


def test_a_promise_that_the_images_cannot_keep_is_refused_with_the_number_it_needs() -> None:
    with pytest.raises(
        TooFewImagesError, match=r"30 images; .* 1\.00% needs at least 119 .*raise false_alarm_rate to 0\.091"
    ):
        detector(false_alarm_rate=0.01).fit(one_camera(30), workers=1)
    found = detector(false_alarm_rate=0.091).fit(one_camera(30), workers=1)
    assert np.isfinite(found.threshold_), "the rate that it named"


def test_a_promise_that_the_calibration_images_cannot_keep_is_refused_with_the_number_it_needs() -> None:
    images = one_camera(35)
    with pytest.raises(
        TooFewImagesError, match=r"5 calibration images; a 1\.00% false-alarm rate needs at least 99: add"
    ):
        detector(false_alarm_rate=0.01).fit(images[:30], calibration=images[30:], workers=1)


def test_thirty_images_are_enough_for_one_in_ten_and_called_few() -> None:
    found = detector(false_alarm_rate=0.1).fit(one_camera(30), workers=1)
    assert (found.guarantee_.fitted, found.guarantee_.calibrated) == (21, 9)
    assert "fitted on 21 images, calibrated on 9" in found.guarantee_.words
    assert "Fewer than 100 images" in found.guarantee_.words


def test_normal_images_that_are_all_alike_still_give_numbers() -> None:
    """A camera that hangs: its image is normal, every other is not."""
    image, other = one_camera(2)
    found = detector().fit([image] * 40, workers=1)
    same, different = found.predict([image, other], workers=1)
    assert same.score is not None
    assert different.score is not None
    assert np.isfinite([same.score, different.score]).all()
    assert not same.is_ood
    assert different.is_ood


def test_the_same_seed_gives_the_same_detector_and_another_holds_out_others(fitted: Detector) -> None:
    images, new = one_camera(60), one_camera(5, seed=1)
    again = detector().fit(images, workers=4)
    assert np.array_equal(again.calibration_scores_, fitted.calibration_scores_)
    assert np.array_equal(again.score(new), fitted.score(new))
    other = detector(seed=1).fit(images, workers=1)
    assert not np.array_equal(other.calibration_scores_, fitted.calibration_scores_)


def test_fitting_again_forgets_what_was_before() -> None:
    images = one_camera(30, seed=1)
    twice = detector().fit(one_camera(30), workers=1).fit(images, workers=1)
    assert np.array_equal(twice.score(images), detector().fit(images, workers=1).score(images))
    with pytest.raises(TooFewImagesError):
        twice.fit(images[:5], workers=1)
    with pytest.raises(NotFittedError):
        twice.score(images)


def test_fitting_leaves_the_global_random_state_alone() -> None:
    before, legacy = torch.get_rng_state(), np.random.get_state()[1].tolist()  # type: ignore[index]  # noqa: NPY002
    detector().fit(one_camera(30), workers=1)
    assert torch.equal(torch.get_rng_state(), before)
    assert np.random.get_state()[1].tolist() == legacy  # type: ignore[index]  # noqa: NPY002


def test_progress_hears_of_every_image() -> None:
    heard: list[int] = []
    images = [*one_camera(30), np.zeros((3, 3), np.uint8)]
    detector().fit(images, progress=lambda: heard.append(1), workers=1)
    assert len(heard) == 31


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ({"false_alarm_rate": 0}, "false_alarm_rate is 0: it must lie between 0 and 1"),
        ({"head": "tail"}, "unknown head 'tail': choose one of combined, statistics, logit, sigmoid"),
        ({"sampling": "spiral"}, "unknown sampling 'spiral': choose random, grid or dense"),
    ],
)
def test_a_wrong_parameter_is_refused_before_any_image(parameters: dict[str, Any], words: str) -> None:
    asked = (pytest.fail("an image was asked for") for _ in range(30))
    with pytest.raises(ValueError, match=words):
        detector(**parameters).fit(asked, workers=1)


# What it says


def test_before_it_has_seen_normal_images_it_says_what_to_do(tmp_path: Path) -> None:
    new, images = detector(), one_camera(1)
    asked: list[Callable[[], object]] = [
        lambda: new.predict(images),
        lambda: new.score(images),
        lambda: new.explain(images[0]),
        lambda: new.threshold_,
        lambda: new.guarantee_,
        lambda: new.save(tmp_path / "file"),
    ]
    for ask in asked:
        with pytest.raises(NotFittedError, match=r"no normal images yet: call fit, or Detector\.load a fitted one"):
            ask()
    assert list(tmp_path.iterdir()) == []


def test_a_prediction_is_the_score_its_p_value_and_the_verdict_that_follows(fitted: Detector) -> None:
    new = [*one_camera(10, seed=1), *crops(sample_photos(["coins", "rocket"]), 5, size=64, seed=0)]
    predictions = fitted.predict(new, workers=1)
    assert [each.name for each in predictions] == [each.name for each in new]
    scores = [each.score for each in predictions]
    assert scores == fitted.score(new, workers=1).tolist()
    assert [each.p_value for each in predictions] == p_values(np.array(scores), fitted.calibration_scores_).tolist()
    assert [each.is_ood for each in predictions] == [each.p_value <= 0.1 for each in predictions if each.p_value]
    assert {each.is_ood for each in predictions} == {True, False}
    assert all(each.error is None for each in predictions)
    assert fitted.threshold_ == threshold(fitted.calibration_scores_, 0.1)


def test_an_image_at_the_threshold_is_not_flagged() -> None:
    """Its p-value is beyond the rate; only what is stranger is flagged."""
    found = detector(head="logit").fit(one_camera(30), workers=1)
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


@pytest.mark.parametrize("head", HEADS)
def test_false_alarms_are_as_rare_as_promised(head: str) -> None:
    """Over many detectors, each fitted on images drawn from one pool and asked about others of it."""
    pool = list(detector().encoder_.extract(crops(sample_photos(["temple", "cat"]), 80, size=64, seed=0), workers=1))
    seen = [each for each in pool if isinstance(each, Extracted)]
    known = measure_shifts(detector().encoder_.inspect_pixels, np.stack([each.pixels for each in seen[:2]]), seed=0)
    rate, splits, flagged = 0.05, 100, []
    for seed in range(splits):
        order = np.random.default_rng(seed).permutation(len(seen))
        shown = Seen.gather((seen[place] for place in order[:60]), RefusalReport(), None, seed=seed)
        normal, held_out = shown.split(rate, seed=seed)
        learnt = get_head(head).fit(normal.features, known)
        new = learnt.score(Features.concatenate([seen[place].features for place in order[60:]]))
        assert len(held_out.logits) == 19
        flagged.append(np.mean(new > threshold(learnt.score(held_out), rate)))
    # A detector's own rate follows Beta(1, 19), whose deviation is that of the rate itself.
    assert np.mean(flagged) == pytest.approx(rate, abs=4 * rate / np.sqrt(splits))
    assert np.mean(flagged) > 0.02


def test_one_bad_file_among_many_is_one_prediction_with_an_error(tmp_path: Path) -> None:
    paths = save_images(tmp_path, one_camera(40))
    paths[7].write_bytes(paths[7].read_bytes()[:300])
    paths[20].write_bytes(b"")
    found = detector().fit(paths, workers=2)
    assert found.n_fit_ + len(found.calibration_scores_) == 38
    assert found.refusals_.accepted == 38
    assert found.refusals_.count == 2
    predictions = found.predict(paths, workers=2)
    assert [each.name for each in predictions] == [str(path) for path in paths]
    assert [place for place, each in enumerate(predictions) if each.error] == [7, 20]
    assert predictions[20].error is not None
    assert predictions[20].error.startswith("empty: ")
    assert (predictions[20].score, predictions[20].p_value, predictions[20].is_ood) == (None, None, None)
    assert np.flatnonzero(np.isnan(found.score(paths, workers=2))).tolist() == [7, 20]


def test_nothing_but_bad_files_is_an_error_to_fit_and_predictions_to_predict(fitted: Detector, tmp_path: Path) -> None:
    for name in ("a.png", "b.jpg"):
        (tmp_path / name).write_bytes(b"no image")
    with pytest.raises(NoImagesError, match="2 of 2 images refused"):
        detector().fit(tmp_path, workers=1)
    assert all(each.error for each in fitted.predict(tmp_path, workers=1))


def test_predictions_come_one_by_one(fitted: Detector) -> None:
    taken: list[int] = []

    def endless() -> Iterator[NDArray[np.uint8]]:
        while True:
            taken.append(1)
            yield np.full((64, 64, 3), len(taken) % 256, np.uint8)

    stream = fitted.predict_iter(endless(), workers=1)
    assert next(stream).score is not None
    assert len(taken) <= fitted.batch_size
    stream.close()  # type: ignore[attr-defined]  # a generator


def test_a_judgement_brings_the_picture_or_the_reason_why_there_is_none(fitted: Detector) -> None:
    image, bad = one_camera(1, size=80)[0], np.zeros((3, 3), np.uint8)
    good, refused = fitted.predict_images([image, bad], workers=1)
    assert good.refusal is None
    assert good.pixels is not None
    assert np.array_equal(good.pixels, fitted.weights_.transform(image.pixels))
    assert refused.pixels is None
    assert isinstance(refused.refusal, Refusal)
    assert [good.prediction, refused.prediction] == fitted.predict([image, bad], workers=1)


def test_pictures_decoded_before_score_the_same(fitted: Detector, tmp_path: Path) -> None:
    new = one_camera(6, seed=1)
    cache = open_cache(new, fitted.weights_.transform, tmp_path)
    assert np.array_equal(fitted.score(cache, workers=1), fitted.score(new, workers=1))
    assert [each.name for each in fitted.predict(cache, workers=1)] == cache.names


def test_pictures_of_another_transform_are_refused(fitted: Detector, tmp_path: Path) -> None:
    other = open_cache(one_camera(40), Transform(size=64, fit="squash"), tmp_path)
    for ask in (fitted.predict, detector().fit):
        with pytest.raises(TransformError, match="prepare the images with the expected transform, or fit again"):
            ask(other, workers=1)


def test_an_explanation_is_the_prediction_the_picture_the_heat_and_words(fitted: Detector) -> None:
    noisy = corrupt(one_camera(1, size=80, seed=1)[0].pixels, "gaussian_noise", 5, seed=0)
    told = fitted.explain(noisy)
    assert told.prediction == fitted.predict([noisy], workers=1)[0]
    assert np.array_equal(told.pixels, fitted.weights_.transform(noisy))
    assert told.anomaly_map.shape == (64, 64)
    assert told.anomaly_map.max() > 0
    assert len(told.reasons) <= 3


def test_an_image_that_cannot_be_read_cannot_be_explained(fitted: Detector, tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(b"")
    with pytest.raises(ValueError, match=r"a\.png: empty: "):
        fitted.explain(tmp_path / "a.png")


# As a file


@pytest.mark.parametrize("head", HEADS)
def test_a_saved_detector_of_any_head_says_the_same_to_the_bit(head: str, tmp_path: Path) -> None:
    """Whatever memory order the discriminator was in before."""
    torch.manual_seed(0)
    new = one_camera(6, seed=1)
    plain = Weights(Discriminator(TINY), Transform(size=64), {"step": 7})
    for weights, sampling in ((tiny_weights(), "grid"), (plain, "dense")):
        before = detector(weights, head=head, sampling=sampling, patches=4, seed=3).fit(one_camera(30), workers=1)
        before.save(tmp_path / "file")
        after = Detector.load(tmp_path / "file", device="cpu")
        assert np.isfinite(before.score(new)).all()
        assert np.array_equal(after.score(new), before.score(new))
        assert after.predict(new) == before.predict(new)
        assert after.guarantee_ == before.guarantee_
        assert after.settings() == before.settings()
        one, other = before.explain(new[0]), after.explain(new[0])
        assert np.array_equal(one.anomaly_map, other.anomaly_map)
        assert one.reasons == other.reasons


def test_what_was_refused_is_still_known_later(tmp_path: Path) -> None:
    found = detector().fit([*one_camera(30), np.zeros((3, 3), np.uint8)], workers=1)
    found.save(tmp_path / "file")
    assert Detector.load(tmp_path / "file").refusals_ == found.refusals_
    assert found.refusals_.count == 1


def test_weights_of_ones_own_travel_inside(saved: Path, fitted: Detector) -> None:
    again = Detector.load(saved)
    assert isinstance(again.weights, Weights)
    assert again.weights_.digest == tiny_weights().digest
    assert again.weights_.transform == Transform(size=64)
    assert again.settings()["weights"] == "custom"


def test_a_file_says_all_that_its_scores_depend_on(saved: Path) -> None:
    with safe_open(saved, framework="pt") as file:
        header = json.loads(file.metadata()[HEADER])
    weights = tiny_weights()
    assert header["format"] == FORMAT
    assert header["kind"] == "detector"
    assert header["weights_digest"] == weights.digest
    assert header["transform"] == weights.transform.to_dict()
    assert header["transform_digest"] == weights.transform.digest
    assert (header["head"], header["false_alarm_rate"], header["sampling"], header["seed"]) == (
        "combined",
        0.1,
        "dense",
        0,
    )
    assert header["images"] == 41


def test_a_detector_loads_without_pickle(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("pickle was asked")

    for name in ("load", "loads", "Unpickler"):
        monkeypatch.setattr(pickle, name, refuse)
    monkeypatch.setattr(torch, "load", refuse)
    monkeypatch.setattr(np, "load", refuse)
    Detector.load(saved)


def test_an_interrupted_save_leaves_the_old_file(
    saved: Path, fitted: Detector, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = saved.read_bytes()

    def half(tensors: Any, path: Path, metadata: Any) -> None:
        path.write_bytes(before[: len(before) // 2])
        raise KeyboardInterrupt

    monkeypatch.setattr(storage_of_weights, "save_file", half)
    with pytest.raises(KeyboardInterrupt):
        fitted.save(saved)
    assert saved.read_bytes() == before
    assert [path.name for path in saved.parent.iterdir()] == [saved.name]


def test_a_file_rewritten_unchanged_still_loads(saved: Path) -> None:
    """Or the refusals below would prove nothing."""
    Detector.load(tampered(saved))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"format": FORMAT + 1}, rf"has format {FORMAT + 1}, this discopatch reads up to {FORMAT}: update discopatch"),
        ({"kind": "discriminator"}, "holds a discriminator, not a detector"),
        (
            {"weights_digest": "0" * 16},
            r"fitted with weights 0{16}, but custom are [0-9a-f]{16}: install .*or fit again",
        ),
        ({"transform_digest": "0" * 16}, r"through the transform 0{16}, but its weights want .*or fit again"),
        ({"weights": "natural-v1"}, r"but natural-v1 are [0-9a-f]{16}: install discopatch .*, or fit again"),
        ({"weights": "natural-v0"}, r"the weights 'natural-v0' of discopatch .*does not have: install that version"),
    ],
)
def test_a_file_that_does_not_fit_is_refused_with_the_remedy(saved: Path, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(WeightsError, match=words):
        Detector.load(tampered(saved, **changes))


@pytest.mark.parametrize("kept", [0, 4, 100, 0.5, -1])
def test_a_damaged_file_is_refused(saved: Path, kept: float) -> None:
    content = saved.read_bytes()
    saved.write_bytes(content[: int(kept * len(content)) if kept == 0.5 else int(kept)])
    with pytest.raises(WeightsError, match=r"cannot be read as safetensors.*copy it again"):
        Detector.load(saved)


def test_a_weight_that_was_changed_is_noticed(saved: Path) -> None:
    from safetensors.torch import load_file, save_file

    with safe_open(saved, framework="pt") as file:
        metadata = file.metadata()
    tensors = load_file(saved)
    tensors["weights/head.bias"] += 1e-6
    save_file(tensors, saved, metadata)
    with pytest.raises(WeightsError, match="was fitted with weights"):
        Detector.load(saved)


def test_the_weights_alone_are_no_detector(tmp_path: Path) -> None:
    tiny_weights().save(tmp_path / "file")
    with pytest.raises(WeightsError, match="holds a discriminator, not a detector"):
        Detector.load(tmp_path / "file")
    with pytest.raises(
        WeightsError, match=r"no detector at .*nowhere: give the path of a file that `discopatch fit` wrote"
    ):
        Detector.load(tmp_path / "nowhere")


# Adapted


def test_adapting_trains_on_the_images_that_are_not_held_out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    images = [each.pixels for each in one_camera(40)]
    shown_to_it: list[list[NDArray[np.uint8]]] = []
    train = loop.train

    def spy(source: Any, *rest: Any, **options: Any) -> Any:
        shown_to_it.append(list(source))
        return train(source, *rest, **options)

    monkeypatch.setattr(loop, "train", spy)
    before = tiny_weights(seed=1)
    found = detector(before).fit(images, adapt_steps=1, workers=1)

    (lesson,) = shown_to_it
    shown = {each.tobytes() for each in lesson}
    held_out = [each for each in images if each.tobytes() not in shown]
    assert (len(lesson), len(held_out)) == (40 - 9, 9)
    assert (found.n_fit_, len(found.calibration_scores_)) == (31, 9)
    np.testing.assert_allclose(found.calibration_scores_, np.sort(found.score(held_out)), rtol=1e-12)

    assert found.weights_.digest != before.digest
    for name, value in before.discriminator.state_dict().items():
        adapted = found.weights_.discriminator.state_dict()[name]
        torch.testing.assert_close(adapted, value, rtol=0, atol=1e-3, msg="one step from where it began")
    assert before.digest == tiny_weights(seed=1).digest, "the weights that were brought stay as they were"
    assert found.weights is before
    assert found.settings()["weights"] == "custom"

    found.save(tmp_path / "file")
    again = Detector.load(tmp_path / "file", device="cpu")
    assert again.weights_.digest == found.weights_.digest
    assert np.array_equal(again.score(images), found.score(images))


@pytest.fixture
def taught(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[int]:
    """In the place of training: other weights at once, and how many images they would have been trained on."""
    counts: list[int] = []

    def train(source: Any, *_: Any, **__: Any) -> loop.Outcome:
        counts.append(len(source))
        tiny_weights(seed=1).save(tmp_path / "trained.safetensors")
        return loop.Outcome(loop.Ending.COMPLETE, 1, tmp_path / "trained.safetensors")

    monkeypatch.setattr(loop, "train", train)
    return counts


def test_adapting_with_images_brought_to_calibrate_trains_on_all_others(taught: list[int]) -> None:
    images = one_camera(45)
    found = detector().fit(images[:30], calibration=images[30:], adapt_steps=1, workers=1)
    assert taught == [30]
    assert (found.n_fit_, len(found.calibration_scores_)) == (30, 15)
    assert found.weights_.digest == tiny_weights(seed=1).digest


def test_adapted_weights_are_forgotten_when_it_is_fitted_again(taught: list[int]) -> None:
    images = one_camera(30)
    found = detector().fit(images, adapt_steps=1, workers=1).fit(images, workers=1)
    assert taught == [21]
    assert found.weights_.digest == tiny_weights().digest


def test_too_few_images_are_refused_before_any_training(taught: list[int]) -> None:
    for rate, images in ((0.1, 29), (0.01, 40)):
        with pytest.raises(TooFewImagesError):
            detector(false_alarm_rate=rate).fit(one_camera(images), adapt_steps=1, workers=1)
    with pytest.raises(TooFewImagesError):
        detector().fit(one_camera(29), calibration=one_camera(15, seed=1), adapt_steps=1, workers=1)
    assert taught == []


@pytest.mark.usefixtures("taught")
def test_adapting_keeps_count_of_what_was_refused() -> None:
    images = [*one_camera(30), np.zeros((3, 3), np.uint8)]
    assert detector().fit(images, adapt_steps=1, workers=1).refusals_.count == 1


@pytest.mark.usefixtures("taught")
def test_adapting_takes_pictures_decoded_before(tmp_path: Path) -> None:
    cache = open_cache(one_camera(30), tiny_weights().transform, tmp_path)
    assert detector().fit(cache, adapt_steps=1, workers=1).n_fit_ == 21


def test_an_adaptation_that_was_interrupted_is_no_detector(taught: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """The run saves and ends by itself on Ctrl-C; a detector with half of it must not pass for one with all."""
    train = loop.train

    def cut_short(*rest: Any, **options: Any) -> loop.Outcome:
        return replace(train(*rest, **options), ending=loop.Ending.INTERRUPTED)

    monkeypatch.setattr(loop, "train", cut_short)
    new = detector()
    with pytest.raises(KeyboardInterrupt):
        new.fit(one_camera(30), adapt_steps=1000, workers=1)
    assert taught == [21]
    with pytest.raises(NotFittedError):
        new.score(one_camera(1))


# As scikit-learn wants it


def test_parameters_can_be_read_and_changed() -> None:
    weights = tiny_weights()
    new = Detector(weights, head="logit", patches=9)
    assert tuple(new.get_params()) == PARAMETERS
    assert new.get_params()["weights"] is weights
    assert new.set_params(head="sigmoid", seed=4) is new
    assert (new.get_params()["head"], new.get_params()["seed"], new.get_params()["patches"]) == ("sigmoid", 4, 9)
    assert Detector(**new.get_params()).get_params() == new.get_params()


def test_what_was_learnt_with_other_parameters_is_forgotten() -> None:
    found = detector().fit(one_camera(30), workers=1)
    with pytest.raises(NotFittedError):
        found.set_params(sampling="grid").score(one_camera(1))


def test_an_unknown_parameter_names_the_choices_and_changes_nothing() -> None:
    new = detector()
    before = new.get_params()
    with pytest.raises(ValueError, match=r"no parameter 'sensitivity': choose among weights, head, false_alarm_rate"):
        new.set_params(head="logit", sensitivity=3)
    assert new.get_params() == before


def test_a_clone_has_the_parameters_and_has_learnt_nothing(fitted: Detector) -> None:
    again = clone(fitted)
    assert again is not fitted
    theirs, ours = again.get_params(), fitted.get_params()
    assert theirs.pop("weights").digest == ours.pop("weights").digest
    assert theirs == ours
    with pytest.raises(NotFittedError):
        again.score(one_camera(1))
    new = one_camera(3, seed=1)
    assert np.array_equal(again.fit(one_camera(60), workers=1).score(new), fitted.score(new))


def test_released_weights_are_asked_for_by_name() -> None:
    assert Detector.pretrained(seed=3).get_params()["seed"] == 3
    assert Detector.pretrained().get_params()["weights"] == "natural-v1"
    with pytest.raises(WeightsError, match="no released weights are called 'unnatural': choose one of natural-v1"):
        Detector.pretrained("unnatural")


@pytest.mark.slow
def test_the_released_weights_tell_a_camera_from_its_spoiled_images(tmp_path: Path) -> None:
    found, new = natural_detector(), one_camera(6, size=256, seed=9)
    fresh = found.predict(new)
    spoiled = {
        name: found.explain(corrupt(new[0].pixels, name, 4, seed=0)) for name in ("gaussian_noise", "gaussian_blur")
    }
    assert sum(bool(each.is_ood) for each in fresh) <= 2
    for told in spoiled.values():
        assert told.prediction.is_ood
        assert told.prediction.score is not None
        assert told.prediction.score > 3 * found.threshold_
    assert "more noise than normal" in spoiled["gaussian_noise"].reasons
    assert "less fine detail than normal" in spoiled["gaussian_blur"].reasons

    found.save(tmp_path / "camera")
    assert (tmp_path / "camera").stat().st_size < 8e6, "released weights stay outside"
    again = Detector.load(tmp_path / "camera")
    assert again.weights == "natural-v1"
    assert again.predict(new[:2]) == fresh[:2]
