"""What a detector learns from and what it holds out: images, groups of images, and weights that are trained on."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from discopatch import Detector, fitting
from discopatch.calibration import split_images, threshold
from discopatch.demo import crops, sample_photos
from discopatch.encoders import DiscriminatorEncoder, Features
from discopatch.errors import NoImagesError, NormalImagesWarning, ParameterError, TooFewImagesError
from discopatch.explain.reasons import ReasonModel
from discopatch.heads import HEADS, LogitHead, get_head, measure_shifts
from discopatch.heads.base import NO_SHIFTS, Array, GroupNumbers, HeadOutput, ProbeShifts
from discopatch.images import NamedImage, Pixels, RefusalReason
from tests.samples import TOO_SMALL, new_detector, one_camera, save_images, tiny_weights


@dataclass
class Learnt:
    """The features that a head was fitted on and those it was calibrated on, and the images that reasons are from."""

    fit: list[Features] = field(default_factory=list)
    calibration: list[Features] = field(default_factory=list)
    sample: list[Pixels] = field(default_factory=list)


@pytest.fixture
def learnt(monkeypatch: pytest.MonkeyPatch) -> Learnt:
    """What a fit learns from and what it holds out, in the place of learning."""
    found = Learnt()

    class Recorder(LogitHead):
        def fit(
            self, features: Features, shifts: ProbeShifts = NO_SHIFTS, *, groups: GroupNumbers = None
        ) -> "Recorder":
            found.fit.append(features)
            return self

        def outputs(self, features: Features) -> HeadOutput[Array]:
            found.calibration.append(features)
            return super().outputs(features)

    def reasons(pixels: Pixels, **options: Any) -> None:
        found.sample.extend(pixels)

    monkeypatch.setattr(fitting, "get_head", lambda name: Recorder())
    monkeypatch.setattr(fitting, "measure_shifts", lambda *_, **__: {})
    monkeypatch.setattr(fitting, "find_drift", lambda *_, **__: None)  # it fits heads of its own
    monkeypatch.setattr(ReasonModel, "fit", reasons)
    return found


def rows(*features: Features) -> list[bytes]:
    return [row.tobytes() for each in features for row in each.statistics]


def places(images: list[NamedImage], *features: Features) -> list[int]:
    """Which of the images the features are of."""
    known = rows(new_detector().extract_features(images))
    assert len(set(known)) == len(images), "or nothing can be told apart"
    return [known.index(row) for row in rows(*features)]


# Images


@pytest.mark.parametrize(("count", "rate", "held_out"), [(30, 0.1, 9), (60, 0.1, 19), (60, 0.05, 19), (40, 0.2, 9)])
def test_some_images_are_held_out_to_calibrate(learnt: Learnt, count: int, rate: float, held_out: int) -> None:
    images = one_camera(count)
    found = new_detector(false_alarm_rate=rate, reason_images=1).fit(images, workers=1)
    assert (found.guarantee_.n_fit, len(found.calibration_scores_)) == (count - held_out, held_out)
    fit, calibration = places(images, *learnt.fit), places(images, *learnt.calibration)
    assert sorted(fit + calibration) == list(range(count))
    assert len(calibration) == held_out
    sample = places(images, found.encoder_.extract_pixels(np.stack(learnt.sample)))
    assert len(sample) == min(fitting.N_SAMPLED, len(fit)) > fitting.N_PROBED
    assert set(sample) <= set(fit), "what more is learnt from is never held out"


def test_images_brought_to_calibrate_are_used_for_nothing_else(learnt: Learnt) -> None:
    images = one_camera(60)
    found = new_detector().fit(images[:40], calibration=images[40:], workers=1)
    assert places(images, *learnt.fit) == list(range(40))
    assert places(images, *learnt.calibration) == list(range(40, 60))
    assert found.guarantee_.n_fit == 40


def test_calibration_scores_are_the_scores_of_the_images_that_calibrate_in_order() -> None:
    images = one_camera(60)
    found = new_detector(head="combined").fit(images[:40], calibration=images[40:], workers=1)
    assert found.calibration_scores_.tolist() == sorted(found.score(images[40:], workers=1))


@pytest.mark.parametrize(
    ("count", "calibration", "rate", "named"),
    [
        (29, None, 0.1, ["29", "30"]),
        (5, 20, 0.1, ["5", "30"]),
        (30, None, 0.01, ["30", "119", "0.091"]),
        (30, 5, 0.01, ["5", "99"]),
    ],
)
def test_too_few_images_are_refused_with_the_number_that_is_needed(
    count: int, calibration: int | None, rate: float, named: list[str]
) -> None:
    others = None if calibration is None else one_camera(calibration, seed=1)
    with pytest.raises(TooFewImagesError) as raised:
        new_detector(false_alarm_rate=rate).fit(one_camera(count), calibration=others, workers=1)
    assert all(number in str(raised.value) for number in named)


def test_images_that_are_all_the_same_are_refused_and_many_copies_are_named() -> None:
    images = one_camera(60)
    with pytest.raises(
        TooFewImagesError, match=rf"40 images, but only 1 different.*{images[0].name} is there 40 times"
    ):
        new_detector(head="combined").fit([images[0]] * 40, workers=1)
    with pytest.warns(NormalImagesWarning) as told:
        found = new_detector(head="combined").fit([*images, *images[:1] * 15], workers=1)
    assert f"15 of 75 images are exact copies of others ({images[0].name} is there 16 times)" in found.cautions_[0]
    assert [str(each.message) for each in told] == list(found.cautions_)


def test_the_same_seed_gives_the_same_detector_and_another_holds_out_others() -> None:
    images, new = one_camera(60), one_camera(5, seed=1)
    first, again, other = (new_detector(head="combined", seed=seed).fit(images, workers=4) for seed in (0, 0, 1))
    assert np.array_equal(again.calibration_scores_, first.calibration_scores_)
    assert np.array_equal(again.score(new), first.score(new))
    assert not np.array_equal(other.calibration_scores_, first.calibration_scores_)


def test_fitting_again_forgets_what_was_before_and_a_fit_that_fails_leaves_it() -> None:
    images, others = one_camera(30), one_camera(30, seed=1)
    found = new_detector(head="combined").fit(one_camera(30), workers=1).fit(others, workers=1)
    assert np.array_equal(found.score(images), new_detector(head="combined").fit(others, workers=1).score(images))
    before = found.score(images)
    failing: list[tuple[type[Exception], Callable[[], object]]] = [
        (TooFewImagesError, lambda: found.fit(images[:5], workers=1)),
        (NoImagesError, lambda: found.fit([TOO_SMALL] * 40, workers=1)),
        (ParameterError, lambda: found.fit(images, groups=[1, 2], calibration=others, workers=1)),
    ]
    for error, ask in failing:
        with pytest.raises(error):
            ask()
        assert np.array_equal(found.score(images), before)
        assert found.guarantee_.n_fit == 21


def test_fitting_leaves_the_global_random_state_alone() -> None:
    before, legacy = torch.get_rng_state(), np.random.get_state()[1].tolist()  # type: ignore[index]  # noqa: NPY002
    new_detector().fit(one_camera(30), workers=1)
    assert torch.equal(torch.get_rng_state(), before)
    assert np.random.get_state()[1].tolist() == legacy  # type: ignore[index]  # noqa: NPY002


@pytest.mark.usefixtures("learnt")
def test_progress_is_called_for_every_image_with_their_number() -> None:
    images, calls = [*one_camera(30), TOO_SMALL], list[tuple[int, int | None]]()

    def progress(done: int, total: int | None) -> None:
        calls.append((done, total))

    def calls_of(source: object, **options: Any) -> list[tuple[int, int | None]]:
        calls.clear()
        new_detector().fit(source, progress=progress, workers=1, **options)
        return calls.copy()

    assert calls_of(images) == [(done, 31) for done in range(1, 32)]
    assert calls_of(iter(images)) == [(done, 31) for done in range(1, 32)]
    others = one_camera(12, seed=1)
    assert calls_of(images, calibration=others)[31:] == [(done, 12) for done in range(1, 13)]


@pytest.mark.parametrize(
    ("parameters", "named"),
    [
        ({"false_alarm_rate": 0}, "false_alarm_rate is 0"),
        ({"head": "tail"}, r"'tail'.*combined, components, statistics, logit, sigmoid"),
        ({"sampling": "spiral"}, r"'spiral'.*random or grid"),
        ({"patches": 0}, "0 patches"),
        ({"patches": "sparse"}, "sparse"),
        ({"batch_size": 0}, "batch_size is 0"),
        ({"resolution": 63}, "resolution is 63"),
        ({"resolution": "half"}, "resolution is 'half'"),
        ({"precision": "float16"}, "float16"),
    ],
)
def test_a_wrong_parameter_is_refused_before_any_image(parameters: dict[str, Any], named: str) -> None:
    images = (pytest.fail("an image was asked for") for _ in range(30))
    with pytest.raises(ParameterError, match=named):
        new_detector(**parameters).fit(images, workers=1)


@pytest.fixture(scope="module")
def pool() -> tuple[Features, dict[str, NDArray[np.float32]]]:
    """160 images with their features, and how the probes move two of them."""
    pixels = np.stack([each.pixels for each in crops(sample_photos(["temple", "cat"]), 80, size=64, seed=0)])
    encoder = DiscriminatorEncoder(tiny_weights())
    return encoder.extract_pixels(pixels), measure_shifts(encoder.extract_pixels, pixels[:2], seed=0)


@pytest.mark.slow
@pytest.mark.parametrize("head", HEADS)
def test_false_alarms_are_as_rare_as_was_asked_for(
    head: str, pool: tuple[Features, dict[str, NDArray[np.float32]]]
) -> None:
    """Over many detectors, each fitted on images drawn from one pool and asked about others of it."""
    features, shifts = pool
    rate, splits, flagged = 0.05, 100, []
    for seed in range(splits):
        order = np.random.default_rng(seed).permutation(len(features.logits))
        drawn = features.select(order[:60])
        fit, held_out = split_images(np.arange(60), rate, seed=seed, min_fit=20)
        head_ = get_head(head).fit(drawn.select(fit), shifts)
        new = head_.score(features.select(order[60:]))
        assert len(held_out) == 19
        flagged.append(np.mean(new > threshold(head_.score(drawn.select(held_out)), rate)))
    # A detector's own rate follows Beta(1, 19), whose deviation is that of the rate itself.
    assert np.mean(flagged) == pytest.approx(rate, abs=4 * rate / np.sqrt(splits))
    assert np.mean(flagged) > 0.02


# Groups


def bursts(count: int, length: int) -> tuple[list[NamedImage], list[str]]:
    """Images in bursts that do not lie together, and the burst of each."""
    images = one_camera(count * length)
    return images, [f"burst {place % count}" for place in range(count * length)]


def test_groups_are_fitted_or_held_out_as_wholes_and_one_image_of_each_calibrates(learnt: Learnt) -> None:
    images, groups = bursts(24, 3)
    found = new_detector(reason_images=1).fit(images, groups=groups, workers=1)
    fit, calibration = places(images, *learnt.fit), places(images, *learnt.calibration)
    held_out = {groups[place] for place in calibration}
    assert len(calibration) == len(held_out) == 9
    assert fit == [place for place, name in enumerate(groups) if name not in held_out]
    assert (found.guarantee_.n_fit, len(found.calibration_scores_)) == (45, 9)
    sample = places(images, found.encoder_.extract_pixels(np.stack(learnt.sample)))
    assert len(sample) == min(fitting.N_SAMPLED, len(fit))
    assert set(sample) <= set(fit)


def test_a_bad_image_moves_no_other_to_a_group_that_is_not_its_own(learnt: Learnt) -> None:
    images, groups = bursts(24, 3)
    source: list[Any] = list(images)
    for place in (0, 1, 30, 71):
        source[place] = TOO_SMALL
    found = new_detector().fit(source, groups=groups, workers=1)
    assert found.refusals_.count == 4
    fit, calibration = places(images, *learnt.fit), places(images, *learnt.calibration)
    held_out = {groups[place] for place in calibration}
    assert len(calibration) == len(held_out) == 9
    readable = [place for place in range(72) if place not in (0, 1, 30, 71)]
    assert fit == [place for place in readable if groups[place] not in held_out]


@pytest.mark.usefixtures("learnt")
def test_groups_that_do_not_fit_the_request_are_refused() -> None:
    images, groups = bursts(24, 3)
    for wrong in (groups[:-1], [*groups, "burst 0"]):
        with pytest.raises(ParameterError, match=f"{len(wrong)} groups for 72 images"):
            new_detector().fit(images, groups=wrong, workers=1)
    for wrong_with_calibration in (groups, "auto"):
        with pytest.raises(ParameterError, match="leave out calibration"):
            new_detector().fit(images, groups=wrong_with_calibration, calibration=images, workers=1)
    with pytest.raises(ParameterError, match="groups='scene'"):
        new_detector().fit(images, groups="scene", workers=1)
    with pytest.raises(TooFewImagesError, match=r"5 groups.*17"):
        new_detector().fit(images, groups=[place % 5 for place in range(72)], workers=1)


@pytest.mark.parametrize("rule", ["folder", "name", lambda name: Path(name).parent.name])
def test_names_tell_what_belongs_together(learnt: Learnt, tmp_path: Path, rule: Any) -> None:
    for place, image in enumerate(one_camera(72)):
        save_images(tmp_path / f"part {place // 3}", [replace(image, name=f"part {place // 3}_{place}")])
    found = new_detector().fit(tmp_path, groups=rule, workers=1)
    assert (found.guarantee_.n_fit, len(found.calibration_scores_), found.guarantee_.n_groups) == (45, 9, 24)
    assert found.settings()["groups"] == (rule if isinstance(rule, str) else "given")
    assert "one image of each of 9 other groups" in found.guarantee_.text


def test_one_image_of_each_group_of_calibration_images_counts(learnt: Learnt) -> None:
    images = one_camera(100)
    named = [replace(each, name=f"{place // 4}/{place}") for place, each in enumerate(images)]
    found = new_detector().fit(named[:60], calibration=named[60:], groups="folder", workers=1)
    assert (found.guarantee_.n_fit, len(found.calibration_scores_), found.guarantee_.n_groups) == (60, 10, 25)


# Calibration images that were also fitted


def test_calibration_images_that_were_also_fitted_are_refused() -> None:
    images = one_camera(60)
    with pytest.raises(ParameterError, match="12 of 20 calibration images are also fitted"):
        new_detector().fit(images[:40], calibration=images[28:48], workers=1)


def test_near_copies_of_fitted_images_do_not_calibrate() -> None:
    images = crops(sample_photos(["temple", "cat", "coins"]), 20, size=96, seed=0)
    rng = np.random.default_rng(0)
    frames = [
        replace(each, pixels=np.clip(each.pixels + rng.normal(0, 2, each.pixels.shape), 0, 255).astype(np.uint8))
        for each in images[:20]
    ]
    with pytest.raises(ParameterError, match=r"of 20 calibration images are near-copies.*groups='auto'"):
        new_detector().fit(images, calibration=frames, workers=1)


# Before the long work


def test_what_is_no_image_is_named_where_there_are_too_few(tmp_path: Path) -> None:
    empty, loop, cut = tmp_path / "empty", tmp_path / "loop.png", tmp_path / "cut.png"
    empty.mkdir()
    loop.symlink_to(loop)
    (image,) = save_images(tmp_path / "one", one_camera(1))
    cut.write_bytes(image.read_bytes()[:20])
    found = new_detector()
    for source, error, said in (
        ([empty], NoImagesError, "empty: no images at"),
        (loop, NoImagesError, "symbolic links"),
        (image, TooFewImagesError, "^1 normal image; at least 30"),
        ([image, cut, empty], TooFewImagesError, "^1 normal image; 2 of 3 images refused:.*cut.png"),
        ([image, *[cut] * 40], TooFewImagesError, "^1 normal image; 40 of 41 images refused:.*cut.png"),
    ):
        with pytest.raises(error, match=said):
            found.fit(source, workers=1)


@pytest.mark.parametrize(
    ("count", "options", "rate"), [(5, {}, "auto"), (60, {}, 0.01), (60, {"calibration": one_camera(20, seed=1)}, 0.01)]
)
def test_too_few_images_are_counted_before_any_is_read(count: int, options: dict[str, Any], rate: Any) -> None:
    read: list[int] = []
    with pytest.raises(TooFewImagesError):
        new_detector(false_alarm_rate=rate).fit(
            one_camera(count), progress=lambda done, total: read.append(done), workers=1, **options
        )
    assert read == []


# Numbers that are none


def test_images_whose_features_are_no_numbers_are_not_fitted(monkeypatch: pytest.MonkeyPatch) -> None:
    extract, calls = DiscriminatorEncoder.extract_pixels, list[int]()

    def broken(self: DiscriminatorEncoder, pixels: Pixels) -> Features:
        calls.append(len(pixels))
        found = extract(self, pixels)
        return found._replace(logits=found.logits * np.nan) if len(calls) == 2 else found

    monkeypatch.setattr(DiscriminatorEncoder, "extract_pixels", broken)
    found = new_detector(batch_size=1).fit(one_camera(40), workers=1)
    assert found.refusals_.refused == {RefusalReason.NOT_FINITE: 1}
    assert found.guarantee_.n_fit + len(found.calibration_scores_) == 39


def test_a_confidence_holds_out_as_many_images_as_it_needs_and_is_stored(tmp_path: Path) -> None:
    images = one_camera(90)
    fitted = new_detector(false_alarm_rate=0.2, confidence=0.95).fit(images, workers=1)
    # 0.8 ** 14 < 0.05 < 0.8 ** 13; the third of 90 images is 2 * (14 + 1) - 1 and one more
    assert len(fitted.calibration_scores_) == 29
    assert fitted.guarantee_.alarms == round(30 * fitted.false_alarm_rate_) < 0.2 * 30
    assert fitted.guarantee_.likely_rates[1] <= 0.2
    fitted.save(tmp_path / "sure.safetensors")
    again = Detector.load(tmp_path / "sure.safetensors", device="cpu")
    assert (again.confidence, again.false_alarm_rate) == (0.95, 0.2)
    assert again.guarantee_ == fitted.guarantee_
    assert "confidence of 0.95" in again.guarantee_.text
    other = again.with_rate(0.2)
    assert (other.confidence, other.guarantee_.alarms) == (None, 6)
    assert "confidence" not in other.guarantee_.text
    with pytest.raises(TooFewImagesError, match="confidence"):
        new_detector(false_alarm_rate=0.01, confidence=0.95).fit(images, workers=1)
