"""The whole way in two minutes: train the small preset on a few photos, score clean and corrupted ones."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from rich.console import Console

from discopatch.benchmark.metrics import auroc
from discopatch.images import Picture
from discopatch.images.corrupt import CORRUPTIONS, corrupt
from discopatch.images.samples import HELD_OUT, TRAINING, crops, sample_photos
from discopatch.model.weights import Weights
from discopatch.scoring import Scorer
from discopatch.training.loop import Habits, train
from discopatch.training.recipe import Recipe

CROPS = 8
SIZE = 256
SEVERITIES = (0, 1, 3, 5)


@dataclass(frozen=True)
class Line:
    """One row of the demo's table."""

    corruption: str
    severity: int
    mean_score: float
    auroc: float


def run_demo(out: Path, *, steps: int, seed: int, console: Console) -> Iterator[Line]:
    """Trains into `out`, then yields the table line by line; the held-out photos are others than the training ones."""
    training = crops(sample_photos(TRAINING), CROPS, size=SIZE, seed=seed)
    recipe = Recipe.of("small", steps=steps, seed=seed)
    console.print(f"training the small preset on {len(training)} crops of {len(TRAINING)} photos, {steps} steps")
    outcome = train(training, out, recipe, cache=out / "cache", habits=Habits(samples_every=steps), console=console)
    scorer = Scorer(Weights.load(outcome.weights))
    held_out = crops(sample_photos(HELD_OUT), CROPS, size=SIZE, seed=seed + 1)
    normal = scorer.score_pixels(stacked(held_out))
    for name in CORRUPTIONS:
        for severity in SEVERITIES:
            shifted = [
                Picture(picture.name, corrupt(picture.pixels, name, severity, seed=number))
                for number, picture in enumerate(held_out)
            ]
            scores = scorer.score_pixels(stacked(shifted))
            yield Line(name, severity, float(scores.mean()), auroc(normal, scores))


def stacked(pictures: list[Picture]) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    """(N, H, W, 3)."""
    return np.stack([picture.pixels for picture in pictures])
