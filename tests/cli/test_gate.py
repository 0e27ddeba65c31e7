"""`discopatch score` as a gate in a pipeline: exit statuses, and the sentence that explains them."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from discopatch import Detector, folder_test
from discopatch.corruptions import corrupt
from tests.samples import one_camera, save_images, tiny_weights

from .conftest import Run, assert_error


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A detector with 19 calibration images; 60 normal images, the same with one noisy, and 20 noisy ones."""
    folder = tmp_path_factory.mktemp("gate")
    detector = Detector(tiny_weights(seed=2), head="statistics", patches=5, false_alarm_rate=0.05)
    detector.fit(one_camera(60), workers=1).save(folder / "detector")
    normal = one_camera(60, seed=1)
    save_images(folder / "normal", normal)
    save_images(folder / "mixed", normal[1:])
    for place, image in enumerate(normal[:20]):
        noisy = Image.fromarray(corrupt(image.pixels, "gaussian_noise", 5, seed=place))
        for kind in ("noisy", "mixed")[: 1 + (place == 0)]:
            (folder / kind).mkdir(exist_ok=True)
            noisy.save(folder / kind / f"{image.name}.png")
    for kind in ("refused", "only-refused"):
        (folder / kind).mkdir()
        (folder / kind / "broken.png").write_bytes(b"nothing")
    save_images(folder / "refused", normal[:3])
    return folder


@pytest.fixture
def score(folder: Path, run: Run) -> Run:
    return lambda kind, *options: run("score", folder / kind, "--detector", folder / "detector", *options)


@pytest.mark.parametrize(
    ("kind", "options", "status"),
    [
        ("normal", ("--fail-on", "folder"), 0),
        ("normal", ("--fail-on-ood",), 0),
        ("normal", ("--fail-on", "any"), 3),  # three false alarms are expected among 60
        ("mixed", ("--fail-on", "folder"), 0),
        ("mixed", ("--fail-on", "any"), 3),
        ("noisy", ("--fail-on", "folder"), 3),
        ("noisy", ("--fail-on-ood",), 3),
        ("noisy", ("--fail-on", "any"), 3),
        ("noisy", (), 0),
        ("noisy", ("--fail-on", "folder", "--groups", "name"), 0),  # all are of one photo
        ("refused", (), 0),
        ("refused", ("--fail-on", "folder"), 4),
        ("refused", ("--fail-on", "any"), 4),
        ("refused", ("--fail-on", "folder", "--allow-refused"), 0),
        ("only-refused", (), 1),
        ("only-refused", ("--fail-on", "folder"), 4),
        ("only-refused", ("--fail-on", "folder", "--allow-refused"), 1),
    ],
)
def test_the_status_is_the_decision(score: Run, kind: str, options: tuple[str, ...], status: int) -> None:
    finished = score(kind, *options)
    assert finished.status == status, finished.err
    assert "Traceback" not in finished.err


def test_a_folder_that_fails_and_has_refused_images_is_status_3(score: Run, folder: Path, run: Run) -> None:
    both = (folder / "noisy", folder / "only-refused")
    assert run("score", *both, "--detector", folder / "detector", "--fail-on-ood").status == 3


@pytest.mark.parametrize("kind", ["--csv", "--json"])
def test_the_sentence_is_on_stderr_and_stdout_stays_pure(score: Run, folder: Path, kind: str) -> None:
    finished, plain = score("noisy", kind, "--fail-on-ood"), score("noisy", kind)
    assert finished.out == plain.out
    detector = Detector.load(folder / "detector")
    assert finished.err.splitlines()[-1] == folder_test(detector.predict(folder / "noisy"), detector).text
    assert plain.err == ""


def test_the_rate_is_an_option(score: Run) -> None:
    flagged = score("normal", "--fail-on", "folder", "--fail-rate", 0.999)
    assert flagged.status == 3
    assert_error(score("normal", "--fail-on", "folder", "--fail-rate", 0), "fail_rate")


def test_the_report_says_it(score: Run, tmp_path: Path) -> None:
    report = tmp_path / "report.html"
    finished = score("noisy", "--fail-on-ood", "--report", report, "--close-ups", 0)
    assert finished.status == 3
    assert finished.err.splitlines()[-1] in report.read_text(encoding="utf-8")


def test_help_lists_the_statuses(run: Run) -> None:
    finished = run("score", "--help")
    for status in ("0", "1", "2", "3", "4"):
        assert status in finished.out.partition("Exit status")[2].partition("Arguments")[0]


def test_a_gate_whose_reader_goes_away_does_not_pass(folder: Path) -> None:
    command: list[str | Path] = [Path(sys.executable).with_name("discopatch"), "score", folder / "normal", "--detector"]
    process = subprocess.Popen([*command, folder / "detector", "--fail-on-ood"], stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.close()
    assert process.wait(timeout=60) == 1


def test_a_score_of_one_image_alone_can_be_a_gate(score: Run, tmp_path: Path) -> None:
    """With 19 calibration images no single one can fail at 1 %, which is said; at 5 % it can."""
    image = tmp_path / "red.png"
    Image.new("RGB", (64, 64), "red").save(image)
    finished = score(image, "--fail-on-ood")
    assert finished.status == 0
    assert "no folder of 1 image can fail" in finished.err
    assert score(image, "--fail-on-ood", "--fail-rate", 0.05).status == 3


@pytest.mark.parametrize(("suffix", "kind"), [("png", "PNG"), ("jpg", "JPEG"), ("JPEG", "JPEG"), ("webp", "WEBP")])
def test_explain_writes_what_the_suffix_says(folder: Path, run: Run, tmp_path: Path, suffix: str, kind: str) -> None:
    out, image = tmp_path / f"heatmap.{suffix}", folder / "normal" / "temple-0.png"
    assert run("explain", image, "--detector", folder / "detector", "-o", out).status == 0
    with Image.open(out) as found:
        assert found.format == kind
        assert np.asarray(found.convert("L")).std() > 0


@pytest.mark.parametrize("name", ["x.gif", "x.pdf", "x", "x.png.txt"])
def test_explain_refuses_other_suffixes_before_any_work(run: Run, tmp_path: Path, name: str) -> None:
    finished = run("explain", "nowhere.png", "--detector", "nowhere", "-o", tmp_path / name)
    assert_error(finished, ".png", ".jpg", ".webp")
    assert list(tmp_path.iterdir()) == []
