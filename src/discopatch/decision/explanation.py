"""Where and how one image differs from normal ones."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from discopatch.decision.prediction import Prediction
from discopatch.images import Pixels

STANDS_OUT = 3.0  # standard deviations from which a known change is named
MOST_REASONS = 3


@dataclass(frozen=True, eq=False)
class Explanation:
    """A prediction, what the model saw, and what it found strange there."""

    prediction: Prediction
    pixels: Pixels  # (size, size, 3), as the model saw it
    heat: NDArray[np.float32]  # (64, 64), how much stranger each region is than regions of normal images
    reasons: tuple[str, ...]  # such as "less fine detail than normal", the strongest first


def in_words(of_the_image: Mapping[str, float], of_its_regions: Mapping[str, float]) -> tuple[str, ...]:
    """The known changes that stand out, the most surprising first, none less than half as surprising as that.

    A change of the whole image shows in its own statistics, one of a corner only in those of the corner.
    """
    surprises = {name: max(of_the_image.get(name, 0.0), of_its_regions[name]) for name in of_its_regions}
    enough = max(STANDS_OUT, max(surprises.values()) / 2)
    named = [name for name in surprises if surprises[name] >= enough]
    return tuple(sorted(named, key=lambda name: -surprises[name])[:MOST_REASONS])
