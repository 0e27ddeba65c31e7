"""`discopatch demo`: decides about photos, leaves a report, and never deletes what is not its own."""

from pathlib import Path

import pytest

from discopatch import Detector
from discopatch.cli.demo import claim
from discopatch.demo import run_demo


def test_a_demo_takes_the_place_of_an_earlier_one_even_one_cut_short(tmp_path: Path) -> None:
    folder = tmp_path / "demo-run"
    claim(folder)
    (folder / "cache").mkdir()
    claim(folder)
    assert not (folder / "cache").exists()


def test_a_demo_never_deletes_a_training_run(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text("{}")
    with pytest.raises(ValueError, match="not a demo's"):
        claim(tmp_path)
    assert (tmp_path / "run.json").exists()


@pytest.mark.slow
def test_the_demo_passes_clean_photos_flags_corrupted_ones_and_writes_the_report(tmp_path: Path) -> None:
    rows = {
        (row.corruption, row.severity): row for row in run_demo(tmp_path, seed=0, created="2026-01-01T00:00:00+00:00")
    }
    clean, noisy, blurred = (rows[key] for key in (("none", 0), ("gaussian_noise", 3), ("gaussian_blur", 3)))
    assert clean.flagged <= 2
    assert noisy.flagged == blurred.flagged == len(clean.predictions)
    assert clean.median_p_value > 0.1
    assert "unlike the normal ones" in (tmp_path / "report.html").read_text(encoding="utf-8")
    assert Detector.load(tmp_path / "detector").threshold > 0
