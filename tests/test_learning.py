"""The small preset really learns, from real photos, on a CPU, in under two minutes."""

from pathlib import Path

import pytest
from rich.console import Console

from discopatch.demo import run_demo


@pytest.mark.slow
def test_the_demo_tells_noise_and_blur_from_clean_photos_that_it_never_saw(tmp_path: Path) -> None:
    shifts = {
        (shift.corruption, shift.severity): shift.auroc
        for shift in run_demo(tmp_path / "demo", steps=600, seed=0, console=Console(quiet=True))
    }
    assert shifts["gaussian_noise", 0] == 0.5
    assert shifts["gaussian_noise", 3] >= 0.9
    assert shifts["gaussian_blur", 3] >= 0.9
    assert (tmp_path / "demo" / "scores.png").is_file()
