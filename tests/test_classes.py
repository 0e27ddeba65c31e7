"""Several kinds of parts in one detector: which class an image is of, and a calibration for each class."""

import csv
import io
import json
from collections import Counter
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image
from starlette.testclient import TestClient

from discopatch import Detector, folder_test
from discopatch.batch import read_scores, rescore, score_to
from discopatch.batch.folder import open_scores
from discopatch.calibration import Calibration, NormalClass, p_values
from discopatch.classes import Partition, assign, names_of
from discopatch.errors import NormalImagesWarning, ParameterError, TooFewImagesError, WeightsError
from discopatch.export import Runtime, export_detector
from discopatch.history import History
from discopatch.images import NamedImage
from discopatch.monitor import Monitor
from discopatch.results import Prediction, as_row, column_types, from_row
from discopatch.serve.app import create_app
from discopatch.serve.settings import ServeSettings
from tests.cli.conftest import Run, assert_usage_error
from tests.cli.conftest import run as run
from tests.samples import (
    NumberDetector,
    camera_pixels,
    new_detector,
    save_images,
    tiny_weights,
    with_header,
    with_tensors,
)

ALL = slice(None)
KINDS = ("bolt", "nut", "ring")


def parts(kind: str, count: int, *, seed: int = 0, name: str | None = None) -> list[NamedImage]:
    """Images of one camera: as they are, with noise, or with stripes."""
    number = KINDS.index(kind)
    pixels = camera_pixels(count, seed=seed + 10 * number).astype(np.float64)
    noise = np.random.default_rng([seed, number]).normal(64, 50, pixels.shape)
    stripes = 100.0 * (np.arange(64) % 4 < 2)[:, None, None]
    found = (pixels, pixels / 2 + noise, pixels / 2 + stripes)[number].clip(0, 255).astype(np.uint8)
    return [NamedImage(f"line/{name or kind}/{place}.png", each) for place, each in enumerate(found)]


def fitted(images: list[NamedImage], **options: Any) -> Detector:
    return new_detector(head="statistics", **options).fit(images, classes="folder", workers=1)


@cache
def three_kinds() -> Detector:
    return fitted([*parts("bolt", 45), *parts("nut", 60), *parts("ring", 45)])


def new_images() -> list[NamedImage]:
    return [image for kind in KINDS for image in parts(kind, 8, seed=1)]


# Which class


def test_each_image_is_assigned_to_its_kind_and_a_class_has_a_calibration_of_its_own() -> None:
    found = three_kinds()
    assert [each.name for each in found.classes_] == [*KINDS]
    assert sum(each.images for each in found.classes_) == found.guarantee_.n_fit
    for each in found.classes_:
        own = found.calibration_.classes[each.name]
        assert len(own.scores) == each.calibrating >= 9
        assert own.rate == found.false_alarm_rate_ == 0.1
    predictions = found.predict(new_images(), workers=1)
    right = [one.class_name == kind for one, kind in zip(predictions, np.repeat(KINDS, 8), strict=True)]
    assert np.mean(right) > 0.8  # as many as a random network tells apart
    for one in predictions:
        own = found.calibration_.classes[str(one.class_name)]
        p = p_values([one.score or 0], own.scores)[0]
        assert (one.p_value, one.is_ood) == (p, p <= 0.1 + 1e-9)


def test_the_class_of_an_image_does_not_depend_on_its_neighbours() -> None:
    images = new_images()
    together = three_kinds().predict(images, workers=1)
    assert [three_kinds().predict([each], workers=1)[0] for each in images] == list(together)


def test_names_of_classes_are_folders_below_their_common_one_functions_or_one_an_image() -> None:
    names, positions = ["a/x/bolt/1.png", "a/x/nut/big/2.png", "a/x/bolt/3.png"], np.arange(3)
    assert names_of("folder", names, positions) == ["bolt", "nut/big", "bolt"]
    assert names_of(lambda name: len(name), names, positions) == ["14", "17", "14"]
    assert names_of(["u", "v", "w"], names[:2], np.array([0, 2])) == ["u", "w"]
    with pytest.raises(ParameterError, match="60 characters"):
        names_of(["x" * 61], names[:1], positions[:1])


def two_means(count: int, apart: float, *, seed: int = 0) -> tuple[NDArray[np.float32], NDArray[np.intp]]:
    """Statistics of two kinds, and the kind of each."""
    rng, kinds = np.random.default_rng(seed), np.arange(count) % 2
    values = rng.normal(size=(count, 6)) @ rng.normal(size=(6, 6))
    values[:, 2] += apart * kinds
    return values.astype(np.float32), kinds


def test_the_nearest_mean_is_that_of_the_linear_discriminant() -> None:
    from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

    values, kinds = two_means(4000, 2.0)
    partition = Partition(("a", "b"), kinds, np.arange(2))
    found = assign(partition.nearest(values, np.arange(len(values)), ALL), values)
    expected = LinearDiscriminantAnalysis(priors=[0.5, 0.5]).fit(values, kinds).predict(values)
    assert (found == expected).mean() > 0.99  # the covariance is shrunk


# Pooling, merging, and too few images


def test_classes_with_few_images_are_pooled_with_the_next_until_they_are_enough() -> None:
    names = ["a"] * 40 + ["b"] * 5 + ["c"] * 10 + ["d"] * 35 + ["e"] * 60
    found = Partition.of(names, np.arange(len(names)), 30)
    assert [found.members(number) for number in range(found.total)] == [("a",), ("b", "c", "d"), ("e",)]
    assert "b + c + d have too few images or groups, of which 30 are needed" in found.cautions[0]
    alone = Partition.of(names[:45], np.arange(45), 39)
    assert [alone.members(number) for number in range(alone.total)] == [("a", "b")]
    with pytest.raises(ParameterError, match="classes: 1"):
        Partition.of(["a"] * 40, np.arange(40), 30)
    with pytest.raises(ParameterError, match="one class"):
        Partition.of(["a", "b"], np.zeros(2, int), 1)


@pytest.mark.parametrize(("apart", "classes"), [(0.5, 1), (8.0, 2)])
def test_classes_that_cannot_be_told_apart_are_merged_by_the_fitted_images_alone(apart: float, classes: int) -> None:
    values, kinds = two_means(400, apart)
    rows = np.arange(0, 400, 4) + np.arange(100) % 2
    partition = Partition(("a", "b"), kinds, np.arange(2))
    found = partition.merged(values, rows, ALL)
    assert found.total == classes
    assert len(found.cautions) == 2 - classes
    others = np.setdiff1d(np.arange(400), rows)
    values[others] = values[others][::-1]  # of images that calibrate
    assert np.array_equal(partition.merged(values, rows, ALL).numbers, found.numbers)


def test_what_was_pooled_and_merged_is_a_caution_and_a_class_with_members() -> None:
    few = [*parts("ring", 25), *parts("ring", 20, seed=3, name="hoop")]
    with pytest.warns(NormalImagesWarning, match="hoop \\+ ring have too few images"):
        pooled = fitted([*parts("bolt", 60), *few], false_alarm_rate="auto")
    assert [each.members for each in pooled.classes_] == [("bolt",), ("hoop", "ring")]
    assert "hoop + ring" in pooled.cautions_[0]
    alike = [*parts("ring", 45), *parts("ring", 45, seed=3, name="hoop")]
    with pytest.warns(NormalImagesWarning, match="hoop \\+ ring look alike"):
        merged = fitted([*parts("bolt", 60), *alike])
    assert [each.name for each in merged.classes_] == ["bolt", "hoop + ring"]


def test_a_class_with_too_few_assigned_images_is_an_error_that_names_it() -> None:
    partition = Partition(("a", "b"), np.arange(2), np.arange(2))
    with pytest.raises(
        TooFewImagesError, match=r"8 calibration images assigned to the class b.*5\.00% needs at least 19"
    ):
        partition.check(np.array([20, 8]), 0.05, 0.05, None)
    assert partition.check(np.array([20, 10]), 0.05, "auto", None) == 0.1
    with pytest.raises(TooFewImagesError):
        partition.check(np.array([20, 8]), 0.05, "auto", None)
    with pytest.raises(TooFewImagesError, match="class"):
        three_kinds().with_rate(0.001)


def test_classes_that_do_not_fit_the_request_are_refused() -> None:
    images = parts("bolt", 40)
    with pytest.raises(ParameterError, match="40 images"):
        new_detector().fit(images, classes=["a", "b"], workers=1)
    with pytest.raises(ParameterError, match="classes='name'"):
        new_detector().fit(images, classes="name", workers=1)
    with pytest.raises(ParameterError, match="cannot be updated"):
        three_kinds().update(images)


# The promise


def test_p_values_are_exact_for_each_class_and_not_only_on_average() -> None:
    """Scores of three classes with other distributions, some of which are assigned to a wrong class."""
    rng, images, draws = np.random.default_rng(0), 59, 3000
    flagged, flagged_without, seen = np.zeros(3), np.zeros(3), np.zeros(3)
    for _ in range(draws):
        kind = rng.integers(3, size=images + 1)
        scores = rng.normal(kind, 1 + kind)
        assigned = np.where(rng.random(images + 1) < 0.05, rng.integers(3, size=images + 1), kind)
        order = np.lexsort((scores[:-1], assigned[:-1]))
        counts = np.bincount(assigned[:-1], minlength=3)
        if counts.min() < 9:
            continue
        classes = [NormalClass(str(number), (str(number),), 20, int(count)) for number, count in enumerate(counts)]
        found = Calibration.of_classes(scores[:-1][order], 0.1, classes)
        decision = found.decide(float(scores[-1]), int(assigned[-1]))
        assert decision.class_name == str(assigned[-1])
        seen[assigned[-1]] += 1
        # With k / (n + 1) below the rate, by as much fewer are flagged.
        flagged[assigned[-1]] += (
            decision.is_ood * 0.1 * (counts[assigned[-1]] + 1) / int(0.1 * (counts[assigned[-1]] + 1))
        )
        flagged_without[kind[-1]] += scores[-1] > found.threshold
    assert flagged / seen == pytest.approx(np.full(3, 0.1), abs=4 * np.sqrt(0.1 / (draws / 3)))
    assert flagged_without[2] / seen[2] > 0.2


def class_detector() -> NumberDetector:
    """A detector of numbers in two classes."""
    found = NumberDetector()
    scores = np.concatenate([np.sort(np.random.default_rng(1).normal(size=99)), np.arange(99.0)])
    classes = [NormalClass(name, (name,), 40, 99) for name in "ab"]
    found._calibration = Calibration.of_classes(scores, 0.1, classes)
    return found


def drawn(
    detector: NumberDetector, numbers: NDArray[np.intp], rng: np.random.Generator, shift: float = 0
) -> list[Prediction]:
    """Predictions of normal images of these classes."""
    scores = np.where(numbers, rng.permutation(99)[np.arange(len(numbers)) % 99], rng.normal(shift, 1, len(numbers)))
    pairs = enumerate(zip(scores.tolist(), numbers.tolist(), strict=True))
    return [
        Prediction.make(str(place), score, detector.calibration_, number=number) for place, (score, number) in pairs
    ]


def test_normal_folders_pass_whatever_the_mix_of_classes_and_others_fail() -> None:
    rng, failed = np.random.default_rng(2), []
    for _ in range(400):
        scores = np.concatenate([np.sort(rng.normal(size=99)), np.sort(rng.normal(50, 9, size=99))])
        detector = class_detector()
        classes = [NormalClass(name, (name,), 40, 99) for name in "ab"]
        detector._calibration = Calibration.of_classes(scores, 0.1, classes)
        numbers = np.array([0] * 5 + [1] * 45)
        new = np.where(numbers, rng.normal(50, 9, 50), rng.normal(size=50))
        predictions = [
            Prediction.make("", score, detector.calibration_, number=number)
            for score, number in zip(new.tolist(), numbers.tolist(), strict=True)
        ]
        failed.append(folder_test(predictions, detector, fail_rate=0.05).fails)
    assert np.mean(failed) < 0.05 + 4 * np.sqrt(0.05 / 400)
    assert folder_test(drawn(class_detector(), np.zeros(40, int), rng, shift=1.5), class_detector()).fails


def test_the_monitor_takes_any_mix_of_classes_for_normal_and_notices_a_change_of_one() -> None:
    detector, rng = class_detector(), np.random.default_rng(3)
    monitor = Monitor(detector)
    assert not [each for each in drawn(detector, np.arange(300) // 150, rng) if monitor.update(each).alarm]
    again = Monitor.from_bytes(monitor.to_bytes(), detector)
    for prediction in drawn(detector, np.zeros(100, int), rng, shift=2):
        assert again.update(prediction) == monitor.update(prediction)
    since = monitor.status.since
    assert since is not None
    assert 290 <= since.image <= 320
    with pytest.raises(ParameterError, match="fitted detector"):
        monitor.update(Prediction("", 0.0, 0.5, is_ood=False))


# With other parameters


def test_with_a_confidence_each_class_has_the_rate_that_keeps_the_promise() -> None:
    images = [*parts("bolt", 70), *parts("nut", 90)]
    found = fitted(images, false_alarm_rate=0.1, confidence=0.9)
    assert found.guarantee_.promised_rate == 0.1
    assert all(each.alarms and each.likely_rates[1] < 0.12 for each in found.guarantee_.classes.values())
    assert found.with_rate(0.1).guarantee_.classes["nut"].alarms >= found.guarantee_.classes["nut"].alarms


def test_groups_stay_together_and_calibration_images_of_their_own_are_assigned() -> None:
    images = [
        replace(each, name=f"{each.name[:-4]}_{place % 3}.png")
        for place, each in enumerate([*parts("bolt", 120), *parts("nut", 120)])
    ]
    groups = [f"{place // 120} {place % 120 // 3}" for place in range(240)]
    found = new_detector(head="statistics").fit(images, classes="folder", groups=groups, workers=1)
    assert found.guarantee_.n_groups == 80
    assert {each.calibrating for each in found.classes_} <= set(range(9, 15))
    others = [*parts("bolt", 15, seed=4), *parts("nut", 20, seed=4)]
    found = new_detector(head="statistics").fit(
        [*parts("bolt", 40), *parts("nut", 40)], classes="folder", calibration=others, workers=1
    )
    assert [(each.name, each.images) for each in found.classes_] == [("bolt", 40), ("nut", 40)]
    assigned = [each.class_name for each in found.predict(others, workers=1)]
    assert [assigned.count(each.name) for each in found.classes_] == [each.calibrating for each in found.classes_]


# Stored and printed


def test_a_stored_detector_predicts_the_same_and_damage_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "classes.safetensors"
    three_kinds().save(path)
    found = Detector.load(path, device="cpu")
    assert found.predict(new_images(), workers=1) == three_kinds().predict(new_images(), workers=1)
    assert (found.settings(), found.digest_) == (three_kinds().settings(), three_kinds().digest_)
    assert found.with_rate(0.2).guarantee_.text == three_kinds().with_rate(0.2).guarantee_.text
    for change in ("missing", "renamed", "counts"):
        three_kinds().save(path)
        headers: dict[str, Any] = {
            "missing": lambda header: header.update(classes=header["classes"][:2]),
            "renamed": lambda header: header["classes"][0].update(name="nut"),
            "counts": lambda header: header["classes"][0].update(calibrating=header["classes"][0]["calibrating"] + 1),
        }
        with pytest.raises(WeightsError):
            Detector.load(with_header(path, headers[change]))
    three_kinds().save(path)
    numbers = torch.tensor([0.0, 1.0, 7.0], dtype=torch.float64)
    with pytest.raises(WeightsError, match="classes"):
        Detector.load(with_tensors(path, lambda tensors: tensors.update({"head/classes.numbers": numbers})))


def test_a_file_from_before_classes_predicts_the_same(tmp_path: Path) -> None:
    plain, path = new_detector(head="statistics").fit(parts("bolt", 40), workers=1), tmp_path / "plain.safetensors"
    plain.save(path)
    found = Detector.load(with_header(path, lambda header: header.pop("classes")), device="cpu")
    assert found.predict(new_images()[:4], workers=1) == plain.predict(new_images()[:4], workers=1)
    assert (found.classes_, found.column_names) == ((), ())


def test_the_class_is_a_column_only_where_there_are_classes() -> None:
    found = three_kinds()
    row = as_row(found.predict(new_images()[:1], workers=1)[0], found.column_names)
    assert row["class"] == "bolt"
    assert list(row) == list(column_types(found.column_names))
    assert as_row(from_row(row), found.column_names) == row
    assert "class" not in column_types(new_detector().component_names)
    assert list(found.predict(new_images()[:1], workers=1).to_pandas()["class"]) == ["bolt"]


def test_an_evaluation_counts_what_each_class_flags() -> None:
    found = three_kinds()
    noise = [
        replace(each, pixels=np.random.default_rng(1).integers(0, 256, each.pixels.shape).astype(np.uint8))
        for each in new_images()
    ]
    result = found.evaluate(new_images(), noise, workers=1)
    own = result.own_rate
    assert own.found is not None
    assert own.found.flagged == found.predict(noise, workers=1).is_ood.sum()
    assert result.rates[0].found is None  # 1 % needs more images of each class


@pytest.mark.slow
@pytest.mark.parametrize("format", ["onnx", "openvino"])
def test_an_export_assigns_classes_like_the_detector(tmp_path: Path, format: str) -> None:
    found = three_kinds()
    exported = export_detector(found, tmp_path / format, format=format, reference=new_images())
    assert exported.parity.predictions_changed == 0
    runtime = Runtime.load(tmp_path / format)
    expected, predicted = (each.predict(new_images(), workers=1) for each in (found, runtime))
    assert [each.class_name for each in predicted] == [each.class_name for each in expected]
    assert (runtime.classes_, runtime.column_names) == (found.classes_, found.column_names)
    assert runtime.explain(new_images()[0]).prediction.class_name == "bolt"
    new = [image for kind in KINDS for image in parts(kind, 30, seed=5)]
    export_detector(found, tmp_path / "calibrated", format=format, calibration=new)
    again = Runtime.load(tmp_path / "calibrated")
    assert sum(each.calibrating for each in again.classes_) == 90
    assert again.with_rate(0.05).guarantee_.bound <= 0.05


@pytest.mark.parametrize("kind", ["--csv", "--json"])
def test_fit_prints_the_classes_and_rows_have_them(run: Run, tmp_path: Path, kind: str) -> None:
    for name, at in (("bolt", 45), ("nut", 45), ("ring", 12)):
        named = [replace(each, name=f"{number:02}") for number, each in enumerate(parts(name, at))]
        save_images(tmp_path / "line" / name, named)
    tiny_weights().save(tmp_path / "tiny.safetensors")
    options = ("--weights", tmp_path / "tiny.safetensors", "--head", "statistics", "--device", "cpu", "--workers", 1)
    fit = ("fit", tmp_path / "line", "-o", tmp_path / "detector", "--reason-images", 0, "--detection-images", 0)
    finished = run(*fit, *options, "--classes", "folder")
    assert finished.status == 0, finished.err
    table = [line.split() for line in finished.err.splitlines() if line.rstrip().endswith("%")]
    found = Detector.load(tmp_path / "detector")
    assert [line[-3:-1] for line in table] == [[str(each.images), str(each.calibrating)] for each in found.classes_]
    assert "too few images" in finished.err
    both = ("--force", "--update", tmp_path / "detector", "--classes", "folder")
    assert_usage_error(run(*fit, *both), "--update")
    finished = run("score", tmp_path / "line" / "nut", "--detector", tmp_path / "detector", kind)
    assert finished.status == 0, finished.err
    rows = json.loads(finished.out) if kind == "--json" else list(csv.DictReader(io.StringIO(finished.out)))
    usual, count = Counter(each["class"] for each in rows).most_common(1)[0]
    assert count > 0.8 * len(rows)
    assert "nut" in next(each.members for each in found.classes_ if each.name == usual)


def test_parquet_has_the_class_and_another_rate_decides_by_it(tmp_path: Path) -> None:
    for kind in KINDS:
        save_images(
            tmp_path / "new",
            [replace(each, name=f"{kind}{place}") for place, each in enumerate(parts(kind, 8, seed=1))],
        )
    score_to(three_kinds(), tmp_path / "new", tmp_path / "scores", workers=1)
    expected = three_kinds().with_rate(0.3).predict(tmp_path / "new", workers=1)
    rescore(tmp_path / "scores", three_kinds().with_rate(0.3), tmp_path / "rescored")
    table = read_scores(tmp_path / "rescored").to_table()
    assert table["class"].to_pylist() == [each.class_name for each in expected]
    assert table["is_ood"].to_pylist() == expected.is_ood.tolist()
    assert open_scores(tmp_path / "rescored").summary().flagged == expected.is_ood.sum() > 0
    assert [each.class_name for each in open_scores(tmp_path / "scores").predictions()] == table["class"].to_pylist()


def test_the_history_and_the_service_have_the_class(tmp_path: Path) -> None:
    prediction = three_kinds().predict(new_images()[:1], workers=1)[0]
    with History(tmp_path / "history.sqlite") as history:
        with history.transaction():
            history.add("line", prediction, time=0.0)
        assert history.recent("line")[0].prediction == prediction
    path = tmp_path / "line.safetensors"
    three_kinds().save(path)
    image = io.BytesIO()
    Image.fromarray(new_images()[0].pixels).save(image, "PNG")
    app = create_app(ServeSettings(detectors={"line": path}, device="cpu"))
    with TestClient(app, base_url="http://127.0.0.1") as client:
        answer = client.post("/v1/detectors/line/score", files=[("files", ("a.png", image.getvalue()))])
        assert [each["class"] for each in answer.json()["predictions"]] == ["bolt"]
        assert client.get("/v1/detectors/line").json()["settings"]["classes"][0]["name"] == "bolt"
