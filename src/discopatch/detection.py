"""Detection rates: how many made-up changes of normal images a detector finds, by kind and size.

A rate is the share of changed versions of held-out normal images that are flagged at the detector's false-alarm rate.
It estimates the share for such changes of new normal images. Real defects look different and may be found more or less
often. An image that would be flagged without a change counts as found.

The unchanged version of an image may be one of the calibration images. On solar cells and photos, another image in its
place moved a rate by at most 5 points and the mean of all rates by at most 1.4, with 9 to 49 calibration images: less
than the width of the intervals.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import partial

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
from discopatch.encoders import map_on_cores
from discopatch.images import Pixels, Transform

SIZES = {"scratch": (2, 4, 8, 16, 32), "stain": (4, 8, 16, 32, 64, 128), "missing": (8, 32, 128)}
LARGEST = {"scratch": 1 / 32, "stain": 1 / 8, "missing": 1 / 8}  # of the shorter side; larger changes are not tried
MAX_BYTES = 2**28  # of images in their own size, in memory
STRENGTHS: dict[str, tuple[Formula, dict[str, float]]] = {  # changes of the whole image, and their constants
    "blur": (gaussian_blur, {"slight": 0.6, "plain": 1.5}),
    "noise": (gaussian_noise, {"slight": 0.01, "plain": 0.04}),
    "compression": (jpeg_compression, {"slight": 60, "plain": 20}),
    "brightness": (brightness, {"slight": 0.05, "plain": 0.2}),
    "contrast": (contrast, {"slight": 0.8, "plain": 0.5}),
}

Change = Callable[[Pixels, Transform, np.random.Generator], Pixels]  # of an image before the transform to one after it


def measure_detection(
    images: Iterable[Pixels], transform: Transform, predict: Callable[[list[Pixels]], ArrayLike], *, seed: int = 0
) -> tuple[DetectionRate, ...]:
    """The detection rate of each kind and size of change, in a fixed order.

    Of each kind the smallest change comes first. Where a change is found, larger ones of its kind count as found in
    that image and are not tried; once it is found in every image, they have no rate.

    Parameters
    ----------
    images
        Normal images (H, W, 3) of their own sizes that were not fitted. Of large ones only the first few are used.
    transform
        That of the detector. Changes of one place are made before it, in pixels of the image; changes of the whole
        image after it, at the resolution of the network.
    predict
        Takes changed images after the transform and returns whether each is flagged.
    """
    held, rates = within_memory(images), []
    if not held:
        return ()
    shorter = min(min(each.shape[:2]) for each in held)
    changes: dict[str, dict[str, Change]] = {
        kind: {f"{size} px": partial(change_one, kind, size) for size in sizes if size <= LARGEST[kind] * shorter}
        for kind, sizes in SIZES.items()
    }
    for kind, (formula, constants) in STRENGTHS.items():
        changes[kind] = {text: partial(change_all, formula, each) for text, each in constants.items()}
    for number, (kind, sizes) in enumerate(changes.items()):
        missed = np.arange(len(held))
        for text, change in sizes.items():
            make = partial(changed_image, change, held, transform, (seed, 16, number))
            changed = map_on_cores(make, missed.tolist())
            missed = missed[~np.asarray(predict(changed), bool)]
            rates.append(DetectionRate(kind, text, len(held) - len(missed), len(held)))
            if not len(missed):
                break
    return tuple(rates)


def changed_image(
    change: Change, images: Sequence[Pixels], transform: Transform, seeds: Sequence[int], place: int
) -> Pixels:
    """One of the images, changed by random numbers of its own."""
    return change(images[place], transform, np.random.default_rng([*seeds, place]))


def within_memory(images: Iterable[Pixels]) -> list[Pixels]:
    """The first images, as far as they take no more than MAX_BYTES; always one, where there is one."""
    found, total = list[Pixels](), 0
    for image in images:
        total += image.nbytes
        if found and total > MAX_BYTES:
            break
        found.append(image)
    return found


def change_one(kind: str, size: int, image: Pixels, transform: Transform, rng: np.random.Generator) -> Pixels:
    return transform(change_place(kind, image, image, size=size, rng=rng).pixels)


def change_all(
    formula: Formula, constant: float, image: Pixels, transform: Transform, rng: np.random.Generator
) -> Pixels:
    return to_bytes(formula(transform(image) / 255, rng, constant))
