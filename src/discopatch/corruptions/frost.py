"""The ice of the frost corruption: photographs where they are installed, grown crystals where they are not.

ImageNet-C lays photographs over its images, which the package imagecorruptions carries. Without them, feathers of
branching crystals are grown from fixed seeds and get the colours and the contrast of the photographs, scale by scale.
"""

from functools import cache, lru_cache
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from scipy import ndimage

from discopatch.corruptions.filters import Floats, clouds

PHOTOGRAPHS = ("frost1.png", "frost2.png", "frost3.png", "frost4.jpg", "frost5.jpg")  # a sixth is never drawn
TEXTURES = len(PHOTOGRAPHS)
SIDE = 512  # of grown textures
FANS = 56
STEMS_PER_FAN = 3
GRAIN = 0.7  # pixels between the grains a crystal is made of
TWIGS_EVERY = (8.0, 4.5)  # pixels, along stems and along their twigs
TWIG_LENGTH = (0.42, 0.3)  # of the rest of the crystal they grow on
TWIG_ANGLE = np.deg2rad(58)
SHARPNESS = 0.6  # sigma of the crystals, in pixels


class Veil(NamedTuple):
    """How a photograph looks, in grey levels, its pixels weighted by how often a crop of 224 pixels shows them."""

    mean: tuple[float, float, float]  # of red, green and blue
    gain: tuple[float, float, float]  # of the colours, for one level of grey
    # Deviations of the grey image between Gaussians of SCALES: of what is finer than the first, between the first and
    # the second, and so on, and of what is coarser than the last.
    bands: tuple[float, ...]


SCALES = (0.6, 1.2, 2.5, 5.0, 10.0, 20.0, 40.0)
WHITE = Veil((197.9, 202.2, 211.5), (0.97, 1.01, 1.04), (4.4, 4.6, 4.6, 4.1, 3.2, 2.5, 2.1, 11.8))
VEILS = (
    Veil((77.0, 147.7, 164.1), (1.41, 0.86, 0.66), (4.0, 3.7, 2.7, 1.9, 2.0, 2.5, 3.2, 12.1)),
    WHITE,
    WHITE,  # the second and the third photograph are the same
    Veil((144.9, 159.7, 172.6), (0.99, 1.00, 1.04), (7.8, 7.9, 6.7, 4.8, 3.5, 2.3, 1.7, 12.5)),
    Veil((100.8, 112.2, 124.1), (1.01, 1.00, 0.97), (10.2, 8.6, 8.3, 7.6, 7.3, 6.2, 4.1, 17.4)),
)


class Crystals(NamedTuple):
    """Arcs of ice, one per entry; places are (row, column), headings and bends in radians."""

    root: Floats
    heading: Floats
    length: Floats
    bend: Floats  # per pixel
    weight: Floats


@cache
def photograph_folder() -> Path | None:
    """The folder of the photographs, where the package is installed: it is not imported, as it no longer can be."""
    spec = find_spec("imagecorruptions")
    for place in (spec and spec.submodule_search_locations) or ():
        folder = Path(place, "frost")
        if all((folder / name).is_file() for name in PHOTOGRAPHS):
            return folder
    return None


def frost_crop(height: int, width: int, rng: np.random.Generator) -> Floats:
    """A random piece of a random texture, in [0, 1]; mirrored beyond its border where the image is larger."""
    texture = frost_texture(int(rng.integers(TEXTURES)))
    missing = [(0, max(0, want - have)) for want, have in zip((height, width), texture.shape, strict=False)]
    texture = np.pad(texture, [*missing, (0, 0)], mode="symmetric")
    top, left = (int(rng.integers(have - want + 1)) for have, want in zip(texture.shape, (height, width), strict=False))
    return texture[top : top + height, left : left + width] / 255


@lru_cache(maxsize=TEXTURES)
def frost_texture(number: int) -> NDArray[np.uint8]:
    """One of the textures, (H, W, 3)."""
    folder = photograph_folder()
    path = folder and folder / PHOTOGRAPHS[number]
    texture = np.array(Image.open(path).convert("RGB")) if path else grown_texture(number)
    texture.flags.writeable = False
    return texture


def grown_texture(number: int) -> NDArray[np.uint8]:
    """Crystals with the look of a photograph, SIDE pixels wide and high."""
    rng = np.random.default_rng([19, number])
    crystals = stems(rng)
    density = grains(crystals)
    for every, length in zip(TWIGS_EVERY, TWIG_LENGTH, strict=True):
        crystals = twigs(crystals, every, length, rng)
        density += grains(crystals)
    # Crystals stay visible where many lie over each other: it is their share of the ice around that shines.
    ice = ndimage.gaussian_filter(density, SHARPNESS) / (ndimage.gaussian_filter(density, 2.5) + 0.4)
    smooth = [ice, *(ndimage.gaussian_filter(ice, scale, mode="wrap") for scale in SCALES)]
    bands = [*(finer - coarser for finer, coarser in pairwise(smooth)), clouds(SIDE, SIDE, 1.6, rng)]
    veil = VEILS[number]
    grey = sum(deviation / band.std() * (band - band.mean()) for deviation, band in zip(veil.bands, bands, strict=True))
    colours = veil.mean + grey[..., None] * np.array(veil.gain)
    texture: NDArray[np.uint8] = np.rint(colours.clip(0, 255)).astype(np.uint8)
    return texture


def stems(rng: np.random.Generator) -> Crystals:
    """Fans of stems: half from the borders inwards, half from anywhere to anywhere."""
    root = rng.uniform(0, SIDE, (FANS, 2))
    heading = rng.uniform(0, 2 * np.pi, FANS)
    border = rng.integers(4, size=FANS // 2)
    root[np.arange(FANS // 2), border % 2] = np.where(border < 2, 0, SIDE)
    heading[: FANS // 2] = border * np.pi / 2 + rng.normal(0, 0.5, FANS // 2)
    count = FANS * STEMS_PER_FAN
    return Crystals(
        root=np.repeat(root, STEMS_PER_FAN, axis=0) + rng.normal(0, 12, (count, 2)),
        heading=np.repeat(heading, STEMS_PER_FAN) + rng.normal(0, 0.6, count),
        length=rng.gamma(4, 45, count),
        bend=rng.normal(0, 0.003, count),
        weight=np.full(count, 2.0),
    )


def twigs(crystals: Crystals, every: float, length: float, rng: np.random.Generator) -> Crystals:
    """Twigs to both sides, so many pixels apart; the nearer to the tip, the shorter."""
    parent, distance, root = points_along(crystals, every)
    parent, distance, root = np.repeat(parent, 2), np.repeat(distance, 2), np.repeat(root, 2, axis=0)
    side = np.tile([-1.0, 1.0], len(parent) // 2)
    rest = crystals.length[parent] - distance
    heading = crystals.heading[parent] + crystals.bend[parent] * distance
    return Crystals(
        root=root,
        heading=heading + side * (TWIG_ANGLE + rng.normal(0, 0.08, len(side))),
        length=1 + length * rest * rng.uniform(0.3, 1.1, len(side)),
        bend=-side * rng.uniform(0, 0.012, len(side)),
        weight=0.6 * crystals.weight[parent],
    )


def grains(crystals: Crystals) -> Floats:
    """The crystals' grains, counted on the pixels; a crystal is thinnest at its tip."""
    crystal, distance, places = points_along(crystals, GRAIN)
    row, column = np.rint(places).astype(int).T
    inside = (row >= 0) & (row < SIDE) & (column >= 0) & (column < SIDE)
    inside &= distance > 1  # or the joints, where twigs of both sides begin, would be beads
    weight = crystals.weight[crystal] * (1 - 0.7 * distance / crystals.length[crystal])
    counted = np.bincount((row * SIDE + column)[inside], weight[inside], minlength=SIDE * SIDE)
    return counted.reshape(SIDE, SIDE).astype(np.float64)


def points_along(crystals: Crystals, apart: float) -> tuple[NDArray[np.intp], Floats, Floats]:
    """Points at that distance on all crystals: whose they are, how far from its root, and where, (points, 2).

    A point of an arc is the end of a chord whose heading is that of the middle of the arc.
    """
    count = np.ceil(crystals.length / apart).astype(int)
    crystal = np.repeat(np.arange(len(count)), count)
    distance = (np.arange(len(crystal)) - np.repeat(np.cumsum(count) - count, count)) * apart
    half_turn = crystals.bend[crystal] * distance / 2
    chord = distance * np.sinc(half_turn / np.pi)
    heading = crystals.heading[crystal] + half_turn
    ends = np.stack([chord * np.cos(heading), chord * np.sin(heading)], axis=1)
    return crystal, distance, crystals.root[crystal] + ends
