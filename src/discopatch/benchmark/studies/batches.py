"""Which images share a batch: of one kind, or mixed."""

from math import ceil

import numpy as np
from numpy.typing import NDArray

Places = NDArray[np.int64]  # (batches, images of a batch): which image stands there


def pure_batches(images: int, batch: int, rng: np.random.Generator) -> Places:
    """All images in a random order, cut into batches; the last is filled up from the beginning of the order.

    So every image is in a batch of just that size, and none is in a batch twice.
    """
    check_enough(images, batch)
    return in_turn(images, ceil(images / batch), batch, rng)


def mixed_batches(normal: int, strange: int, batch: int, *, strange_each: int, rng: np.random.Generator) -> Places:
    """Each batch holds `strange_each` strange images and normal ones; strange ones have the places after all normal.

    So many batches that every image of either kind is in one at least.
    """
    normal_each = batch - strange_each
    if not 0 < strange_each < batch:
        raise ValueError(f"{strange_each} of {batch} images: a mixed batch has some of both kinds")
    check_enough(normal, normal_each)
    check_enough(strange, strange_each)
    count = max(ceil(normal / normal_each), ceil(strange / strange_each))
    return np.concatenate(
        [in_turn(normal, count, normal_each, rng), normal + in_turn(strange, count, strange_each, rng)], axis=1
    )


def in_turn(images: int, count: int, each: int, rng: np.random.Generator) -> Places:
    """(count, each): a random order of the images, over and over."""
    return np.resize(rng.permutation(images), (count, each)).astype(np.int64)


def first_scores(places: Places, scores: NDArray[np.floating], images: int) -> NDArray[np.float64]:
    """(images,): each image's score in the first batch that it is in."""
    found = np.full(images, np.nan)
    found[places.ravel()[::-1]] = scores.ravel()[::-1]  # of an image that occurs again, the last one written stays
    return found


def check_enough(images: int, wanted: int) -> None:
    """No image is in a batch twice."""
    if images < wanted:
        raise ValueError(f"{images} images are too few for {wanted} in a batch: take smaller batches")
