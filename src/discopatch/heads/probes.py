"""Probes: known changes of an image at any strength, and their shifts of the statistics of normal images."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from discopatch.corruptions.degradations import (
    LUMINANCE,
    OCTAVES,
    displaced,
    gaussian,
    rounded_frequencies,
    sampled_in_blocks,
    smooth_noise,
    unit_deviation,
    without_colours,
)
from discopatch.encoders import Features
from discopatch.images import Pixels
from discopatch.images.tensors import to_pixels, to_unit

# Subtracted before rounding, it truncates; a little under half a level, so that whole levels are unchanged.
CUT_OFF = 0.499 / 127.5

# Images (B, 3, H, W) in [-1, 1] and a strength in [0, 1] for each, (B, 1, 1, 1) -> changed images.
Change = Callable[[Tensor, Tensor, torch.Generator], Tensor]


class Probe(NamedTuple):
    """A known change in all its forms, and its description."""

    text: str
    forms: tuple[Change, ...]


def even(strength: Tensor, low: float, high: float) -> Tensor:
    return low + (high - low) * strength


def by_factors(strength: Tensor, low: float, high: float) -> Tensor:
    return low * (high / low) ** strength


def drawn(images: Tensor, generator: torch.Generator, low: float = 0.0, high: float = 1.0) -> Tensor:
    """A random number for each image, (B, 1, 1, 1)."""
    return low + (high - low) * torch.rand(len(images), 1, 1, 1, generator=generator)


def blur(images: Tensor, strength: Tensor, generator: torch.Generator) -> Tensor:
    sigma, stretch = by_factors(strength, 0.6, 4.0), 0.8 * 1.56 ** drawn(images, generator)
    return gaussian(images, sigma * stretch, sigma / stretch)


def sharpen(images: Tensor, strength: Tensor, generator: torch.Generator) -> Tensor:
    smooth = gaussian(images, drawn(images, generator, 0.6, 1.5), drawn(images, generator, 0.6, 1.5))
    return images + even(strength, 0.4, 2.0) * (images - smooth)


def add_noise(channels: int) -> Change:
    """White noise, independent in every colour or equal in all."""

    def change(images: Tensor, strength: Tensor, generator: torch.Generator) -> Tensor:
        noise = torch.randn(len(images), channels, *images.shape[2:], generator=generator)
        return images + by_factors(strength, 0.02, 0.4) * noise

    return change


def add_grain(images: Tensor, strength: Tensor, generator: torch.Generator) -> Tensor:
    noise = smooth_noise(torch.randn(images.shape, generator=generator), drawn(images, generator, 0.7, 2.0))
    return images + by_factors(strength, 0.02, 0.4) * noise


def compress(images: Tensor, strength: Tensor, generator: torch.Generator) -> Tensor:
    """Compression of red, green and blue alike."""
    return rounded_frequencies(images, by_factors(strength, 0.08, 0.8))


def compress_colours_more(images: Tensor, strength: Tensor, generator: torch.Generator) -> Tensor:
    """Compression with colours at half the resolution and coarser than the luminance, as in most files."""
    step, grey = by_factors(strength, 0.08, 0.8), without_colours(images)
    differences = F.avg_pool2d(torch.cat([images[:, :1] - grey, images[:, 2:] - grey], 1), 2)
    coarse = F.interpolate(rounded_frequencies(differences, 1.25 * step), images.shape[2:], mode="bilinear")
    grey = rounded_frequencies(grey, step)
    red, blue = grey + coarse[:, :1], grey + coarse[:, 1:]
    green = (grey - LUMINANCE[0] * red - LUMINANCE[2] * blue) / LUMINANCE[1]
    return torch.cat([red, green, blue], 1)


def pixelate(images: Tensor, strength: Tensor, generator: torch.Generator) -> Tensor:
    return sampled_in_blocks(images, even(strength, 0.8, 0.25))


def warp(images: Tensor, strength: Tensor, generator: torch.Generator) -> Tensor:
    noise = torch.randn(len(images), 2, *images.shape[2:], generator=generator)
    return displaced(images, smooth_noise(noise, 2 * 5 ** drawn(images, generator)) * even(strength, 0.5, 2.5))


def scale_colours(low: float, high: float, grey: Callable[[Tensor], Tensor]) -> Change:
    """Colours moved towards a grey of their luminance, or of another, or away from it."""

    def change(images: Tensor, strength: Tensor, generator: torch.Generator) -> Tensor:
        without = grey(images)
        return without + by_factors(strength, low, high) * (images - without)

    return change


def add_veil(images: Tensor, strength: Tensor, generator: torch.Generator) -> Tensor:
    """A pale veil of uneven thickness, here and there or nearly everywhere."""
    least = drawn(images, generator, 0.0, 0.8)
    thickness = least + (1 - least) * torch.sigmoid(2 * uneven(images, generator))
    return torch.lerp(images, drawn(images, generator, 0.1, 1.0), even(strength, 0.3, 0.9) * thickness)


def add_fog(images: Tensor, strength: Tensor, generator: torch.Generator) -> Tensor:
    """Scattered light from an uneven fog, of equal strength everywhere."""
    shade = drawn(images, generator, -0.2, 0.9) + drawn(images, generator, 0.1, 0.5) * uneven(images, generator)
    return torch.lerp(images, shade.clamp(-1, 1), even(strength, 0.3, 0.85))


def uneven(images: Tensor, generator: torch.Generator) -> Tensor:
    """Clouds of mean 0 and deviation 1, (B, 1, H, W)."""
    clouds = torch.zeros(len(images), 1, *images.shape[2:])
    for cells in OCTAVES:
        layer = torch.randn(len(images), 1, cells, cells, generator=generator)
        clouds = clouds + F.interpolate(layer, images.shape[2:], mode="bicubic") / cells**0.8
    return unit_deviation(clouds)


def add_specks(low: float, high: float) -> Change:
    """Specks or drops of a shade between these on the lens, sharp or soft."""

    def change(images: Tensor, strength: Tensor, generator: torch.Generator) -> Tensor:
        noise = torch.randn(len(images), 1, *images.shape[2:], generator=generator)
        noise = smooth_noise(noise, 5 ** drawn(images, generator))
        spots = torch.sigmoid((noise - drawn(images, generator, 0.8, 2.2)) * drawn(images, generator, 2, 12))
        return torch.lerp(images, drawn(images, generator, low, high), even(strength, 0.4, 1.0) * spots)

    return change


def shift_level(sign: float) -> Change:
    """A constant added to all values: other light."""
    return lambda images, strength, generator: images + sign * even(strength, 0.12, 0.8)


def expose(sign: float) -> Change:
    """All values multiplied by a factor: another exposure."""
    return lambda images, strength, generator: (images + 1) * (sign * even(strength, 0.12, 0.8)).exp() - 1


def shift_luminance(sign: float) -> Change:
    """A constant added to the luminance of all pixels, at their hue and saturation."""

    def change(images: Tensor, strength: Tensor, generator: torch.Generator) -> Tensor:
        before = (without_colours(images) + 1).clamp(min=0.01)
        return (images + 1) * ((before + sign * even(strength, 0.12, 0.8)).clamp(min=0) / before) - 1

    return change


def scale_contrast(low: float, high: float) -> Change:
    """All values moved towards the image's mean, or away from it."""

    def change(images: Tensor, strength: Tensor, generator: torch.Generator) -> Tensor:
        mean = images.mean((1, 2, 3), keepdim=True)
        return mean + by_factors(strength, low, high) * (images - mean)

    return change


def tint(sign: float) -> Change:
    """Red and blue multiplied by opposite factors."""

    def change(images: Tensor, strength: Tensor, generator: torch.Generator) -> Tensor:
        by = sign * even(strength, 0.08, 0.4)
        factors = torch.cat([1 + by, torch.ones_like(by), 1 - by], 1)
        return (images + 1) * factors - 1

    return change


def largest_channel(images: Tensor) -> Tensor:
    return images.amax(1, keepdim=True)


GREYS = (without_colours, largest_channel)
LEVELS = (shift_level, expose, shift_luminance)


# Saved detectors hold the ids; the texts may change.
PROBES: dict[str, Probe] = {
    "blur": Probe("less fine detail than normal", (blur,)),
    "sharpening": Probe("more fine detail than normal", (sharpen,)),
    "noise": Probe("more noise than normal", (add_noise(3), add_noise(1))),
    "grain": Probe("coarser noise than normal", (add_grain,)),
    "compression": Probe("blocks, as after strong compression", (compress, compress_colours_more)),
    "pixelation": Probe("coarse pixels, as if enlarged", (pixelate,)),
    "warp": Probe("wavy, as through bad glass", (warp,)),
    "paler": Probe("paler colours than normal", tuple(scale_colours(0.7, 0.02, grey) for grey in GREYS)),
    "stronger": Probe("stronger colours than normal", tuple(scale_colours(1.4, 4.0, grey) for grey in GREYS)),
    "haze": Probe("hazier than normal", (add_veil, add_fog)),
    "dark_specks": Probe("dark specks or drops", (add_specks(-1.0, -0.3),)),
    "bright_specks": Probe("bright specks or drops", (add_specks(0.3, 1.0),)),
    "brighter": Probe("brighter than normal", tuple(form(1) for form in LEVELS)),
    "darker": Probe("darker than normal", tuple(form(-1) for form in LEVELS)),
    "more_contrast": Probe("more contrast than normal", (scale_contrast(1.25, 2.5),)),
    "less_contrast": Probe("less contrast than normal", (scale_contrast(0.8, 0.1),)),
    "warmer": Probe("warmer colours than normal", (tint(1),)),
    "colder": Probe("colder colours than normal", (tint(-1),)),
}


def changed(change: Change, pixels: Pixels, *, seed: int) -> Pixels:
    """The images (B, size, size, 3), changed at evenly spread strengths.

    Programs store grey levels in two ways: every other image, in the order of strengths, is truncated to whole numbers,
    and the others are rounded.
    """
    generator = torch.Generator().manual_seed(seed)
    images = to_unit(torch.from_numpy(np.ascontiguousarray(pixels))).permute(0, 3, 1, 2)
    place = torch.randperm(len(pixels), generator=generator).view(-1, 1, 1, 1)
    values = change(images, (place + 0.5) / len(pixels), generator)
    result = to_pixels(torch.where(place % 2 == 0, values, values - CUT_OFF))
    return np.ascontiguousarray(result.permute(0, 2, 3, 1).numpy())


def in_turn(probe: Probe, pixels: Pixels, *, seed: int) -> Pixels:
    """The images, each in one of the probe's forms."""
    result = np.empty_like(pixels)
    for number, form in enumerate(probe.forms):
        own = slice(number, None, len(probe.forms))
        if len(pixels[own]):
            result[own] = changed(form, pixels[own], seed=seed)
    return result


def measure_shifts(
    extract: Callable[[Pixels], Features],
    pixels: Pixels,
    *,
    seed: int,
    before: NDArray[np.float32] | None = None,
) -> dict[str, NDArray[np.float32]]:
    """The shifts of the statistics of images (B, size, size, 3) by each probe: probe id -> (images, 2 x channels).

    `before` are the statistics of the unchanged images, if they are known.
    """
    before = extract(pixels).statistics if before is None else before
    return {name: extract(in_turn(probe, pixels, seed=seed)).statistics - before for name, probe in PROBES.items()}
