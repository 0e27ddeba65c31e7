"""discopatch evaluate"""

import json
from pathlib import Path

from discopatch import Detector
from discopatch.images import NamedImage
from tests.samples import one_camera, save_images

from .conftest import Run, assert_error, assert_usage_error


def test_numbers_are_printed_and_drawn(run: Run, detector: Detector, detector_file: Path, tmp_path: Path) -> None:
    normal, good = one_camera(4, size=256, seed=5), tmp_path / "test/good"
    save_images(good, normal)
    for kind in ("dark", "cut"):
        save_images(tmp_path / "test" / kind, [NamedImage(image.name, image.pixels // 8) for image in normal[:2]])
    (tmp_path / "test/cut/broken.png").write_bytes(b"no image")
    given = "evaluate", "--detector", detector_file, "--normal", good, "--defects", tmp_path / "test", "--device", "cpu"
    page = tmp_path / "page.html"
    finished = run(*given, "--json", "--seed", "7", "--report", page)
    expected = detector.evaluate(good, tmp_path / "test", seed=7)
    assert finished.status == 0
    assert json.loads(finished.out) == json.loads(json.dumps(expected.to_dict()))
    assert "broken.png" in finished.err
    text = page.read_text(encoding="utf-8")
    assert text.count("data:image/webp") == 2 * len([*expected.misses, *expected.false_alarms])
    assert all(part in text for part in (expected.suggestion, expected.detector, "broken.png", expected.auroc.text[:5]))
    printed = run(*given).out
    assert expected.suggestion in printed
    assert all(f" {kind} " in printed for kind in ("cut", "dark"))
    assert printed.count("needs") == 3


def test_wrong_folders_are_errors(run: Run, detector_file: Path, tmp_path: Path) -> None:
    assert_usage_error(run("evaluate", "--detector", detector_file), "--normal")
    missing = tmp_path / "missing"
    assert_error(run("evaluate", "--detector", detector_file, "--normal", missing, "--defects", missing), "missing")
