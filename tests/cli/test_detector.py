"""`discopatch fit`, `score --detector` and `explain`."""

import csv
import io
import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from discopatch import Detector
from discopatch.corruptions import corrupt
from discopatch.images import NamedImage
from discopatch.images.samples import crops, sample_photos
from tests.samples import save_images, tiny_weights

from .conftest import Run, assert_error, assert_usage_error


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Normal images, new ones of which one is noisy and one is broken, and small weights to be quick."""
    folder = tmp_path_factory.mktemp("camera")
    photo = sample_photos(["cat"])
    save_images(folder / "normal", crops(photo, 60, size=80, seed=0))
    new = crops(photo, 4, size=80, seed=1)
    save_images(folder / "new", new)
    Image.fromarray(corrupt(new[0].pixels, "gaussian_noise", 5, seed=0)).save(folder / "new" / "noisy.png")
    (folder / "new" / "broken.png").write_bytes(b"nothing")
    tiny_weights().save(folder / "tiny.safetensors")
    return folder


@pytest.fixture
def detector(folder: Path, run: Run) -> Path:
    """Fitted once."""
    path = folder / "camera-3"
    if not path.exists():
        weights = folder / "tiny.safetensors"
        status, out, err = run("fit", folder / "normal", "-o", path, "--weights", weights, "--false-alarm-rate", 0.1)
        assert (status, out) == (0, ""), err
        assert "41" in err, "images to fit"
        assert "19" in err, "images to calibrate"
    return path


def test_fit_writes_a_detector_that_loads(detector: Path) -> None:
    loaded = Detector.load(detector)
    assert (loaded.false_alarm_rate, loaded.patches, loaded.n_fit_) == (0.1, "dense", 41)


def test_options_of_fit_reach_the_detector(folder: Path, run: Run, tmp_path: Path) -> None:
    weights, out = folder / "tiny.safetensors", tmp_path / "patches"
    options = ("--patches", 9, "--sampling", "grid", "--seed", 7, "--head", "statistics", "--batch-size", 2)
    save_images(tmp_path / "held-out", crops(sample_photos(["cat"]), 12, size=80, seed=3))
    calibration = ("--calibration", tmp_path / "held-out", "--false-alarm-rate", 0.1, "--workers", 1)
    finished = run("fit", folder / "normal", "-o", out, "--weights", weights, *options, *calibration)
    assert finished.status == 0, finished.err
    loaded = Detector.load(out)
    assert (loaded.patches, loaded.sampling, loaded.seed, loaded.head) == (9, "grid", 7, "statistics")
    assert (loaded.n_fit_, len(loaded.calibration_scores_)) == (60, 12)


def test_without_a_rate_fit_takes_the_smallest_that_the_images_allow_and_names_the_next(
    folder: Path, run: Run, tmp_path: Path
) -> None:
    finished = run("fit", folder / "normal", "-o", tmp_path / "auto", "--weights", folder / "tiny.safetensors")
    assert finished.status == 0, finished.err
    assert "at most 1 in 20 (5.0%) of new normal images" in finished.err
    assert "The false-alarm rate is 5%; 98 images would allow 2%." in finished.err
    assert Detector.load(tmp_path / "auto").false_alarm_rate_ == 0.05


def test_bursts_are_told_of_and_groups_are_taken_by_name(folder: Path, run: Run, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for number, image in enumerate(crops(sample_photos(["cat"]), 27, size=80, seed=0)):
        for frame in range(4):
            noisy = np.clip(image.pixels + rng.normal(0, 1, image.pixels.shape), 0, 255).astype(np.uint8)
            save_images(tmp_path / "bursts", [NamedImage(f"scene-{number:02d}-{frame}", noisy)])
    fit = ("fit", tmp_path / "bursts", "--weights", folder / "tiny.safetensors", "-o")
    alone = run(*fit, tmp_path / "alone")
    assert alone.status == 0, alone.err
    assert "caution: 100% of the images have a near-copy among the others" in alone.err
    assert "about 27 groups" in alone.err
    grouped = run(*fit, tmp_path / "grouped", "--groups", "name")
    assert grouped.status == 0, grouped.err
    assert "near-copy" not in grouped.err
    assert "calibrated on one image of each of 9 other groups: at most 1 in 10" in grouped.err


def test_fit_never_replaces_a_detector_unasked(detector: Path, folder: Path, run: Run) -> None:
    before = detector.read_bytes()
    assert_usage_error(run("fit", folder / "normal", "-o", detector), "--force")
    assert detector.read_bytes() == before


@pytest.mark.parametrize(
    ("options", "mentioned"),
    [
        (("--false-alarm-rate", 0.01), "119"),  # how many images that needs
        (("--groups", "scene"), "'folder', 'name', 'auto'"),
        (("--head", "tail"), "'tail'"),
        (("--sampling", "spiral", "--patches", 4), "'spiral'"),
        (("--precision", "float16"), "float16"),
        (("--false-alarm-rate", 2), "false_alarm_rate"),
    ],
)
def test_what_cannot_be_fitted_is_an_error_and_writes_nothing(
    folder: Path, run: Run, options: tuple[object, ...], mentioned: str
) -> None:
    finished = run("fit", folder / "normal", "-o", folder / "never", "--weights", folder / "tiny.safetensors", *options)
    assert_error(finished, mentioned)
    assert not (folder / "never").exists()


def test_score_prints_every_image_with_its_decision(detector: Path, folder: Path, run: Run) -> None:
    status, out, err = run("score", folder / "new", "--detector", detector)
    assert status == 0
    decisions = {Path(line.split("\t")[0]).name: line.split("\t")[-1] for line in out.splitlines()}
    assert len(decisions) == 6
    assert decisions["broken.png"].startswith("not_an_image")
    assert decisions["noisy.png"] == "out-of-distribution"
    assert "normal" in decisions.values()
    assert "1 of 6" in err


def test_csv_and_json_hold_the_same_predictions(detector: Path, folder: Path, run: Run) -> None:
    as_csv, as_json = (run("score", folder / "new", "--detector", detector, kind).out for kind in ("--csv", "--json"))
    rows, records = list(csv.DictReader(io.StringIO(as_csv))), json.loads(as_json)
    predicting = Detector.load(detector)
    columns = ["name", "score", "p_value", "is_ood", *predicting.component_names, "significant", "error"]
    assert list(rows[0]) == columns
    assert len(rows) == len(records) == 6
    for row, record in zip(rows, records, strict=True):
        assert row["name"] == record["name"]
        assert bool(row["error"]) == ("error" in record)
        if "score" in record:
            assert float(row["score"]) == record["score"]
            assert json.loads(row["is_ood"]) == record["is_ood"]
    predictions = predicting.predict(folder / "new")
    assert [record.get("score") for record in records] == [each.score for each in predictions]


def test_the_report_is_written_and_shows_the_noisy_image(
    detector: Path, folder: Path, run: Run, tmp_path: Path
) -> None:
    report = tmp_path / "report.html"
    finished = run("score", folder / "new", "--detector", detector, "--report", report, "--close-ups", 1)
    page = report.read_text(encoding="utf-8")
    assert finished.status == 0
    assert str(report) in finished.err
    assert "noisy.png" in page
    assert "broken.png" in page
    assert page.count("data:image") == 2, "one image and its heatmap"


def test_explain_draws_a_heatmap_and_prints_reasons(detector: Path, folder: Path, run: Run, tmp_path: Path) -> None:
    noisy, heatmap = folder / "new" / "noisy.png", tmp_path / "heatmap.png"
    status, out, _ = run("explain", noisy, "--detector", detector, "-o", heatmap)
    assert status == 0
    assert "out-of-distribution" in out
    for reason in Detector.load(detector).explain(noisy).reasons:
        assert f"{reason.text} (z = {reason.z:.1f})" in out
    with Image.open(heatmap) as image:
        assert np.asarray(image).std() > 0


def test_a_detector_of_components_prints_which_of_them_speak(folder: Path, run: Run, tmp_path: Path) -> None:
    path, noisy = tmp_path / "components", folder / "new" / "noisy.png"
    Detector(tiny_weights(), head="components", false_alarm_rate=0.1).fit(folder / "normal", workers=1).save(path)
    loaded = Detector.load(path)
    explanation = loaded.explain(noisy)
    out = run("explain", noisy, "--detector", path, "-o", tmp_path / "heatmap.png").out
    assert explanation.components
    for component in explanation.components:
        assert f"{component.text} (z = {component.z:.1f})" in out
    as_csv, as_json = (run("score", folder / "new", "--detector", path, kind).out for kind in ("--csv", "--json"))
    rows, records = list(csv.DictReader(io.StringIO(as_csv))), json.loads(as_json)
    assert list(rows[0]) == ["name", "score", "p_value", "is_ood", *loaded.component_names, "significant", "error"]
    for row, record, prediction in zip(rows, records, loaded.predict(folder / "new"), strict=True):
        for each in prediction.components:
            assert float(row[each.name]) == record[each.name] == each.z
        if prediction.components:
            assert row["significant"].split() == record["significant"] == [each.name for each in prediction.significant]
        else:
            assert "significant" not in record


@pytest.mark.parametrize(
    ("arguments", "mentioned"),
    [
        (("score", "x.png"), ("--detector", "--weights")),
        (("score", "x.png", "--weights", "w", "--detector", "d"), ("--detector", "--weights")),
        (("score", "x.png", "--weights", "w", "--report", "r"), ("--detector",)),
        (("score", "x.png", "--weights", "w", "--fail-on", "any"), ("--fail-on", "--detector")),
        (("score", "x.png", "--weights", "w", "--fail-on-ood"), ("--fail-on-ood", "--detector")),
        (("score", "x.png", "--detector", "d", "--fail-on", "all"), ("--fail-on", "folder", "any")),
        (("score", "x.png", "--detector", "d", "--fail-on", "any", "--fail-on-ood"), ("--fail-on folder",)),
        (("score", "x.png", "--detector", "d", "--allow-refused"), ("--fail-on",)),
        (("score", "x.png", "--detector", "d", "--csv", "--json"), ("--csv", "--json")),
        (("fit", "x.png", "-o", "d", "--patches", "0"), ("--patches",)),
    ],
)
def test_wrong_options_name_the_right_ones(run: Run, arguments: tuple[str, ...], mentioned: tuple[str, ...]) -> None:
    assert_usage_error(run(*arguments), *mentioned)


def test_a_missing_detector_is_an_error(run: Run, folder: Path) -> None:
    finished = run("score", folder / "new", "--detector", folder / "nowhere")
    assert_error(finished, "nowhere")
    assert len(finished.err.splitlines()) == 1
