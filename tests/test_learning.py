"""The small preset really learns, from real photos, on a CPU, in under two minutes."""

from pathlib import Path

import pytest
from rich.console import Console

from discopatch.benchmark.shifts import measure_shifts
from discopatch.images.samples import HELD_OUT, TRAINING, crops, sample_photos
from discopatch.model.weights import Weights
from discopatch.scoring import Scorer
from discopatch.training import Recipe, train
from discopatch.training.loop import Habits


@pytest.mark.slow
def test_it_tells_noise_and_blur_from_clean_photos_that_it_never_saw(tmp_path: Path) -> None:
    photos = crops(sample_photos(TRAINING), 12, size=256, seed=0)
    outcome = train(
        photos,
        tmp_path / "run",
        Recipe.of("small", steps=600),
        cache=tmp_path / "cache",
        habits=Habits(samples_every=600),
        console=Console(quiet=True),
    )
    held_out = crops(sample_photos(HELD_OUT), 12, size=256, seed=0)
    scorer = Scorer(Weights.load(outcome.weights))
    shifts = {
        (shift.corruption, shift.severity): shift.auroc
        for shift in measure_shifts(scorer, held_out, (0, 3), ("gaussian_noise", "gaussian_blur"))
    }
    assert shifts["gaussian_noise", 0] == 0.5
    assert shifts["gaussian_noise", 3] >= 0.9
    assert shifts["gaussian_blur", 3] >= 0.9
