"""Corruptions of ImageNet-C at five severities, seeded, for pictures of any size."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from discopatch.images.corrupt.blur import gaussian_blur
from discopatch.images.corrupt.noise import gaussian_noise
from discopatch.images.picture import Pixels

Corruption = Callable[[NDArray[np.float64], int, np.random.Generator], NDArray[np.float64]]

CORRUPTIONS: dict[str, Corruption] = {"gaussian_noise": gaussian_noise, "gaussian_blur": gaussian_blur}
SEVERITIES = (1, 2, 3, 4, 5)


def corrupt(pixels: Pixels, name: str, severity: int, *, seed: int) -> Pixels:
    """The picture with the named corruption; severity 0 is the picture as it is, for controls."""
    if name not in CORRUPTIONS:
        raise ValueError(f"unknown corruption {name!r}: choose one of {', '.join(CORRUPTIONS)}")
    if severity not in (0, *SEVERITIES):
        raise ValueError(f"severity {severity}: choose 0 to {SEVERITIES[-1]}")
    if severity == 0:
        return pixels
    values = CORRUPTIONS[name](pixels / 255.0, severity, np.random.default_rng(seed))
    corrupted: Pixels = np.rint(values.clip(0, 1) * 255).astype(np.uint8)
    return corrupted
