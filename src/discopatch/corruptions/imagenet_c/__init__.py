"""The 19 corruptions of ImageNet-C at five severities, seeded, for images of any size from 32 pixels.

They are those of its published program, github.com/hendrycks/robustness, whose lengths in pixels are for 224 pixels.
Inside this folder an image is floats in [0, 1], (H, W, 3).
"""

from collections.abc import Callable

import numpy as np

from discopatch.corruptions.imagenet_c import blur, digital, noise, weather
from discopatch.corruptions.imagenet_c.filters import Floats, to_bytes
from discopatch.corruptions.imagenet_c.frost import frost_source
from discopatch.errors import ParameterError
from discopatch.images import Pixels

Corruption = Callable[[Floats, int, np.random.Generator], Floats]

CORRUPTIONS: dict[str, Corruption] = {
    "gaussian_noise": noise.gaussian_noise,
    "shot_noise": noise.shot_noise,
    "impulse_noise": noise.impulse_noise,
    "speckle_noise": noise.speckle_noise,
    "gaussian_blur": blur.gaussian_blur,
    "defocus_blur": blur.defocus_blur,
    "glass_blur": blur.glass_blur,
    "motion_blur": blur.motion_blur,
    "zoom_blur": blur.zoom_blur,
    "snow": weather.snow,
    "frost": weather.frost,
    "fog": weather.fog,
    "brightness": weather.brightness,
    "contrast": digital.contrast,
    "elastic_transform": digital.elastic_transform,
    "pixelate": digital.pixelate,
    "jpeg_compression": digital.jpeg_compression,
    "saturate": digital.saturate,
    "spatter": weather.spatter,
}
EXTRA = ("speckle_noise", "gaussian_blur", "saturate", "spatter")
FAMILIES: dict[str, tuple[str, ...]] = {
    "noise": ("gaussian_noise", "shot_noise", "impulse_noise", "speckle_noise"),
    "blur": ("gaussian_blur", "defocus_blur", "glass_blur", "motion_blur", "zoom_blur"),
    "weather": ("snow", "frost", "fog", "brightness", "spatter"),
    "digital": ("contrast", "elastic_transform", "pixelate", "jpeg_compression", "saturate"),
}
SEVERITIES = (1, 2, 3, 4, 5)
VERSION = 2  # goes up whenever corrupted pixels change


def corrupt(pixels: Pixels, name: str, severity: int, *, seed: int) -> Pixels:
    """The image (H, W, 3) with the named corruption; severity 0 is the image as it is, for controls."""
    if name not in CORRUPTIONS:
        raise ParameterError(f"unknown corruption {name!r}: choose one of {', '.join(CORRUPTIONS)}")
    if severity not in (0, *SEVERITIES):
        raise ParameterError(f"severity {severity}: choose 0 to {SEVERITIES[-1]}")
    if severity == 0:
        return pixels
    x = np.divide(pixels, 255.0, order="C")  # sums, and so roundings, depend on the layout
    return to_bytes(CORRUPTIONS[name](x, severity, np.random.default_rng(seed)))


def describe_corruption(name: str, severity: int) -> dict[str, str | int]:
    """What decides the corrupted pixels beside image and seed, for JSON and for digests."""
    texture = {"texture": frost_source()} if name == "frost" else {}
    return {"corrupt": name, "severity": severity, "version": VERSION, **texture}
