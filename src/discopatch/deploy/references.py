"""Pictures on which an export is compared with its detector."""

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from typing import Self

import numpy as np
from numpy.typing import NDArray

from discopatch import images
from discopatch.images import NoImagesError, Pixels, RefusalReport, Transform, Workers, accepted
from discopatch.images.corrupt import CORRUPTIONS, corrupt

WANTED, FEWEST = 64, 8  # pictures to compare on
TUNING_SHARE = 3  # every third picture, where the graph is rounded to 8 bits, is for that alone
SEVERITY = 3
SEED = 0

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class References:
    """Pictures as the transform leaves them, (B, size, size, 3)."""

    pixels: Pixels  # to compare on
    made_up: bool
    tuning: Pixels | None = None  # others, by which the steps of 8 bits are chosen
    corrupted: Pixels | None = None  # the first ones spoiled, to tell them from

    @classmethod
    def gather(cls, source: object | None, transform: Transform, *, int8: bool, workers: Workers) -> Self:
        """The first images of the source, or made-up ones, which will not do for 8 bits."""
        if source is None and int8:
            raise NoImagesError(
                "8 bits are only as good as the images they are measured on: "
                "give --reference with normal images that the detector has not seen"
            )
        if source is None:
            return cls(made_up(WANTED, size=transform.size), made_up=True)
        if not int8:
            return cls(read(source, transform, WANTED, FEWEST, workers), made_up=False)
        fewest = FEWEST * TUNING_SHARE // (TUNING_SHARE - 1)
        pixels = read(source, transform, WANTED * TUNING_SHARE // (TUNING_SHARE - 1), fewest, workers)
        for_tuning = np.arange(len(pixels)) % TUNING_SHARE == 0
        clean = pixels[~for_tuning]
        spoiled = np.stack([corrupted(picture, place) for place, picture in enumerate(clean)])
        return cls(clean, False, pixels[for_tuning], spoiled)


def read(source: object, transform: Transform, wanted: int, fewest: int, workers: Workers) -> Pixels:
    """The first pictures of the source; bad files are left out."""
    refusals = RefusalReport()
    with closing(images.open(source, transform=transform, workers=workers)) as stream:
        found = [picture.pixels for picture in islice(accepted(stream, refusals), wanted)]
    if len(found) < fewest:
        raise NoImagesError(
            f"{len(found)} reference images can be read; at least {fewest} are needed, {wanted} are better: add images"
        )
    return np.stack(found)


def made_up(count: int, *, size: int, seed: int = SEED) -> Pixels:
    """(count, size, size, 3): clouds, gradients and edges in colours at many contrasts, every third one corrupted.

    Not the images of any camera. They reach from smooth to rough, so that every layer has something to see, and leave
    out what is perfectly flat: there a score is far out and hangs on the last digit of float32.
    """
    rng = np.random.default_rng(seed)
    return np.stack([one_made_up(place, size, rng) for place in range(count)])


def one_made_up(place: int, size: int, rng: np.random.Generator) -> Pixels:
    """The kinds take turns."""
    scene = SCENES[place % len(SCENES)](size, rng)
    level, contrast = rng.uniform(0.3, 0.7), np.exp(rng.uniform(np.log(0.05), np.log(0.3)))
    standard = (scene - scene.mean()) / max(float(scene.std()), 1e-9)
    grain = rng.normal(0, rng.uniform(0.002, 0.02), scene.shape)
    pixels = np.rint(np.clip(level + contrast * standard + grain, 0, 1) * 255).astype(np.uint8)
    return pixels if place % 3 else corrupted(pixels, place, seed=SEED)


def clouds(size: int, rng: np.random.Generator) -> Floats:
    """Noise whose amplitude falls with frequency as in photos, the colours partly alike."""
    rows, columns = np.fft.fftfreq(size)[:, None], np.fft.rfftfreq(size)[None]
    falling = np.maximum(np.hypot(rows, columns), 1 / size) ** -rng.uniform(0.8, 1.6)
    white = rng.normal(size=(size, size, 3)) @ colour_mixing(rng)
    return np.fft.irfft2(np.fft.rfft2(white, axes=(0, 1)) * falling[..., None], s=(size, size), axes=(0, 1))


def gradient(size: int, rng: np.random.Generator) -> Floats:
    """Light that falls off in one direction, on a surface with a little structure."""
    direction, colours = rng.normal(size=2), rng.uniform(0.5, 1, 3)
    steps = np.linspace(-1, 1, size)
    slope = direction[0] * steps[:, None] + direction[1] * steps
    structure = clouds(size, rng)
    result: Floats = slope[..., None] * colours + 0.3 * structure / structure.std()
    return result


def edges(size: int, rng: np.random.Generator) -> Floats:
    """Flat pieces with straight borders, and a little structure on them."""
    steps, scene = np.linspace(-1, 1, size), np.zeros((size, size, 3))
    for _ in range(12):
        turn = rng.uniform(0, 2 * np.pi)
        side = np.cos(turn) * steps[:, None] + np.sin(turn) * steps > rng.uniform(-0.8, 0.8)
        scene += side[..., None] * rng.normal(size=3)
    structure = clouds(size, rng)
    result: Floats = scene + 0.3 * structure / structure.std()
    return result


def colour_mixing(rng: np.random.Generator) -> Floats:
    """Three colours that mostly go together."""
    return np.full((3, 3), 0.6) + np.diag(rng.uniform(0.2, 1, 3))


SCENES: tuple[Callable[[int, np.random.Generator], Floats], ...] = (clouds, gradient, edges, clouds)


def corrupted(pixels: Pixels, place: int, *, seed: int = SEED) -> Pixels:
    """The picture at that place with the corruption whose turn it is, always the same."""
    order = np.random.default_rng(seed).permutation(list(CORRUPTIONS))
    return corrupt(pixels, str(order[place % len(order)]), SEVERITY, seed=seed + place)
