"""`discopatch fit`, `score` and `explain` as they are typed: output, exit statuses, mistakes in one line."""

import csv
import io
import json
import os
import shutil
import subprocess
import sys
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from discopatch import Detector, folder_test
from discopatch.cli.options import readers_of, size_of
from discopatch.corruptions import corrupt
from discopatch.images import DEFAULT_WORKERS, Processes
from discopatch.results import as_row, column_types
from tests.encoders.outside_samples import save_checkpoint
from tests.samples import new_detector, one_camera, save_images, tiny_weights

from .conftest import Run, assert_error, assert_usage_error

COMMAND = Path(sys.executable).with_name("discopatch")
FAST = ("--device", "cpu", "--reason-images", 2, "--detection-images", 1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Small weights, a detector, and folders of normal, noisy and broken images."""
    folder = tmp_path_factory.mktemp("camera")
    tiny_weights(seed=2).save(folder / "tiny.safetensors")
    save_images(folder / "fit", one_camera(60))
    normal = one_camera(40, seed=1)
    save_images(folder / "normal", normal)
    (folder / "noisy").mkdir()
    for place, image in enumerate(normal[:12]):
        noisy = corrupt(image.pixels, "gaussian_noise", 5, seed=place)
        Image.fromarray(noisy).save(folder / "noisy" / f"{image.name}.png")
    save_images(folder / "mixed", normal[:3])
    shutil.copy(folder / "noisy" / "temple-0.png", folder / "mixed" / "noisy.png")
    for kind in ("mixed", "broken"):
        (folder / kind).mkdir(exist_ok=True)
        (folder / kind / "a-broken.png").write_bytes(b"no image")
        (folder / kind / "empty.png").write_bytes(b"")
    fitted = new_detector(folder / "tiny.safetensors", head="statistics", false_alarm_rate=0.05, reason_images=2)
    fitted.fit(folder / "fit", workers=1).save(folder / "detector")
    return folder


@pytest.fixture
def score(folder: Path, run: Run) -> Run:
    return lambda kind, *options: run("score", folder / kind, "--detector", folder / "detector", *options)


def rows_of(finished: Any, kind: str) -> list[dict[str, Any]]:
    return json.loads(finished.out) if kind == "--json" else list(csv.DictReader(io.StringIO(finished.out)))


def test_fit_writes_a_detector_with_the_options(folder: Path, run: Run, tmp_path: Path) -> None:
    options = ("--patches", 9, "--seed", 7, "--head", "statistics", "--batch-size", 2, "--workers", 1)
    calibration = ("--calibration", folder / "normal", "--false-alarm-rate", 0.1)
    weights = ("--weights", folder / "tiny.safetensors")
    finished = run("fit", folder / "fit", "-o", tmp_path / "camera", *weights, *options, *calibration, *FAST)
    assert finished.status == 0, finished.err
    assert finished.out == ""
    loaded = Detector.load(tmp_path / "camera")
    assert (loaded.patches, loaded.seed, loaded.head, loaded.reason_images) == (9, 7, "statistics", 2)
    assert (loaded.guarantee_.n_fit, len(loaded.calibration_scores_)) == (60, 40)
    assert {rate.tried for rate in loaded.detection_rates_} == {1}
    lines = [line for line in finished.err.splitlines() if line.startswith("  ")]
    for kind, rates in groupby(loaded.detection_rates_, lambda rate: rate.kind):
        assert f"  {kind}: " + ", ".join(f"{rate.size} {rate.text}" for rate in rates) in lines


def test_fit_takes_a_resolution_and_a_mask_and_unusual_shapes_are_counted(
    folder: Path, run: Run, tmp_path: Path
) -> None:
    mask = np.zeros((64, 64), np.uint8)
    mask[:20, 30:] = 255
    Image.fromarray(mask).save(tmp_path / "mask.png")
    fit = ("fit", folder / "fit", "--weights", folder / "tiny.safetensors", "--head", "statistics", *FAST)
    whole = run(*fit, "-o", tmp_path / "whole", "--resolution", 64, "--ignore", tmp_path / "mask.png")
    crop = run(*fit, "-o", tmp_path / "crop", "--resolution", "crop")
    assert "sees the whole image at 64 x 64 pixels" in whole.err.splitlines()
    assert "sees the centre square at 64 x 64 pixels" in crop.err.splitlines()
    assert Detector.load(tmp_path / "whole").transform_.ignore is not None
    assert_usage_error(run(*fit, "-o", tmp_path / "wrong", "--resolution", "half"), "half")
    assert_error(run(*fit, "-o", tmp_path / "wrong", "--ignore", tmp_path / "no.png"), "no.png")
    (tmp_path / "new").mkdir()
    for name, width in (("a", 64), ("b", 32), ("c", 90)):
        Image.fromarray(np.zeros((64, width, 3), np.uint8)).save(tmp_path / "new" / f"{name}.png")
    finished = run("score", tmp_path / "new", "--detector", tmp_path / "whole", "--json")
    assert [row["caution"] for row in json.loads(finished.out)] == [None, "unusual_shape", "unusual_shape"]
    assert "2 images have a shape that no normal image had" in finished.err.splitlines()
    parts = run("score", tmp_path / "new", "--detector", tmp_path / "whole", "--out", tmp_path / "parts")
    assert "2 images have a shape that no normal image had" in parts.err.splitlines()


def test_fit_prints_the_levels_of_deep_images_and_clipped_images_are_counted(
    folder: Path, run: Run, tmp_path: Path
) -> None:
    rng = np.random.default_rng(0)
    for kind, images in (("normal", one_camera(32)), ("new", one_camera(2, seed=4))):
        (tmp_path / kind).mkdir()
        for image in images:
            grey = image.pixels[:, :, 0] * np.uint16(8) + rng.integers(0, 8, image.pixels.shape[:2], np.uint16)
            Image.fromarray(grey).save(tmp_path / kind / f"{image.name}.png")
    Image.fromarray(grey * np.uint16(3)).save(tmp_path / "new" / "bright.png")
    fit = ("fit", tmp_path / "normal", "--weights", folder / "tiny.safetensors", "--head", "statistics", *FAST, "-o")
    fitted, given = run(*fit, tmp_path / "a"), run(*fit, tmp_path / "b", "--levels", "0:4095", "--bands", "1")
    (line,) = (line for line in fitted.err.splitlines() if line.startswith("maps "))
    assert line.endswith(" of 16-bit grey to the range of the network")
    assert "maps 0 to 4,095 of 16-bit grey to the range of the network" in given.err.splitlines()
    assert (Detector.load(tmp_path / "b").levels, Detector.load(tmp_path / "b").bands) == ((0, 4095), (1,))
    scored = run("score", tmp_path / "new", "--detector", tmp_path / "a", "--csv")
    assert sorted(row["caution"] for row in rows_of(scored, "--csv")) == ["", "", "out_of_range"]
    assert "1 image has more clipped values than normal images" in scored.err.splitlines()
    assert_usage_error(run(*fit, tmp_path / "c", "--levels", "wide"), "--levels")
    assert_error(run(*fit, tmp_path / "c", "--bands", "4,3,2"), "band")
    assert_error(run("fit", folder / "fit", *fit[2:], tmp_path / "c", "--levels", "0:9"), "8 bits")


def test_fit_warns_of_bursts_and_takes_groups_by_name(folder: Path, run: Run, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    (tmp_path / "bursts").mkdir()
    for number, image in enumerate(one_camera(27)):
        for frame in range(4):
            noisy = np.clip(image.pixels + rng.normal(0, 1, image.pixels.shape), 0, 255).astype(np.uint8)
            Image.fromarray(noisy).save(tmp_path / "bursts" / f"scene-{number:02d}-{frame}.png")
    fit = ("fit", tmp_path / "bursts", "--weights", folder / "tiny.safetensors", "--head", "statistics", *FAST, "-o")
    alone, grouped = run(*fit, tmp_path / "alone"), run(*fit, tmp_path / "grouped", "--groups", "name")
    assert (alone.status, grouped.status) == (0, 0)
    assert "caution: 100%" in alone.err
    assert "caution" not in grouped.err
    assert Detector.load(tmp_path / "grouped").guarantee_.n_groups == 27


@pytest.mark.parametrize(
    ("options", "mentioned"),
    [
        (("--false-alarm-rate", 0.01), "119"),  # the number of images that it needs
        (("--head", "tail"), "tail"),
        (("--precision", "float16"), "float16"),
        (("--weights", "nothing=folder"), "dinov2"),
    ],
)
def test_what_cannot_be_fitted_is_an_error_and_writes_nothing(
    folder: Path, run: Run, options: tuple[object, ...], mentioned: str
) -> None:
    weights = () if "--weights" in options else ("--weights", folder / "tiny.safetensors")
    assert_error(run("fit", folder / "fit", "-o", folder / "never", *weights, *options), mentioned)
    assert not (folder / "never").exists()
    assert_usage_error(run("fit", folder / "fit", "-o", folder / "detector"), "--force")


@pytest.mark.parametrize(
    "arguments",
    [
        ("score", "x.png"),
        ("score", "x.png", "--detector", "d", "--fail-on", "all"),
        ("score", "x.png", "--detector", "d", "--allow-refused"),
        ("score", "x.png", "--detector", "d", "--csv", "--json"),
        ("score", "x.png", "--detector", "d", "--allow-missing"),
        ("score", "x.png", "--detector", "d", "--progress", "p.jsonl"),
        ("score", "x.png", "--detector", "d", "--out", "o", "--csv"),
        ("score", "x.png", "--detector", "d", "--out", "o", "--report", "r.html"),
        ("score", "x.png", "--detector", "d", "--out", "o", "--boxes", "b.json"),
        ("score", "x.png", "--detector", "d", "--out", "o", "--actors", "2"),
        ("score", "x.png", "--detector", "d", "--out", "o", "--ray", "auto", "--workers", "2"),
        ("score", "x.png", "--detector", "d", "--workers", "many"),
        ("score", "x.png", "--detector", "d", "--max-pixels", "much"),
        ("fit", "x.png", "-o", "d", "--patches", "0"),
        ("fit", "x.png", "-o", "d", "--false-alarm-rate", "few"),
    ],
)
def test_a_wrong_option_is_a_usage_error(run: Run, arguments: tuple[str, ...]) -> None:
    assert_usage_error(run(*arguments))


def test_workers_are_threads_or_processes_and_sizes_have_units() -> None:
    workers = [readers_of(text) for text in (None, "3", "processes", "processes:5")]
    assert workers == [DEFAULT_WORKERS, 3, Processes(), Processes(5)]
    assert [size_of(text) for text in ("1500", "200M", "1.5k", "256 MiB")] == [1500, 2 * 10**8, 1500, 2**28]


def test_text_is_a_line_an_image(score: Run, folder: Path) -> None:
    finished = score("mixed")
    lines = {Path(line.split("\t")[0]).name: line.split("\t")[1:] for line in finished.out.splitlines()}
    assert finished.status == 0
    assert len(lines) == 6
    assert lines["a-broken.png"][0] == lines["empty.png"][0] == "refused"
    assert lines["noisy.png"][-1] == "out-of-distribution"
    assert float(lines["temple-0.png"][0]) == pytest.approx(
        Detector.load(folder / "detector").score(folder / "mixed" / "temple-0.png")[0], abs=1e-6
    )
    assert "2 of 6" in finished.err
    assert len(finished.err.splitlines()) == 1


@pytest.mark.parametrize("kind", ["--csv", "--json"])
def test_csv_and_json_hold_the_row_of_every_prediction(
    folder: Path, run: Run, detector: Detector, detector_file: Path, kind: str
) -> None:
    found = rows_of(run("score", folder / "mixed", "--detector", detector_file, kind), kind)
    expected = [as_row(each, detector.component_names) for each in detector.predict(folder / "mixed")]
    if kind == "--json":
        assert found == expected
        return
    assert list(found[0]) == list(column_types(detector.component_names))
    for row, prediction in zip(found, expected, strict=True):
        for name, value in prediction.items():
            text = "" if value is None else json.dumps(value) if isinstance(value, bool) else str(value)
            assert row[name] == text


@pytest.mark.skipif(sys.platform == "win32", reason="such names are not possible there")
def test_names_are_escaped_for_a_terminal_and_exact_for_programs(
    folder: Path, run: Run, tmp_path: Path, score: Run
) -> None:
    hostile = {"red\x1b[31m.png", "two\nlines.png", "return\r.png", "tab\t.png", "left\u202egnp.exe.png", "[x].png"}
    for name in hostile:
        shutil.copy(folder / "normal" / "temple-0.png", tmp_path / name)
        (tmp_path / f"empty {name}").write_bytes(b"")
    text = score(tmp_path)
    assert not {"\x1b", "\r", "\u202e"} & set(text.out + text.err)
    assert len(text.out.splitlines()) == 2 * len(hostile)
    assert "empty [x].png" in text.err
    for kind in ("--csv", "--json"):
        names = {Path(row["name"]).name for row in rows_of(score(tmp_path, kind), kind)}
        assert hostile <= names
    missing = score(tmp_path / "no\nwhere\x1b[2J")
    assert_error(missing, "no\\nwhere")
    assert len(missing.err.splitlines()) == 1


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere names are always valid text")
@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "printed"), [((), b"/caf\\xe9.png\t"), (("--csv",), b"/caf\xe9.png,"), (("--json",), b"/caf\\udce9.png")]
)
def test_a_name_that_is_not_text_is_legible_in_text_and_exact_elsewhere(
    folder: Path, tmp_path: Path, kind: tuple[str, ...], printed: bytes
) -> None:
    shutil.copy(os.fsencode(folder / "normal" / "temple-0.png"), os.fsencode(tmp_path) + b"/caf\xe9.png")
    command: list[str | Path] = [COMMAND, "score", tmp_path, "--detector", folder / "detector", *kind]
    env = {**os.environ, "PYTHONIOENCODING": "utf-8:strict"}
    assert os.fsencode(tmp_path) + printed in subprocess.run(command, capture_output=True, env=env, check=True).stdout


def test_nothing_left_is_an_error_and_still_valid_json(score: Run) -> None:
    finished = score("broken", "--json")
    assert_error(finished, "2 of 2")
    assert [row["is_ood"] for row in json.loads(finished.out)] == [None, None]
    assert_error(score("nowhere"), "nowhere")
    assert all(row["error"] for row in json.loads(score("normal", "--max-pixels", "4k", "--json").out))  # 64 x 64
    assert score("normal", "--max-pixels", "5k").status == 0


@pytest.mark.parametrize(
    ("kind", "options", "status"),
    [
        ("normal", ("--fail-on", "folder"), 0),
        ("normal", ("--fail-on", "any"), 3),  # two false alarms are expected among 40
        ("normal", ("--fail-on", "folder", "--fail-rate", "0.999"), 3),
        ("noisy", (), 0),
        ("noisy", ("--fail-on", "folder"), 3),
        ("noisy", ("--fail-on", "folder", "--groups", "name"), 0),  # all are of one photo
        ("mixed", ("--fail-on", "folder"), 4),
        ("mixed", ("--fail-on", "folder", "--allow-refused"), 0),
        ("broken", ("--fail-on", "folder"), 4),
        ("broken", ("--fail-on", "folder", "--allow-refused"), 1),
    ],
)
def test_the_status_of_a_gate_is_the_decision(score: Run, kind: str, options: tuple[str, ...], status: int) -> None:
    finished = score(kind, *options)
    assert finished.status == status, finished.err
    assert "Traceback" not in finished.err


def test_the_report_shows_the_images_and_the_decision_about_the_folder(
    score: Run, folder: Path, tmp_path: Path
) -> None:
    report = tmp_path / "report.html"
    finished, plain = score("mixed", "--csv", "--report", report, "--fail-on", "folder"), score("mixed", "--csv")
    detector, page = Detector.load(folder / "detector"), report.read_text(encoding="utf-8")
    assert finished.out == plain.out
    assert folder_test(detector.predict(folder / "mixed"), detector).text in page
    assert "noisy.png" in page
    assert "a-broken.png" in page


def test_boxes_of_flagged_images_are_in_their_own_pixels(detector: Detector, run: Run, tmp_path: Path) -> None:
    images, sensitive = tmp_path / "images", tmp_path / "sensitive"
    images.mkdir()
    half = detector.with_rate(0.5)  # flags half of normal images
    half.save(sensitive)
    several = [image.pixels[:280] for image in one_camera(8, size=300, seed=3)]
    usual = several[half.predict(several).is_ood.tolist().index(False)]
    wrong = usual.copy()
    wrong[180:270, 190:290] = np.random.default_rng(0).integers(0, 256, (90, 100, 3))
    for name, pixels in (("usual", usual), ("wrong", wrong)):
        Image.fromarray(pixels).save(images / f"{name}.png")
    boxes = tmp_path / "boxes.json"
    assert run("score", images, "--detector", sensitive, "--boxes", boxes).status == 0
    found = json.loads(boxes.read_text())
    assert found["images"] == [{"id": 1, "file_name": str(images / "wrong.png"), "width": 300, "height": 280}]
    regions = detector.explain(images / "wrong.png").regions
    assert [tuple(each["bbox"]) for each in found["annotations"]] == [each.box for each in regions]
    left, top, width, height = found["annotations"][0]["bbox"]
    assert (left + width / 2, top + height / 2) == (pytest.approx(240, abs=50), pytest.approx(225, abs=45))


def test_with_fdr_only_images_to_look_at_are_printed_highest_score_first(score: Run, folder: Path) -> None:
    everything = rows_of(score("noisy", "--json"), "--json")
    found = score("noisy", "--json", "--fdr", 0.5)
    names = [row["name"] for row in rows_of(found, "--json")]
    assert names == [row["name"] for row in sorted(everything, key=lambda row: -row["score"]) if row["p_value"] <= 0.5]
    assert "on average at most 50% are normal" in found.err
    nothing = score("mixed", "--fdr", 0.01)
    assert (nothing.status, nothing.out) == (0, "")
    assert "needs 99 calibration images, and here are 19" in nothing.err
    assert_usage_error(score("mixed", "--fdr", 0.1, "--out", folder / "scores"), "--fdr")


def test_explain_draws_a_heatmap_and_prints_reasons(folder: Path, run: Run, tmp_path: Path) -> None:
    noisy, heatmap, detector = folder / "mixed" / "noisy.png", tmp_path / "heatmap.JPEG", folder / "detector"
    finished = run("explain", noisy, "--detector", detector, "-o", heatmap)
    assert finished.status == 0
    expected = Detector.load(detector).explain(noisy)
    for reason in expected.reasons:
        assert reason.text in finished.out
    fields = json.loads(run("explain", noisy, "--detector", detector, "-o", heatmap, "--json").out)
    assert fields == json.loads(json.dumps(expected.as_dict()))
    assert [tuple(each["box"]) for each in fields["regions"]] == [each.box for each in expected.regions]
    with Image.open(heatmap) as image:
        assert image.format == "JPEG"
        assert np.asarray(image.convert("L")).std() > 0
    assert_error(run("explain", "nowhere.png", "--detector", "nowhere", "-o", tmp_path / "x.pdf"), ".png")
    assert_error(run("explain", folder / "mixed", "--detector", detector, "-o", tmp_path / "x.png"), "--report")
    assert list(tmp_path.iterdir()) == [heatmap]


@pytest.mark.slow
def test_a_closed_output_is_no_error_but_does_not_pass_a_gate(folder: Path) -> None:
    for options, status in (((), 0), (("--fail-on", "folder"), 1)):
        command = [COMMAND, "score", folder / "normal", "--detector", folder / "detector", *options]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        with process.stderr:
            assert process.stderr.read() == ""
        assert process.wait(timeout=60) == status


@pytest.mark.slow
def test_a_detector_is_used_where_its_network_is_found(run: Run, folder: Path, tmp_path: Path) -> None:
    for place in ("here", "there"):
        save_checkpoint(tmp_path / place, "resnet")
    network = f"resnet={tmp_path / 'here'}"
    own = ("--weights", folder / "tiny.safetensors", "--weights", network, *FAST)
    assert run("fit", folder / "fit", *own, "-o", tmp_path / "camera").status == 0
    shutil.rmtree(tmp_path / "here")
    score = ("score", folder / "mixed", "--detector", tmp_path / "camera")
    assert_error(run(*score), "resnet=FOLDER")
    assert run(*score, "--networks", f"resnet={tmp_path / 'there'}").status == 0
