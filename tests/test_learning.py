"""The tiny preset really learns, from real photos, on a CPU, in under two minutes."""

from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from discopatch.benchmark.metrics import auroc
from discopatch.images.corrupt import corrupt
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
        Recipe.of("tiny", steps=450, decay=0.5),  # a learning rate that falls steadies the end of the game
        cache=tmp_path / "cache",
        habits=Habits(samples_every=450),
        console=Console(quiet=True),
    )
    held_out = crops(sample_photos(HELD_OUT), 12, size=256, seed=0)
    scorer = Scorer(Weights.load(outcome.weights))
    normal = scorer.score_pixels(np.stack([picture.pixels for picture in held_out]))
    for name in ("gaussian_noise", "gaussian_blur"):
        shifted = [corrupt(picture.pixels, name, 3, seed=seed) for seed, picture in enumerate(held_out)]
        assert auroc(normal, scorer.score_pixels(np.stack(shifted))) >= 0.9
