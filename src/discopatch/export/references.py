"""Images on which an export is compared with its detector."""

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from typing import Self

import numpy as np
from numpy.typing import NDArray

from discopatch.corruptions import CORRUPTIONS, corrupt
from discopatch.errors import NoImagesError
from discopatch.images import DEFAULT_LIMITS, Limits, Pixels, RefusalReport, Transform, Workers, accepted, read_images

N_REFERENCES, MIN_REFERENCES = 64, 8
TUNING_EVERY = 3  # every third image, where the graph is rounded to 8 bits, is for that alone
SEVERITY = 3
SEED = 0

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class References:
    """Images as the transform leaves them, each array (B, size, size, 3)."""

    pixels: Pixels  # to compare on
    synthetic: bool
    tuning: Pixels | None = None  # others, from which the steps of 8 bits are chosen
    corrupted: Pixels | None = None  # `pixels` with a corruption each, which a detector should tell from them

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
        """The first images of the source; without one, synthetic images, which will not do for 8 bits."""
        if source is None and int8:
            raise NoImagesError(
                "8 bits are only as good as the images they are measured on: "
                "give reference (--reference) normal images that are new to the detector"
            )
        if source is None:
            return cls(synthetic_images(N_REFERENCES, size=transform.size), synthetic=True)
        if not int8:
            pixels = read_references(source, transform, N_REFERENCES, MIN_REFERENCES, workers, limits)
            return cls(pixels, synthetic=False)
        wanted, needed = (n * TUNING_EVERY // (TUNING_EVERY - 1) for n in (N_REFERENCES, MIN_REFERENCES))
        pixels = read_references(source, transform, wanted, needed, workers, limits)
        tuning = np.arange(len(pixels)) % TUNING_EVERY == 0
        clean = pixels[~tuning]
        corrupted = np.stack([corrupt_in_turn(image, index) for index, image in enumerate(clean)])
        return cls(clean, False, pixels[tuning], corrupted)


def read_references(
    source: object, transform: Transform, wanted: int, needed: int, workers: Workers, limits: Limits
) -> Pixels:
    """The first `wanted` images of the source, (B, size, size, 3); bad files are left out."""
    with closing(read_images(source, transform=transform, workers=workers, limits=limits)) as stream:
        found = [image.pixels for image in islice(accepted(stream, RefusalReport()), wanted)]
    if len(found) < needed:
        raise NoImagesError(
            f"{len(found)} reference images can be read; at least {needed} are needed, {wanted} are better: add images"
        )
    return np.stack(found)


def synthetic_images(count: int, *, size: int, seed: int = SEED) -> Pixels:
    """(count, size, size, 3): clouds, gradients and edges in colours at many contrasts, every third one corrupted.

    They are not the images of any camera. They reach from smooth to rough, so that every layer has something to
    respond to, and leave out what is perfectly flat: there a score is far out and hangs on the last digit of float32.
    """
    rng = np.random.default_rng(seed)
    return np.stack([synthetic_image(index, size, rng) for index in range(count)])


def synthetic_image(index: int, size: int, rng: np.random.Generator) -> Pixels:
    scene = SCENES[index % len(SCENES)](size, rng)
    level, contrast = rng.uniform(0.3, 0.7), np.exp(rng.uniform(np.log(0.05), np.log(0.3)))
    standard = (scene - scene.mean()) / max(float(scene.std()), 1e-9)
    grain = rng.normal(0, rng.uniform(0.002, 0.02), scene.shape)
    pixels = np.rint(np.clip(level + contrast * standard + grain, 0, 1) * 255).astype(np.uint8)
    return pixels if index % 3 else corrupt_in_turn(pixels, index)


def cloud_scene(size: int, rng: np.random.Generator) -> Floats:
    """Noise whose amplitude falls with frequency as in photos, its colours correlated."""
    rows, columns = np.fft.fftfreq(size)[:, None], np.fft.rfftfreq(size)[None]
    amplitude = np.maximum(np.hypot(rows, columns), 1 / size) ** -rng.uniform(0.8, 1.6)
    colour_mixing = np.full((3, 3), 0.6)
    white = rng.normal(size=(size, size, 3)) @ (colour_mixing + np.diag(rng.uniform(0.2, 1, 3)))
    return np.fft.irfft2(np.fft.rfft2(white, axes=(0, 1)) * amplitude[..., None], s=(size, size), axes=(0, 1))


def gradient_scene(size: int, rng: np.random.Generator) -> Floats:
    """Light that falls off in one direction, on a surface with a little structure."""
    direction, colours = rng.normal(size=2), rng.uniform(0.5, 1, 3)
    steps = np.linspace(-1, 1, size)
    slope = direction[0] * steps[:, None] + direction[1] * steps
    return with_structure(slope[..., None] * colours, rng)


def edge_scene(size: int, rng: np.random.Generator) -> Floats:
    """Flat pieces with straight borders, and a little structure on them."""
    steps, scene = np.linspace(-1, 1, size), np.zeros((size, size, 3))
    for _ in range(12):
        turn = rng.uniform(0, 2 * np.pi)
        side = np.cos(turn) * steps[:, None] + np.sin(turn) * steps > rng.uniform(-0.8, 0.8)
        scene += side[..., None] * rng.normal(size=3)
    return with_structure(scene, rng)


def with_structure(scene: Floats, rng: np.random.Generator) -> Floats:
    structure = cloud_scene(len(scene), rng)
    result: Floats = scene + 0.3 * structure / structure.std()
    return result


SCENES: tuple[Callable[[int, np.random.Generator], Floats], ...] = (
    cloud_scene,
    gradient_scene,
    edge_scene,
    cloud_scene,
)


def corrupt_in_turn(pixels: Pixels, index: int, *, seed: int = SEED) -> Pixels:
    """The image with the corruption whose turn it is at that index, always the same."""
    order = np.random.default_rng(seed).permutation(list(CORRUPTIONS))
    return corrupt(pixels, str(order[index % len(order)]), SEVERITY, seed=seed + index)
