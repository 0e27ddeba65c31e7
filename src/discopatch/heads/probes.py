"""Probes: known changes of an image at any strength, and their shifts of the statistics of normal images."""

from collections.abc import Callable
from functools import partial
from math import sqrt
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from discopatch.corruptions.degradations import (
    BLOCK,
    Draw,
    Normal,
    clouds,
    displaced,
    gaussian,
    random_numbers,
    rounded_frequencies,
    sampled_in_blocks,
    smooth_noise,
    with_coarse_colours,
    without_colours,
)
from discopatch.encoders import Features
from discopatch.images import Pixels
from discopatch.images.tensors import to_pixels, to_unit
from discopatch.images.transform import MULTIPLE

# Subtracted before rounding, it truncates; a little under half a level, so that whole levels are unchanged.
CUT_OFF = 0.499 / 127.5
MAX_PIXELS = 2**17  # of an image that is changed in every known way

# Images (B, 3, H, W) in [-1, 1] and a strength in [0, 1] for each, (B, 1, 1, 1) -> changed images.
Change = Callable[[Tensor, Tensor, Draw, Normal], Tensor]


class Probe(NamedTuple):
    """A known change in all its forms, and its description."""

    text: str
    forms: tuple[Change, ...]


def even(strength: Tensor, low: float, high: float) -> Tensor:
    return low + (high - low) * strength


def by_factors(strength: Tensor, low: float, high: float) -> Tensor:
    return low * (high / low) ** strength


def blur(x: Tensor, strength: Tensor, draw: Draw, normal: Normal) -> Tensor:
    sigma, stretch = by_factors(strength, 0.6, 4.0), 0.8 * 1.56 ** draw(0, 1)
    return gaussian(x, sigma * stretch, sigma / stretch)


def sharpen(x: Tensor, strength: Tensor, draw: Draw, normal: Normal) -> Tensor:
    return x + even(strength, 0.4, 2.0) * (x - gaussian(x, draw(0.6, 1.5), draw(0.6, 1.5)))


def add_noise(x: Tensor, strength: Tensor, draw: Draw, normal: Normal, *, channels: int) -> Tensor:
    """White noise, independent in every colour or equal in all."""
    return x + by_factors(strength, 0.02, 0.4) * normal((len(x), channels, *x.shape[2:]))


def add_grain(x: Tensor, strength: Tensor, draw: Draw, normal: Normal) -> Tensor:
    return x + by_factors(strength, 0.02, 0.4) * smooth_noise(normal(x.shape), draw(0.7, 2.0))


def compress(x: Tensor, strength: Tensor, draw: Draw, normal: Normal) -> Tensor:
    """Compression of red, green and blue alike."""
    return rounded_frequencies(x, by_factors(strength, 0.08, 0.8))


def compress_colours_more(x: Tensor, strength: Tensor, draw: Draw, normal: Normal) -> Tensor:
    """Compression with colours at half the resolution and coarser than the luminance, as in most files."""
    step = by_factors(strength, 0.08, 0.8)
    grey, colours = (partial(rounded_frequencies, smallest_step=each) for each in (step, 1.25 * step))
    return with_coarse_colours(x, grey, colours)


def pixelate(x: Tensor, strength: Tensor, draw: Draw, normal: Normal) -> Tensor:
    return sampled_in_blocks(x, even(strength, 0.8, 0.25))


def warp(x: Tensor, strength: Tensor, draw: Draw, normal: Normal) -> Tensor:
    noise = smooth_noise(normal((len(x), 2, *x.shape[2:])), 2 * 5 ** draw(0, 1))
    return displaced(x, noise * even(strength, 0.5, 2.5))


def scale_colours(
    x: Tensor, strength: Tensor, draw: Draw, normal: Normal, *, factors: tuple[float, float], by_luminance: bool
) -> Tensor:
    """Colours moved towards a grey of their luminance, or of their largest channel, or away from it."""
    grey = without_colours(x) if by_luminance else x.amax(1, keepdim=True)
    return grey + by_factors(strength, *factors) * (x - grey)


def add_veil(x: Tensor, strength: Tensor, draw: Draw, normal: Normal) -> Tensor:
    """A pale veil of uneven thickness, here and there or nearly everywhere."""
    least = draw(0, 0.8)
    thickness = least + (1 - least) * torch.sigmoid(2 * clouds(x, normal))
    return torch.lerp(x, draw(0.1, 1), even(strength, 0.3, 0.9) * thickness)


def add_fog(x: Tensor, strength: Tensor, draw: Draw, normal: Normal) -> Tensor:
    """Scattered light from an uneven fog, of equal strength everywhere."""
    shade = draw(-0.2, 0.9) + draw(0.1, 0.5) * clouds(x, normal)
    return torch.lerp(x, shade.clamp(-1, 1), even(strength, 0.3, 0.85))


def add_specks(x: Tensor, strength: Tensor, draw: Draw, normal: Normal, *, shades: tuple[float, float]) -> Tensor:
    """Specks or drops of a shade between these on the lens, sharp or soft."""
    noise = smooth_noise(normal((len(x), 1, *x.shape[2:])), 5 ** draw(0, 1))
    spots = torch.sigmoid((noise - draw(0.8, 2.2)) * draw(2, 12))
    return torch.lerp(x, draw(*shades), even(strength, 0.4, 1.0) * spots)


def shift_level(x: Tensor, strength: Tensor, draw: Draw, normal: Normal, *, sign: int) -> Tensor:
    """A constant added to all values: other light."""
    return x + sign * even(strength, 0.12, 0.8)


def expose(x: Tensor, strength: Tensor, draw: Draw, normal: Normal, *, sign: int) -> Tensor:
    """All values multiplied by a factor: another exposure."""
    return (x + 1) * (sign * even(strength, 0.12, 0.8)).exp() - 1


def shift_luminance(x: Tensor, strength: Tensor, draw: Draw, normal: Normal, *, sign: int) -> Tensor:
    """A constant added to the luminance of all pixels, at their hue and saturation."""
    before = (without_colours(x) + 1).clamp(min=0.01)
    return (x + 1) * ((before + sign * even(strength, 0.12, 0.8)).clamp(min=0) / before) - 1


def scale_contrast(x: Tensor, strength: Tensor, draw: Draw, normal: Normal, *, factors: tuple[float, float]) -> Tensor:
    """All values moved towards the image's mean, or away from it."""
    mean = x.mean((1, 2, 3), keepdim=True)
    return mean + by_factors(strength, *factors) * (x - mean)


def tint(x: Tensor, strength: Tensor, draw: Draw, normal: Normal, *, sign: int) -> Tensor:
    """Red and blue multiplied by opposite factors."""
    by = sign * even(strength, 0.08, 0.4)
    return (x + 1) * torch.cat([1 + by, torch.ones_like(by), 1 - by], 1) - 1


GREYS = tuple(partial(scale_colours, by_luminance=each) for each in (True, False))
LEVELS = (shift_level, expose, shift_luminance)


# Saved detectors hold the ids; the texts may change.
PROBES: dict[str, Probe] = {
    "blur": Probe("less fine detail than normal", (blur,)),
    "sharpening": Probe("more fine detail than normal", (sharpen,)),
    "noise": Probe("more noise than normal", tuple(partial(add_noise, channels=each) for each in (3, 1))),
    "grain": Probe("coarser noise than normal", (add_grain,)),
    "compression": Probe("blocks, as after strong compression", (compress, compress_colours_more)),
    "pixelation": Probe("coarse pixels, as if enlarged", (pixelate,)),
    "warp": Probe("wavy, as through bad glass", (warp,)),
    "paler": Probe("paler colours than normal", tuple(partial(form, factors=(0.7, 0.02)) for form in GREYS)),
    "stronger": Probe("stronger colours than normal", tuple(partial(form, factors=(1.4, 4.0)) for form in GREYS)),
    "haze": Probe("hazier than normal", (add_veil, add_fog)),
    "dark_specks": Probe("dark specks or drops", (partial(add_specks, shades=(-1, -0.3)),)),
    "bright_specks": Probe("bright specks or drops", (partial(add_specks, shades=(0.3, 1)),)),
    "brighter": Probe("brighter than normal", tuple(partial(form, sign=1) for form in LEVELS)),
    "darker": Probe("darker than normal", tuple(partial(form, sign=-1) for form in LEVELS)),
    "more_contrast": Probe("more contrast than normal", (partial(scale_contrast, factors=(1.25, 2.5)),)),
    "less_contrast": Probe("less contrast than normal", (partial(scale_contrast, factors=(0.8, 0.1)),)),
    "warmer": Probe("warmer colours than normal", (partial(tint, sign=1),)),
    "colder": Probe("colder colours than normal", (partial(tint, sign=-1),)),
}


def changed(change: Change, pixels: Pixels, *, seed: int) -> Pixels:
    """The images (B, size, size, 3), changed at evenly spread strengths.

    Programs store grey levels in two ways: every other image, in the order of strengths, is truncated to whole numbers,
    and the others are rounded.
    """
    generator = torch.Generator().manual_seed(seed)
    images = to_unit(torch.from_numpy(np.ascontiguousarray(pixels))).permute(0, 3, 1, 2)
    place = torch.randperm(len(pixels), generator=generator).view(-1, 1, 1, 1)
    values = change(images, (place + 0.5) / len(pixels), *random_numbers(len(pixels), generator))
    result = to_pixels(torch.where(place % 2 == 0, values, values - CUT_OFF))
    return np.ascontiguousarray(result.permute(0, 2, 3, 1).numpy())


def central(pixels: Pixels) -> Pixels:
    """The middle of images (B, H, W, 3), with at most MAX_PIXELS each: what changes a whole image is seen there too."""
    height, width = pixels.shape[1:3]
    shrunk = min(1.0, sqrt(MAX_PIXELS / (height * width)))
    if shrunk == 1:
        return pixels
    rows, columns = (
        min(side, max(MULTIPLE * 2, int(shrunk * side) // MULTIPLE * MULTIPLE)) for side in (height, width)
    )
    top, left = ((side - kept) // 2 // BLOCK * BLOCK for side, kept in ((height, rows), (width, columns)))
    return pixels[:, top : top + rows, left : left + columns]


def measure_shifts(
    extract: Callable[[Pixels], Features], pixels: Pixels, *, seed: int, before: Features | None = None
) -> dict[str, NDArray[np.float32]]:
    """The shifts of images (B, size, size, 3) by each probe: probe id -> (images, statistics + tones).

    Images take the forms of a probe in turn. `before` are the features of the unchanged images, if they are known.
    """
    unchanged, shifts = statistics_and_tones(extract(pixels) if before is None else before), {}
    for name, (_, forms) in PROBES.items():
        after = np.empty_like(pixels)
        for number, form in enumerate(forms[: len(pixels)]):
            own = slice(number, None, len(forms))
            after[own] = changed(form, pixels[own], seed=seed)
        shifts[name] = statistics_and_tones(extract(after)) - unchanged
    return shifts


def statistics_and_tones(features: Features) -> NDArray[np.float32]:
    return np.concatenate((features.statistics, features.tones), 1)
