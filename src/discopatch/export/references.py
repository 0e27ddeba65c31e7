"""Images on which an export is compared with its detector."""

from contextlib import closing
from itertools import islice
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from discopatch.corruptions import CORRUPTIONS, corrupt
from discopatch.errors import NoImagesError
from discopatch.images import DEFAULT_LIMITS, Limits, Pixels, RefusalReport, Transform, Workers, accepted, read_images

N_REFERENCES, MIN_REFERENCES = 64, 8
TUNING_EVERY = 3  # for 8 bits every third image sets the ranges, and the others are compared
SEVERITY = 3

Scene = NDArray[np.float64]  # (size, size, 3)


class References(NamedTuple):
    """Images after the transform, each array (B, size, size, 3)."""

    pixels: Pixels  # to compare on
    synthetic: bool = False
    tuning: Pixels | None = None  # other images, which set the ranges of 8 bits

    @classmethod
    def collect(
        cls,
        source: object | None,
        transform: Transform,
        *,
        int8: bool,
        workers: Workers,
        limits: Limits = DEFAULT_LIMITS,
    ) -> Self:
        """The first readable images of the source. Without a source, which 8 bits need, synthetic images."""
        if source is None:
            if int8:
                raise NoImagesError("8 bits need reference images: give reference (--reference) new normal images")
            return cls(synthetic_images(N_REFERENCES, size=transform.size), synthetic=True)
        share = TUNING_EVERY / (TUNING_EVERY - 1) if int8 else 1
        wanted, needed = round(N_REFERENCES * share), round(MIN_REFERENCES * share)
        with closing(read_images(source, transform=transform, workers=workers, limits=limits)) as stream:
            found = [image.pixels for image in islice(accepted(stream, RefusalReport()), wanted)]
        if len(found) < needed:
            raise NoImagesError(f"{len(found)} reference images can be read: give at least {needed}, better {wanted}")
        pixels = np.stack(found)
        tuning = np.arange(len(pixels)) % TUNING_EVERY == 0
        return cls(pixels[~tuning], tuning=pixels[tuning]) if int8 else cls(pixels)


def synthetic_images(count: int, *, size: int, seed: int = 0) -> Pixels:
    """(count, size, size, 3): clouds of many contrasts, every third image corrupted.

    They reach from smooth to rough, so that every layer responds to them. None is perfectly flat: the score of a flat
    image depends on the last digits of float32.
    """
    rng = np.random.default_rng(seed)
    found = []
    for index in range(count):
        scene, contrast = cloud_scene(size, rng), np.exp(rng.uniform(np.log(0.05), np.log(0.3)))
        pixels = to_pixels(scene, rng, level=rng.uniform(0.3, 0.7), contrast=contrast, noise=rng.uniform(0.002, 0.02))
        found.append(pixels if index % 3 else corrupt_in_turn(pixels, index))
    return np.stack(found)


def cloud_scene(size: int, rng: np.random.Generator) -> Scene:
    """Noise with correlated colours whose amplitude falls with the frequency, as in photos."""
    rows, columns = np.fft.fftfreq(size)[:, None], np.fft.rfftfreq(size)[None]
    amplitude = np.maximum(np.hypot(rows, columns), 1 / size) ** -rng.uniform(0.6, 1.8)
    white = rng.normal(size=(size, size, 3)) @ (np.full((3, 3), 0.6) + np.diag(rng.uniform(0.2, 1, 3)))
    return np.fft.irfft2(np.fft.rfft2(white, axes=(0, 1)) * amplitude[..., None], s=(size, size), axes=(0, 1))


def to_pixels(scene: Scene, rng: np.random.Generator, *, level: float, contrast: float, noise: float) -> Pixels:
    """The scene in uint8, with this mean and standard deviation between 0 and 1, and noise of the camera."""
    light = level + contrast * (scene - scene.mean()) / max(float(scene.std()), 1e-9)
    pixels: Pixels = np.rint(np.clip(light + rng.normal(0, noise, scene.shape), 0, 1) * 255).astype(np.uint8)
    return pixels


def corrupt_in_turn(pixels: Pixels, index: int) -> Pixels:
    """The image with one of all corruptions; the index determines which."""
    order = np.random.default_rng(0).permutation(list(CORRUPTIONS))
    return corrupt(pixels, str(order[index % len(order)]), SEVERITY, seed=index)
