"""The 19 corruptions of ImageNet-C at five severities, seeded, for pictures of any size from 32 pixels."""

from collections.abc import Callable

import numpy as np

from discopatch.images.corrupt.blur import defocus_blur, gaussian_blur, glass_blur, motion_blur, zoom_blur
from discopatch.images.corrupt.digital import (
    contrast,
    elastic_transform,
    jpeg_compression,
    pixelate,
    saturate,
    stored,
)
from discopatch.images.corrupt.filters import Floats
from discopatch.images.corrupt.noise import gaussian_noise, impulse_noise, shot_noise, speckle_noise
from discopatch.images.corrupt.spatter import spatter
from discopatch.images.corrupt.weather import brightness, fog, frost, snow
from discopatch.images.picture import Pixels

Corruption = Callable[[Floats, int, np.random.Generator], Floats]

CORRUPTIONS: dict[str, Corruption] = {
    "gaussian_noise": gaussian_noise,
    "shot_noise": shot_noise,
    "impulse_noise": impulse_noise,
    "speckle_noise": speckle_noise,
    "gaussian_blur": gaussian_blur,
    "defocus_blur": defocus_blur,
    "glass_blur": glass_blur,
    "motion_blur": motion_blur,
    "zoom_blur": zoom_blur,
    "snow": snow,
    "frost": frost,
    "fog": fog,
    "brightness": brightness,
    "contrast": contrast,
    "elastic_transform": elastic_transform,
    "pixelate": pixelate,
    "jpeg_compression": jpeg_compression,
    "saturate": saturate,
    "spatter": spatter,
}
EXTRA = ("speckle_noise", "gaussian_blur", "saturate", "spatter")
CORE15 = tuple(name for name in CORRUPTIONS if name not in EXTRA)
FAMILIES: dict[str, tuple[str, ...]] = {
    "noise": ("gaussian_noise", "shot_noise", "impulse_noise", "speckle_noise"),
    "blur": ("gaussian_blur", "defocus_blur", "glass_blur", "motion_blur", "zoom_blur"),
    "weather": ("snow", "frost", "fog", "brightness", "spatter"),
    "digital": ("contrast", "elastic_transform", "pixelate", "jpeg_compression", "saturate"),
}
SEVERITIES = (1, 2, 3, 4, 5)


def corrupt(pixels: Pixels, name: str, severity: int, *, seed: int) -> Pixels:
    """The picture with the named corruption; severity 0 is the picture as it is, for controls."""
    if name not in CORRUPTIONS:
        raise ValueError(f"unknown corruption {name!r}: choose one of {', '.join(CORRUPTIONS)}")
    if severity not in (0, *SEVERITIES):
        raise ValueError(f"severity {severity}: choose 0 to {SEVERITIES[-1]}")
    if severity == 0:
        return pixels
    x = np.divide(pixels, 255.0, order="C")  # sums, and so roundings, depend on the layout
    return stored(CORRUPTIONS[name](x, severity, np.random.default_rng(seed)))
