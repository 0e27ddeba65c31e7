"""Ice on a window: feathers of branching crystals, grown from the borders and from specks of dust.

ImageNet-C lays six photographs of frost over its images. These textures are grown instead, from fixed seeds, so that
the corruption is the same wherever it runs.
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from discopatch.corruptions.imagenet_c.filters import Floats, clouds

TEXTURES = 5
SIDE = 768
FANS = 90
STEMS_PER_FAN = 3
GRAIN = 0.7  # pixels between the grains a crystal is made of
TWIGS_EVERY = (8.0, 4.5)  # pixels, along stems and along their twigs
TWIG_LENGTH = (0.42, 0.3)  # of the rest of the crystal they grow on
TWIG_ANGLE = np.deg2rad(58)
GLASS = np.array([0.12, 0.17, 0.25])
ICE = np.array([0.90, 0.96, 1.0])


@dataclass(frozen=True)
class Crystals:
    """Arcs of ice, one per entry; places are (row, column), headings and bends in radians."""

    root: Floats
    heading: Floats
    length: Floats
    bend: Floats  # per pixel
    weight: Floats


def frost_crop(height: int, width: int, rng: np.random.Generator) -> Floats:
    """A random piece of a random texture, in [0, 1]; mirrored beyond its border where the image is larger."""
    texture = frost_texture(int(rng.integers(TEXTURES)))
    missing = [(0, max(0, side - SIDE)) for side in (height, width)]
    texture = np.pad(texture, [*missing, (0, 0)], mode="symmetric")
    top, left = (int(rng.integers(have - want + 1)) for have, want in zip(texture.shape, (height, width), strict=False))
    down, right = rng.choice([-1, 1], size=2)
    return texture[top : top + height, left : left + width][::down, ::right] / 255


@lru_cache(maxsize=TEXTURES)
def frost_texture(number: int) -> NDArray[np.uint8]:
    """One of the textures, SIDE pixels wide and high."""
    rng = np.random.default_rng([19, number])
    density = ice_density(rng)
    lines, near, far = (ndimage.gaussian_filter(density, sigma) for sigma in (0.6, 2.5, 12))
    haze = clouds(SIDE, SIDE, 1.6, rng)
    # Crystals stay visible where many lie over each other: it is their share of the ice around that shines.
    film = (0.12 + 0.7 * haze) * (1 - np.exp(-0.5 * far))
    ice = 0.1 * haze + film + 0.6 * lines / (near + 0.4) - 0.25
    colours = GLASS + ice.clip(0, 1)[..., None] * (ICE - GLASS)
    texture: NDArray[np.uint8] = np.rint(colours * 255).astype(np.uint8)
    texture.flags.writeable = False
    return texture


def ice_density(rng: np.random.Generator) -> Floats:
    """How much ice lies on every pixel, (SIDE, SIDE): stems, their twigs, and the twigs' twigs."""
    crystals = stems(rng)
    density = count_grains(crystals)
    for every, length in zip(TWIGS_EVERY, TWIG_LENGTH, strict=True):
        crystals = twigs(crystals, every, length, rng)
        density += count_grains(crystals)
    return density


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
    parent, distance = points_along(crystals, every)
    parent, distance = np.repeat(parent, 2), np.repeat(distance, 2)
    side = np.tile([-1.0, 1.0], len(parent) // 2)
    rest = crystals.length[parent] - distance
    heading = crystals.heading[parent] + crystals.bend[parent] * distance
    return Crystals(
        root=places(crystals, parent, distance),
        heading=heading + side * (TWIG_ANGLE + rng.normal(0, 0.08, len(side))),
        length=1 + length * rest * rng.uniform(0.3, 1.1, len(side)),
        bend=-side * rng.uniform(0, 0.012, len(side)),
        weight=0.6 * crystals.weight[parent],
    )


def count_grains(crystals: Crystals) -> Floats:
    """The crystals' grains, counted on the pixels; a crystal is thinnest at its tip."""
    crystal, distance = points_along(crystals, GRAIN)
    beyond_root = distance > 1  # or the joints, where twigs of both sides begin, would be beads
    crystal, distance = crystal[beyond_root], distance[beyond_root]
    row, column = np.rint(places(crystals, crystal, distance)).astype(int).T
    inside = (row >= 0) & (row < SIDE) & (column >= 0) & (column < SIDE)
    weight = crystals.weight[crystal] * (1 - 0.7 * distance / crystals.length[crystal])
    counted = np.bincount((row * SIDE + column)[inside], weight[inside], minlength=SIDE * SIDE)
    return counted.reshape(SIDE, SIDE).astype(np.float64)


def points_along(crystals: Crystals, apart: float) -> tuple[NDArray[np.intp], Floats]:
    """Points at that distance on all crystals: whose they are, and how far from its root."""
    count = np.ceil(crystals.length / apart).astype(int)
    crystal = np.repeat(np.arange(len(count)), count)
    first = np.repeat(np.cumsum(count) - count, count)
    return crystal, (np.arange(len(crystal)) - first) * apart


def places(crystals: Crystals, crystal: NDArray[np.intp], distance: Floats) -> Floats:
    """Where an arc is at that distance from its root: a chord whose heading is that of the middle of the arc."""
    half_turn = crystals.bend[crystal] * distance / 2
    chord = distance * np.sinc(half_turn / np.pi)
    heading = crystals.heading[crystal] + half_turn
    return crystals.root[crystal] + np.stack([chord * np.cos(heading), chord * np.sin(heading)], axis=1)
