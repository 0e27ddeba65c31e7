"""`discopatch fit`, `score --detector` and `explain`, as a person types them."""

import csv
import io
import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from discopatch import Detector
from discopatch.images.corrupt import corrupt
from discopatch.images.samples import crops, sample_photos
from tests.cli.conftest import Run
from tests.scoring.samples import save_pictures, tiny_weights


@pytest.fixture(scope="module")
def workshop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Normal images, new ones of which one is noisy and one is broken, and small weights to be quick."""
    folder = tmp_path_factory.mktemp("workshop")
    photo = sample_photos(["cat"])
    save_pictures(folder / "normal", crops(photo, 60, size=80, seed=0))
    fresh = crops(photo, 4, size=80, seed=1)
    save_pictures(folder / "new", fresh)
    Image.fromarray(corrupt(fresh[0].pixels, "gaussian_noise", 5, seed=0)).save(folder / "new" / "noisy.png")
    (folder / "new" / "broken.png").write_bytes(b"nothing")
    tiny_weights().save(folder / "tiny.safetensors")
    return folder


@pytest.fixture
def camera(workshop: Path, run: Run) -> Path:
    path = workshop / "camera-3"
    if not path.exists():
        weights = workshop / "tiny.safetensors"
        status, _, said = run("fit", workshop / "normal", "-o", path, "--weights", weights, "--false-alarm-rate", 0.1)
        assert status == 0, said
        assert "fitted on 41 images, calibrated on 19" in said
    return path


def test_fit_writes_a_detector_that_loads(camera: Path) -> None:
    assert Detector.load(camera).false_alarm_rate == 0.1


def test_fit_never_replaces_a_detector_unasked(camera: Path, workshop: Path, run: Run) -> None:
    before = camera.read_bytes()
    status, _, said = run("fit", workshop / "normal", "-o", camera)
    assert status == 2
    assert "--force" in said
    assert camera.read_bytes() == before


def test_too_few_images_are_refused_with_the_number_that_is_needed(workshop: Path, run: Run) -> None:
    weights = workshop / "tiny.safetensors"
    status, _, said = run("fit", workshop / "normal", "-o", workshop / "never", "--weights", weights)
    assert status == 1
    assert "needs at least 119" in said
    assert not (workshop / "never").exists()


def test_score_prints_every_image_with_its_verdict(camera: Path, workshop: Path, run: Run) -> None:
    status, out, said = run("score", workshop / "new", "--detector", camera)
    assert status == 0
    verdicts = {Path(line.split("\t")[0]).name: line.split("\t")[-1] for line in out.splitlines()}
    assert len(verdicts) == 5
    assert verdicts["noisy.png"] == "unlike normal"
    assert "1 of 6 images refused" in said


def test_csv_and_json_hold_the_same_predictions(camera: Path, workshop: Path, run: Run) -> None:
    _, as_csv, _ = run("score", workshop / "new", "--detector", camera, "--csv")
    _, as_json, _ = run("score", workshop / "new", "--detector", camera, "--json")
    rows, records = list(csv.DictReader(io.StringIO(as_csv))), json.loads(as_json)
    assert list(rows[0]) == ["name", "score", "p_value", "is_ood", "error"]
    assert len(rows) == len(records) == 6
    for row, record in zip(rows, records, strict=True):
        assert row["name"] == record["name"]
        assert bool(row["error"]) == ("error" in record)
        if "score" in record:
            assert float(row["score"]) == record["score"]
            assert json.loads(row["is_ood"]) == record["is_ood"]
    predictions = Detector.load(camera).predict(str(workshop / "new"))
    assert [record.get("score") for record in records] == [each.score for each in predictions]


def test_fail_on_ood_is_status_3_only_when_something_is_flagged(camera: Path, workshop: Path, run: Run) -> None:
    assert run("score", workshop / "new", "--detector", camera, "--fail-on-ood")[0] == 3
    p_values = {each.name: each.is_ood for each in Detector.load(camera).predict(str(workshop / "normal"))}
    clean = next(name for name, flagged in p_values.items() if not flagged)
    assert run("score", clean, "--detector", camera, "--fail-on-ood")[0] == 0


def test_the_report_is_written_and_shows_the_noisy_image(
    camera: Path, workshop: Path, run: Run, tmp_path: Path
) -> None:
    report = tmp_path / "report.html"
    status, _, said = run("score", workshop / "new", "--detector", camera, "--report", report)
    page = report.read_text(encoding="utf-8")
    assert status == 0
    assert str(report) in said
    assert "noisy.png" in page
    assert "broken.png" in page
    assert "data:image" in page


def test_explain_draws_a_heatmap_and_says_how(camera: Path, workshop: Path, run: Run, tmp_path: Path) -> None:
    status, out, _ = run("explain", workshop / "new" / "noisy.png", "--detector", camera, "-o", tmp_path / "heat.png")
    assert status == 0
    assert "unlike normal" in out
    with Image.open(tmp_path / "heat.png") as picture:
        assert np.asarray(picture).std() > 0


@pytest.mark.parametrize(
    ("words", "remedy"),
    [
        (("score", "x.png"), "give either --detector"),
        (("score", "x.png", "--weights", "w", "--report", "r"), "give --detector"),
        (("score", "x.png", "--detector", "d", "--csv", "--json"), "choose one of --csv and --json"),
    ],
)
def test_wrong_options_name_the_right_ones(run: Run, words: tuple[str, ...], remedy: str) -> None:
    status, _, said = run(*words)
    assert status == 2
    assert remedy in " ".join(said.replace("\u2502", " ").split())


def test_a_missing_detector_is_said_in_one_line(run: Run, workshop: Path) -> None:
    status, _, said = run("score", workshop / "new", "--detector", workshop / "nowhere")
    assert status == 1
    assert said.startswith("error: no detector at")
    assert len(said.splitlines()) == 1
