"""Corruptions by weather. Pictures are floats in [0, 1], (H, W, 3)."""

import numpy as np

from discopatch.images.corrupt.filters import Floats, motion, zoom_centre
from discopatch.images.corrupt.frost import frost_crop
from discopatch.images.corrupt.hsv import add_to_value
from discopatch.images.corrupt.plasma import plasma

# Mean and deviation of the noise, zoom, threshold, radius and sigma of the motion, weight of the picture as it is.
SNOW = (
    (0.1, 0.3, 3, 0.5, 10, 4, 0.8),
    (0.2, 0.3, 2, 0.5, 12, 4, 0.7),
    (0.55, 0.3, 4, 0.9, 12, 8, 0.7),
    (0.55, 0.3, 4.5, 0.85, 12, 8, 0.65),
    (0.55, 0.3, 2.5, 0.85, 12, 12, 0.55),
)
FROST = ((1, 0.4), (0.8, 0.6), (0.7, 0.7), (0.65, 0.7), (0.6, 0.75))  # of the picture, of the frost
FOG = ((1.5, 2), (2, 2), (2.5, 1.7), (2.5, 1.5), (3, 1.4))  # thickness, decay
BRIGHTNESS = (0.1, 0.2, 0.3, 0.4, 0.5)
LUMA = np.array([0.299, 0.587, 0.114])


def snow(x: Floats, severity: int, rng: np.random.Generator) -> Floats:
    """w x + (1 - w) max(x, 1.5 grey + 0.5), plus a layer of flakes and the layer upside down."""
    *layer, own = SNOW[severity - 1]
    flakes = snowflakes(x.shape[0], x.shape[1], *layer, rng=rng)
    return whitened(x, own) + (flakes + flakes[::-1, ::-1])[..., None]


def snowflakes(
    height: int,
    width: int,
    mean: float,
    deviation: float,
    zoom: float,
    threshold: float,
    radius: float,
    sigma: float,
    *,
    rng: np.random.Generator,
) -> Floats:
    """N(mean, deviation) zoomed, dark below the threshold, in [0, 1], and smeared at -135 to -45 degrees."""
    noise = zoom_centre(rng.normal(mean, deviation, (height, width)), zoom)
    flakes = np.where(noise < threshold, 0, noise).clip(0, 1)
    return motion(flakes, int(radius), sigma, rng.uniform(-135, -45))


def whitened(x: Floats, own: float) -> Floats:
    """Paler by a share of 1 - own, towards its own bright grey."""
    pale: Floats = 1.5 * (x @ LUMA)[..., None] + 0.5
    return own * x + (1 - own) * np.maximum(x, pale)


def frost(x: Floats, severity: int, rng: np.random.Generator) -> Floats:
    """a x + b frost, a random crop of a grown texture: always the procedural ones, whatever photos are installed."""
    own, ice = FROST[severity - 1]
    return own * x + ice * frost_crop(x.shape[0], x.shape[1], rng)


def fog(x: Floats, severity: int, rng: np.random.Generator) -> Floats:
    """(x + a plasma(decay b)) m / (m + a), with m the largest value of the picture."""
    thickness, decay = FOG[severity - 1]
    brightest = float(x.max())
    clouds = plasma(x.shape[0], x.shape[1], decay, rng)[..., None]
    return (x + thickness * clouds) * (brightest / (brightest + thickness))


def brightness(x: Floats, severity: int, rng: np.random.Generator) -> Floats:
    """V + c in HSV."""
    return add_to_value(x, BRIGHTNESS[severity - 1])
