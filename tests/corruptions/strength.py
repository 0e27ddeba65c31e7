"""PSNR and sharpness of a corruption on the sample photos, measured as for the files in `published/`."""

from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from discopatch.corruptions import corrupt
from discopatch.images import Pixels, Transform
from discopatch.images.samples import PHOTOS, sample_photos

SIDE = 224
IN_COLOUR = tuple(name for name in PHOTOS if name not in ("camera", "coins"))  # saturation does not change grey images
# Draws per photo, for a sampling error far below half a decibel; other corruptions are drawn once.
DRAWS = {"elastic_transform": 40, "frost": 120, "spatter": 30, "motion_blur": 6, "fog": 20, "snow": 3}


@dataclass(frozen=True)
class Strength:
    """A corruption at one severity: PSNR in dB, and variance of the Laplacian as a share of the clean photo's."""

    psnr: NDArray[np.float64]  # (images, draws)
    sharpness: NDArray[np.float64]


@cache
def photos() -> list[Pixels]:
    """The sample photos in colour, cropped as in ImageNet-C: the shorter side is 256, the middle 224 are kept."""
    resize = Transform(size=256, resample="bilinear")
    margin = (256 - SIDE) // 2
    inner = slice(margin, margin + SIDE)
    return [np.ascontiguousarray(resize(photo)[inner, inner]) for photo in sample_photos(IN_COLOUR).values()]


def measure(name: str, severity: int, *, share: float = 1) -> Strength:
    """All draws of all photos, or a share of them, each with a seed of its own."""
    images, draws = photos(), max(1, round(share * DRAWS.get(name, 1)))
    pairs = [
        (image, corrupt(image, name, severity, seed=seed + draws * place))
        for place, image in enumerate(images)
        for seed in range(draws)
    ]
    shape = (len(images), draws)
    psnrs = np.array([psnr(image, corrupted) for image, corrupted in pairs]).reshape(shape)
    clean = np.array([[laplacian(image)] for image in images])
    return Strength(psnrs, np.array([laplacian(corrupted) for _, corrupted in pairs]).reshape(shape) / clean)


def psnr(image: Pixels, corrupted: Pixels) -> float:
    error = np.square(image.astype(np.float64) - corrupted).mean()
    return float(10 * np.log10(255**2 / error))


def laplacian(image: Pixels) -> float:
    """The variance of the Laplacian of the grey image."""
    return float(ndimage.laplace(image @ np.array([0.299, 0.587, 0.114])).var())
