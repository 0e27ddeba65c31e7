"""Milliseconds to score one image, model only, at several patch counts, on whatever device is there.

python benchmarks/score_speed.py --preset paper
"""

import statistics
import time

import numpy as np
import torch
import typer
from rich.console import Console
from rich.table import Table

from discopatch.images import Transform
from discopatch.model import Pair, find_preset
from discopatch.model.weights import Weights
from discopatch.scoring import Scorer


def main(preset: str = "paper", device: str = "cuda" if torch.cuda.is_available() else "cpu", repeats: int = 9) -> None:
    """Prints a table, a row a patch count."""
    weights = Weights(Pair.from_seed(find_preset(preset).architecture, seed=0).discriminator, Transform())
    picture = np.random.default_rng(0).integers(0, 256, (1, 256, 256, 3), dtype=np.uint8)
    table = Table("patches", "ms", "spread", title=f"{preset}: one image on {device}, torch {torch.__version__}")
    for patches in (4, 16, 64):
        scorer = Scorer(weights, patches=patches, device=device)
        times = [timed(scorer, picture) for _ in range(repeats + 2)][2:]
        table.add_row(str(patches), f"{statistics.median(times):.1f}", f"{min(times):.1f}-{max(times):.1f}")
    Console().print(table)


def timed(scorer: Scorer, picture: np.ndarray[tuple[int, ...], np.dtype[np.uint8]]) -> float:
    """Milliseconds until the score is a number in memory."""
    start = time.perf_counter()
    scorer.score_pixels(picture)
    return (time.perf_counter() - start) * 1e3


if __name__ == "__main__":
    typer.run(main)
