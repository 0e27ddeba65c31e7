"""`discopatch demo`: scores photos, writes a report, and never deletes what is not its own."""

from pathlib import Path

import pytest

from discopatch import Detector, demo
from discopatch.cli.demo import prepare_folder
from discopatch.errors import ParameterError
from tests.samples import new_detector

from .conftest import Run

CREATED = "2026-01-01T00:00:00+00:00"


def test_a_demo_takes_the_place_of_an_earlier_one_and_of_nothing_else(tmp_path: Path) -> None:
    prepare_folder(tmp_path / "demo-run")
    (tmp_path / "demo-run" / "cache").mkdir()
    prepare_folder(tmp_path / "demo-run")
    assert not (tmp_path / "demo-run" / "cache").exists()
    with pytest.raises(ParameterError, match=str(tmp_path)):
        prepare_folder(tmp_path)
    assert (tmp_path / "demo-run").exists()


def test_the_command_prints_a_row_a_condition_and_names_its_files(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo, "SIZE", 64)
    monkeypatch.setattr(demo, "CLOSE_UPS", 1)
    monkeypatch.setattr(demo, "Detector", new_detector)
    monkeypatch.setenv("COLUMNS", "200")
    out = tmp_path / "demo-run"
    finished = run("demo", "--out", out)
    assert finished.status == 0, finished.err
    for corruption, severity in demo.CONDITIONS:
        assert any(corruption in line and f" {severity} " in line for line in finished.out.splitlines())
    assert str(out / "report.html") in finished.out
    assert (out / "report.html").exists()
    assert Detector.load(out / "detector").false_alarm_rate == demo.FALSE_ALARM_RATE


@pytest.mark.nightly
def test_the_demo_passes_clean_photos_and_flags_corrupted_ones(tmp_path: Path) -> None:
    rows = {(row.corruption, row.severity): row for row in demo.run_demo(tmp_path, seed=0, created=CREATED)}
    assert tuple(rows) == demo.CONDITIONS
    clean, noisy, blurred = (rows[key] for key in (("none", 0), ("gaussian_noise", 3), ("gaussian_blur", 3)))
    assert clean.flagged <= 2
    assert noisy.flagged == blurred.flagged == len(clean.predictions)
    assert clean.median_p_value > 0.1
    assert (tmp_path / "report.html").exists()
    assert Detector.load(tmp_path / "detector").threshold_ > 0
