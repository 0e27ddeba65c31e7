"""Corruptions by weather, and by drops on the lens."""

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from discopatch.corruptions.imagenet_c.filters import (
    HAIR,
    Floats,
    blur_with_gaussian,
    blur_with_motion,
    clouds,
    stored,
    to_bytes,
    zoom_centre,
)
from discopatch.corruptions.imagenet_c.frost import frost_crop

# Mean and deviation of the noise, zoom, threshold, radius and sigma of the motion, weight of the image as it is.
SNOW = (
    (0.1, 0.3, 3, 0.5, 10, 4, 0.8),
    (0.2, 0.3, 2, 0.5, 12, 4, 0.7),
    (0.55, 0.3, 4, 0.9, 12, 8, 0.7),
    (0.55, 0.3, 4.5, 0.85, 12, 8, 0.65),
    (0.55, 0.3, 2.5, 0.85, 12, 12, 0.55),
)
FROST = ((1, 0.4), (0.8, 0.6), (0.7, 0.7), (0.65, 0.7), (0.6, 0.75))  # of the image, of the frost
FOG = ((1.5, 2), (2, 2), (2.5, 1.7), (2.5, 1.5), (3, 1.4))  # thickness, decay
BRIGHTNESS = (0.1, 0.2, 0.3, 0.4, 0.5)
LUMA = np.array([0.299, 0.587, 0.114])
# Mean and deviation of the noise, sigma of its blur, threshold, intensity of water or sigma of mud, mud.
SPATTER = (
    (0.65, 0.3, 4, 0.69, 0.6, 0),
    (0.65, 0.3, 3, 0.68, 0.6, 0),
    (0.65, 0.3, 2, 0.68, 0.5, 0),
    (0.65, 0.3, 1, 0.65, 1.5, 1),
    (0.67, 0.4, 1, 0.65, 1.5, 1),
)
WATER = np.array([175, 238, 238]) / 255
MUD = np.array([63, 42, 20]) / 255
THICK_MUD = 0.8  # of the smoothed mask; thinner mud is not there
DEEPEST = 20  # pixels from the edge of a drop after which its shade no longer changes
SLOPES = (50, 150)  # of edges, and of at least one pixel of each edge, in grey levels
TAN_22, TAN_67 = np.tan(np.pi / 8), np.tan(3 * np.pi / 8)
EMBOSS = np.array([[-2.0, -1, 0], [-1, 1, 1], [0, 1, 2]])


def snow(x: Floats, severity: int, rng: np.random.Generator) -> Floats:
    """w x + (1 - w) max(x, 1.5 grey + 0.5), plus a layer of flakes and the layer upside down.

    Flakes are N(mean, deviation) zoomed, dark below the threshold, in [0, 1], and smeared at -135 to -45 degrees; they
    are stored in 8 bits before and after.
    """
    mean, deviation, zoom, threshold, radius, sigma, own = SNOW[severity - 1]
    noise = zoom_centre(rng.normal(mean, deviation, x.shape[:2]), zoom)
    flakes = stored(np.where(noise < threshold, 0, noise))
    flakes = stored(blur_with_motion(flakes, int(radius), sigma, rng.uniform(-135, -45)))
    pale: Floats = np.maximum(x, 1.5 * (x @ LUMA)[..., None] + 0.5)
    return own * x + (1 - own) * pale + (flakes + flakes[::-1, ::-1])[..., None]


def frost(x: Floats, severity: int, rng: np.random.Generator) -> Floats:
    """a x + b frost, a random crop of a texture."""
    own, ice = FROST[severity - 1]
    return own * x + ice * frost_crop(x.shape[0], x.shape[1], rng)


def fog(x: Floats, severity: int, rng: np.random.Generator) -> Floats:
    """(x + a clouds(decay b)) m / (m + a), with m the largest value of the image."""
    thickness, decay = FOG[severity - 1]
    brightest = float(x.max())
    veil = clouds(x.shape[0], x.shape[1], decay, rng)[..., None]
    return (x + thickness * veil) * (brightest / (brightest + thickness))


def brightness(x: Floats, severity: int, rng: np.random.Generator) -> Floats:
    """V + c in HSV, at most 1: a new V scales the colour, and hue and saturation stay."""
    value = x.max(axis=2, keepdims=True)
    brighter = (value + BRIGHTNESS[severity - 1]).clip(0, 1)
    scaled: Floats = np.where(value > 0, x * (brighter / np.where(value > 0, value, 1)), brighter)
    return scaled


def spatter(x: Floats, severity: int, rng: np.random.Generator) -> Floats:
    """Where blurred N(loc, scale) passes a threshold: x + m water, m shaded by the edges; or x (1 - m) + m mud."""
    mean, deviation, sigma, threshold, strength, is_mud = SPATTER[severity - 1]
    liquid = blur_with_gaussian(rng.normal(mean, deviation, x.shape[:2]), sigma)
    wet = liquid >= threshold
    if is_mud:
        soft = blur_with_gaussian(wet.astype(np.float64), strength)
        cover: Floats = np.where(soft < THICK_MUD, 0, soft)[..., None]
        return x * (1 - cover) + cover * MUD
    return x + strength * water_shine(to_bytes(np.where(wet, liquid, 0)))[..., None] * WATER


def water_shine(liquid: NDArray[np.uint8]) -> Floats:
    """The liquid, lit from one side by the relief of the distance to its edges; at most 1."""
    edges = canny_edges(liquid.astype(np.int32))
    if not edges.any():
        return np.zeros(liquid.shape)
    depth = ndimage.distance_transform_edt(~edges).clip(0, DEEPEST)
    relief = equalised((ndimage.uniform_filter(depth, 3, mode="mirror") + HAIR).astype(int))
    lit = ndimage.correlate(relief, EMBOSS, mode="mirror").clip(0, 1)
    shine: Floats = liquid * ndimage.uniform_filter(lit, 3, mode="mirror")
    shine /= max(shine.max(), np.finfo(float).tiny)
    return shine


def canny_edges(levels: NDArray[np.int32]) -> NDArray[np.bool_]:
    """Canny's edges (H, W), not blurred before: ridges of the slope |dx| + |dy| that touch a steep one.

    Of two equally steep neighbours along a row or a column the first is the ridge; across, there is none.
    """
    right, down = (ndimage.sobel(levels, axis, mode="nearest") for axis in (1, 0))
    slope = np.abs(right) + np.abs(down)
    around = np.pad(slope, 1)

    def beside(rows: int, columns: int) -> NDArray[np.int32]:
        return around[1 + rows : around.shape[0] - 1 + rows, 1 + columns : around.shape[1] - 1 + columns]

    flat, steep = np.abs(down) < TAN_22 * np.abs(right), np.abs(down) > TAN_67 * np.abs(right)
    falling = (right < 0) == (down < 0)
    ridge = np.select(
        [flat, steep, falling],
        [
            (slope > beside(0, -1)) & (slope >= beside(0, 1)),
            (slope > beside(-1, 0)) & (slope >= beside(1, 0)),
            (slope > beside(-1, -1)) & (slope > beside(1, 1)),
        ],
        (slope > beside(-1, 1)) & (slope > beside(1, -1)),
    )
    kept, _ = ndimage.label(ridge & (slope > SLOPES[0]), np.ones((3, 3)))
    strong = np.zeros(kept.max() + 1, bool)
    strong[kept[ridge & (slope > SLOPES[1])]] = True
    edges: NDArray[np.bool_] = strong[kept]
    return edges


def equalised(levels: NDArray[np.int_]) -> Floats:
    """Levels spread over [0, 1] so that each share of the image gets its share of the range."""
    below = np.bincount(levels.ravel()).cumsum()
    lowest = below[levels.min()]
    spread: Floats = (below - lowest)[levels] / max(levels.size - lowest, 1)
    return spread
