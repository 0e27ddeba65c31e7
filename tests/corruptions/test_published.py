"""Every corruption is as strong and as sharp as that of the published program."""

import json
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from scipy import ndimage

from discopatch.corruptions import CORRUPTIONS, SEVERITIES, corrupt
from discopatch.demo import PHOTOS, sample_photos
from discopatch.images import Pixels, Transform

IMAGENET_C = json.loads((Path(__file__).parent / "published" / "imagenet_c.json").read_text())
# Draws per photo, a quarter of those of the published figures: a sampling error of 0.2 dB at most. Other corruptions
# are drawn once.
DRAWS = {"elastic_transform": 10, "frost": 30, "spatter": 8, "motion_blur": 2, "fog": 5}
DECIBELS = 0.5
SHARPNESS = 0.15
IN_COLOUR = tuple(name for name in PHOTOS if name not in ("camera", "coins"))  # saturation does not change grey images

most_nightly = pytest.mark.parametrize(
    "severity",
    [pytest.param(each, marks=pytest.mark.slow if each == 3 else pytest.mark.nightly) for each in SEVERITIES],
)


@cache
def photos() -> list[Pixels]:
    """The sample photos in colour, cropped as in ImageNet-C: the shorter side is 256, the middle 224 are kept."""
    resize = Transform(size=256, resample="bilinear")
    return [np.ascontiguousarray(resize(photo)[16:240, 16:240]) for photo in sample_photos(IN_COLOUR).values()]


def psnr(image: Pixels, corrupted: Pixels) -> float:
    error = np.square(image.astype(np.float64) - corrupted).mean()
    return float(10 * np.log10(255**2 / error))


def laplacian(image: Pixels) -> float:
    """The variance of the Laplacian of the grey image."""
    return float(ndimage.laplace(image @ np.array([0.299, 0.587, 0.114])).var())


@pytest.mark.parametrize("name", CORRUPTIONS)
@most_nightly
def test_it_is_as_strong_and_as_sharp_as_that_of_imagenet_c(name: str, severity: int) -> None:
    draws, psnrs, sharpness = DRAWS.get(name, 1), [], []
    for place, image in enumerate(photos()):
        for seed in range(draws):
            corrupted = corrupt(image, name, severity, seed=seed + draws * place)
            psnrs.append(psnr(image, corrupted))
            sharpness.append(laplacian(corrupted) / laplacian(image))
    expected = {figure: by_severity[severity - 1] for figure, by_severity in IMAGENET_C[name].items()}
    assert np.mean(psnrs) == pytest.approx(expected["psnr"], abs=DECIBELS)
    assert np.mean(sharpness) == pytest.approx(expected["sharpness"], rel=SHARPNESS, abs=2e-3)
