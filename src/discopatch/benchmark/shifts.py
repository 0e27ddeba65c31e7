"""How well a scorer tells corrupted pictures from the same pictures untouched."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from discopatch.benchmark.metrics import auroc
from discopatch.images import Picture, Pixels
from discopatch.images.corrupt import CORRUPTIONS, corrupt
from discopatch.scoring import Scorer


@dataclass(frozen=True)
class Shift:
    """One corruption at one severity; severity 0, the untouched pictures, is the control."""

    corruption: str
    severity: int
    scores: NDArray[np.float64]
    auroc: float


def measure_shifts(
    scorer: Scorer, pictures: Sequence[Picture], severities: Sequence[int], corruptions: Iterable[str] = CORRUPTIONS
) -> Iterator[Shift]:
    """The corruptions at every severity, one after the other; the pictures have gone through the transform."""
    normal = scorer.score_pixels(np.stack([picture.pixels for picture in pictures]))
    for name in corruptions:
        for severity in severities:
            scores = scorer.score_pixels(corrupted(pictures, name, severity)) if severity else normal
            yield Shift(name, severity, scores, auroc(normal, scores))


def corrupted(pictures: Sequence[Picture], name: str, severity: int) -> Pixels:
    """(N, H, W, 3); each picture with a seed of its own."""
    return np.stack([corrupt(each.pixels, name, severity, seed=seed) for seed, each in enumerate(pictures)])
