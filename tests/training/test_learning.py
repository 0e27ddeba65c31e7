"""The tiny preset really learns, from real photos, on a CPU, in under two minutes."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from discopatch.corruptions import corrupt
from discopatch.demo import HELD_OUT, TRAINING, crops, sample_photos
from discopatch.encoders import DiscriminatorEncoder
from discopatch.heads import LogitHead
from discopatch.metrics import auroc
from discopatch.model import Weights
from discopatch.training import RunOptions, get_preset, train


@pytest.mark.nightly
def test_noise_and_blur_are_separated_from_clean_photos_that_were_not_trained_on(tmp_path: Path) -> None:
    photos = crops(sample_photos(TRAINING), 12, size=256, seed=0)
    result = train(
        photos,
        tmp_path / "run",
        replace(get_preset("tiny"), steps=450, decay=0.5),  # a falling learning rate steadies the end of the game
        cache=tmp_path / "cache",
        options=RunOptions(samples_every=450),
        console=Console(quiet=True),
    )
    held_out = [image.pixels for image in crops(sample_photos(HELD_OUT), 12, size=256, seed=0)]
    encoder = DiscriminatorEncoder(Weights.load(result.weights), patches=64)
    normal = LogitHead().score(encoder.extract_pixels(np.stack(held_out)))
    for name in ("gaussian_noise", "gaussian_blur"):
        shifted = np.stack([corrupt(pixels, name, 3, seed=seed) for seed, pixels in enumerate(held_out)])
        assert auroc(normal, LogitHead().score(encoder.extract_pixels(shifted))) >= 0.9
