"""Detection rates: how many made-up changes of normal images a detector finds, by kind and size.

A rate is the share of changed versions of held-out normal images that are flagged at the detector's false-alarm rate.
It estimates the share for such changes of new normal images. Real defects look different and may be found more or less
often. An image that would be flagged without a change counts as found.

The unchanged version of an image may be one of the calibration images. On solar cells and photos, another image in its
place moved a rate by at most 5 points and the mean of all rates by at most 1.4, with 9 to 49 calibration images: less
than the width of the intervals.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator

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
from discopatch.images import Pixels, Transform

SIZES = {"scratch": (2, 4, 8, 16, 32), "stain": (4, 8, 16, 32, 64, 128), "missing": (4, 8, 16, 32, 64, 128)}
LARGEST = {"scratch": 1 / 32, "stain": 1 / 8, "missing": 1 / 8}  # of the shorter side; larger changes are not tried
STRENGTHS: dict[str, tuple[Formula, dict[str, float]]] = {  # changes of the whole image, and their constants
    "blur": (gaussian_blur, {"slight": 0.6, "plain": 1.5}),
    "noise": (gaussian_noise, {"slight": 0.01, "plain": 0.04}),
    "compression": (jpeg_compression, {"slight": 60, "plain": 20}),
    "brightness": (brightness, {"slight": 0.05, "plain": 0.2}),
    "contrast": (contrast, {"slight": 0.8, "plain": 0.5}),
}


def measure_detection(
    images: Iterable[Pixels], transform: Transform, predict: Callable[[list[Pixels]], ArrayLike], *, seed: int = 0
) -> tuple[DetectionRate, ...]:
    """The detection rate of each kind and size of change, in a fixed order.

    Parameters
    ----------
    images
        Normal images (H, W, 3) of their own sizes that were not fitted. A change is tried on each that is large enough.
    transform
        That of the detector. Changes of one place are made before it, in pixels of the image; changes of the whole
        image after it, at the resolution of the network.
    predict
        Takes changed images after the transform and returns whether each is flagged.
    """
    counts: Counter[tuple[str, str]] = Counter()
    tried: Counter[tuple[str, str]] = Counter()
    for number, image in enumerate(images):
        rng = np.random.default_rng([seed, 16, number])
        changed = dict(made_up_changes(image, transform, rng))
        tried.update(changed.keys())
        counts.update(
            each for each, flagged in zip(changed, np.asarray(predict(list(changed.values()))), strict=True) if flagged
        )
    return tuple(DetectionRate(*each, counts[each], tried[each]) for each in every_change() if each in tried)


def every_change() -> Iterator[tuple[str, str]]:
    """Kind, and size or strength as text."""
    yield from ((kind, f"{size} px") for kind, sizes in SIZES.items() for size in sizes)
    yield from ((kind, strength) for kind, (_, constants) in STRENGTHS.items() for strength in constants)


def made_up_changes(
    image: Pixels, transform: Transform, rng: np.random.Generator
) -> Iterator[tuple[tuple[str, str], Pixels]]:
    """Each change, and the image with it after the transform."""
    for kind, sizes in SIZES.items():
        for size in sizes:
            if size <= LARGEST[kind] * min(image.shape[:2]):
                found = change_place(kind, image, image, size=size, rng=rng)
                yield (kind, f"{size} px"), transform(found.pixels)
    small = transform(image) / 255
    for kind, (formula, constants) in STRENGTHS.items():
        for strength, constant in constants.items():
            yield (kind, strength), to_bytes(formula(small, rng, constant))
