"""Detection rates: how many made-up changes of normal images a detector finds, by kind and size.

A rate is the share of changed versions of held-out normal images that are flagged at the detector's false-alarm rate.
It estimates the share for such changes of new normal images. Real defects look different and may be found more or less
often. An image that would be flagged without a change counts as found.

The unchanged version of an image may be one of the calibration images. On solar cells and photos, another image in its
place moved a rate by at most 5 points and the mean of all rates by at most 1.4, with 9 to 49 calibration images: less
than the width of the intervals.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import cycle, islice

import numpy as np
from numpy.typing import ArrayLike

from discopatch.calibration import DetectionRate
from discopatch.corruptions.filters import to_bytes
from discopatch.corruptions.imagenet_c import (
    Formula,
    brightness,
    contrast,
    gaussian_blur,
    gaussian_noise,
    jpeg_compression,
)
from discopatch.corruptions.places import change_place
from discopatch.images import Pixels

SIZES = {"scratch": (2, 4, 8), "stain": (4, 8, 16, 32), "missing": (4, 8, 16, 32)}  # in pixels, as `change_place` takes
LARGEST = 0.5  # of the shorter side of the smallest image; larger changes are not tried
STRENGTHS: dict[str, tuple[Formula, dict[str, float]]] = {  # changes of the whole image, and their constants
    "blur": (gaussian_blur, {"slight": 0.6, "plain": 1.5}),
    "noise": (gaussian_noise, {"slight": 0.01, "plain": 0.04}),
    "compression": (jpeg_compression, {"slight": 60, "plain": 20}),
    "brightness": (brightness, {"slight": 0.05, "plain": 0.2}),
    "contrast": (contrast, {"slight": 0.8, "plain": 0.5}),
}

Change = Callable[[Pixels, Pixels, np.random.Generator], Pixels]  # of an image; another one is given too


def measure_detection(
    images: Sequence[Pixels], predict: Callable[[list[Pixels]], ArrayLike], *, count: int = 12, seed: int = 0
) -> tuple[DetectionRate, ...]:
    """The detection rate of each kind and size of change, in a fixed order.

    Parameters
    ----------
    images
        Normal images (H, W, 3) of their own sizes that were not fitted. Each change takes the next of them, in turn.
    predict
        Takes changed images and returns whether each is flagged.
    count
        Images on which each change is tried; no more than there are.
    """
    if not images:
        return ()
    rng, turn = np.random.default_rng([seed, 16]), cycle(range(len(images)))
    tried, rates = min(count, len(images)), []
    for kind, size, change in made_up_changes(min(min(image.shape[:2]) for image in images)):
        changed = [change(images[index], images[index - 1], rng) for index in islice(turn, tried)]
        rates.append(DetectionRate(kind, size, int(np.sum(predict(changed))), tried))
    return tuple(rates)


def made_up_changes(shorter_side: int) -> Iterator[tuple[str, str, Change]]:
    """The kind, the size or strength as text, and the change, for images of at least that shorter side."""
    for kind, sizes in SIZES.items():
        for size in sizes:
            if size <= LARGEST * shorter_side:
                yield kind, f"{size} px", partial(change_locally, kind, size)
    for kind, (formula, constants) in STRENGTHS.items():
        for strength, constant in constants.items():
            yield kind, strength, partial(change_all, formula, constant)


def change_locally(kind: str, size: int, pixels: Pixels, other: Pixels, rng: np.random.Generator) -> Pixels:
    return change_place(kind, pixels, other, size=size, rng=rng).pixels


def change_all(formula: Formula, constant: float, pixels: Pixels, _: Pixels, rng: np.random.Generator) -> Pixels:
    return to_bytes(formula(pixels / 255, rng, constant))
