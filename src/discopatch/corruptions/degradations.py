"""Mild degradations of real images, as a camera makes them when something goes wrong: negatives for training, probes.

Images are (B, 3, H, W) in [-1, 1].
"""

from collections.abc import Callable
from functools import cache, partial
from math import sqrt

import torch
import torch.nn.functional as F
from torch import Tensor

from discopatch.images.tensors import to_pixels, to_unit

Draw = Callable[[float, float], Tensor]  # uniform between two bounds, one value an image, (B, 1, 1, 1)
Normal = Callable[..., Tensor]  # standard normal values of a shape
Degradation = Callable[[Tensor, Draw, Normal], Tensor]

BLOCK = 8
LUMINANCE = (0.299, 0.587, 0.114)
OCTAVES = (3, 6, 12, 24, 48)


def degrade(images: Tensor, degradation: Degradation, generator: torch.Generator) -> Tensor:
    """The images, each degraded at a random strength of its own, on the 256 levels that a real image has."""
    return to_unit(to_pixels(degradation(images, *random_numbers(len(images), generator))))


def random_numbers(count: int, generator: torch.Generator) -> tuple[Draw, Normal]:
    """Functions that draw uniform numbers for so many images, and normal ones, on the generator's device."""
    rand, randn = (partial(f, generator=generator, device=generator.device) for f in (torch.rand, torch.randn))
    return lambda low, high: low + (high - low) * rand(count, 1, 1, 1), randn


def noisy(x: Tensor, draw: Draw, normal: Normal) -> Tensor:
    """White noise of 0.01 to 0.2 of the range, coloured or grey."""
    noise = normal(x.shape)
    return x + 0.02 * 20 ** draw(0, 1) * torch.where(draw(0, 1) < 0.5, noise, noise[:, :1])


def sampled_in_blocks(x: Tensor, scale: Tensor) -> Tensor:
    """Sampled at that share of the resolution, each sample shown as a block."""
    coarse = gaussian(x, 0.4 / scale, 0.4 / scale)
    for axis, size in ((2, x.shape[2]), (3, x.shape[3])):
        places = torch.arange(size, device=x.device).view([-1 if each == axis else 1 for each in range(4)])
        nearest = (((places * scale).floor() + 0.5) / scale).long().clamp(max=size - 1)
        coarse = coarse.gather(axis, nearest.expand_as(x))
    return coarse


def rounded_frequencies(x: Tensor, smallest_step: Tensor) -> Tensor:
    """Frequencies of 8 x 8 blocks rounded to steps, the coarser the higher the frequency."""
    height, width = (side - side % BLOCK for side in x.shape[2:])
    basis = cosines(x.device)
    frequency = torch.arange(BLOCK, device=x.device)
    step = (1 + 0.5 * (frequency[:, None, None] + frequency)) * smallest_step[..., None, None]
    # The blocks stay in the places of their pixels, (B, 3, rows, 8, columns, 8): no product is of a single block.
    down = basis @ x[..., :height, :width].unflatten(2, (-1, BLOCK))
    rounded = ((down.unflatten(4, (-1, BLOCK)) @ basis.T) / step).round() * step
    result = x.clone()
    result[..., :height, :width] = (basis.T @ (rounded @ basis).flatten(4, 5)).flatten(2, 3)
    return result


def warped(x: Tensor, draw: Draw, normal: Normal) -> Tensor:
    """Displaced by half a pixel to two and a half, finely or widely, as through frosted glass or hot air."""
    return displaced(x, smooth_noise(normal((len(x), 2, *x.shape[2:])), 0.6 * 17 ** draw(0, 1)) * draw(0.5, 2.5))


def displaced(x: Tensor, shift: Tensor) -> Tensor:
    """Every pixel taken from so many columns and rows away, (B, 2, H, W)."""
    rows, columns = torch.meshgrid(*(torch.arange(side, device=x.device) for side in x.shape[2:]), indexing="ij")
    places = [(at + by) * 2 / (at.max()) - 1 for at, by in ((columns, shift[:, 0]), (rows, shift[:, 1]))]
    return F.grid_sample(x, torch.stack(places, dim=3), padding_mode="reflection", align_corners=True)


def discoloured(x: Tensor, draw: Draw, normal: Normal) -> Tensor:
    """Colours paler or stronger than they were."""
    grey = without_colours(x)
    return grey + (x - grey) * torch.where(draw(0, 1) < 0.5, draw(0, 0.6), draw(1.5, 3))


def without_colours(x: Tensor) -> Tensor:
    """The luminance, (B, 1, H, W)."""
    return (x * luminance_weights(x.device)).sum(1, keepdim=True)


@cache
def luminance_weights(device: torch.device) -> Tensor:
    """(1, 3, 1, 1), made once: to move it to a GPU would wait for it each time."""
    return torch.tensor(LUMINANCE, device=device).view(1, 3, 1, 1)


def exposed(x: Tensor, draw: Draw, normal: Normal) -> Tensor:
    """Brighter or darker, by what is added to all values or by what they are multiplied with."""
    by = torch.where(draw(0, 1) < 0.5, 1, -1) * draw(0.12, 0.8)
    return torch.where(draw(0, 1) < 0.5, x + by, (x + 1) * by.exp() - 1)


def hazy(x: Tensor, draw: Draw, normal: Normal) -> Tensor:
    """Behind a pale veil of uneven thickness."""
    thickness = torch.sigmoid(2 * clouds(x, normal))
    return torch.lerp(x, draw(0.4, 1), draw(0.3, 0.9) * thickness)


def clouds(x: Tensor, normal: Normal) -> Tensor:
    """Clouds of mean 0 and deviation 1, (B, 1, H, W)."""
    layers = (F.interpolate(normal((len(x), 1, n, n)), x.shape[2:], mode="bicubic") / n**0.8 for n in OCTAVES)
    return unit_deviation(sum(layers, torch.zeros_like(x[:, :1])))


def dirty(x: Tensor, draw: Draw, normal: Normal) -> Tensor:
    """Specks or drops of one shade on the lens, many or few, sharp or soft."""
    noise = smooth_noise(normal((len(x), 1, *x.shape[2:])), 5 ** draw(0, 1))
    spots = torch.sigmoid((noise - draw(0.8, 2.6)) * draw(2, 12))
    return torch.lerp(x, draw(-1, 1), draw(0.3, 1) * spots)


def smooth_noise(noise: Tensor, sigma: Tensor) -> Tensor:
    """White noise with grains of that size, at its old strength."""
    return unit_deviation(gaussian(noise, sigma, sigma))


def unit_deviation(x: Tensor) -> Tensor:
    """Each image with standard deviation 1."""
    return x / x.std((1, 2, 3), keepdim=True)


def gaussian(x: Tensor, sigma_rows: Tensor, sigma_columns: Tensor) -> Tensor:
    """Each image blurred by its own sigma, (B, 1, 1, 1): two matrix products, faster than many convolutions."""
    rows, columns = blur_matrix(sigma_rows, x.shape[2]), blur_matrix(sigma_columns, x.shape[3])
    result: Tensor = rows @ x @ columns.mT
    return result


def blur_matrix(sigma: Tensor, size: int) -> Tensor:
    """(B, 1, 1, 1) -> (B, 1, size, size), rows that sum to 1."""
    places = torch.arange(size, device=sigma.device)
    weights = torch.exp(-0.5 * ((places - places[:, None]) / sigma) ** 2)
    return weights / weights.sum(3, keepdim=True)


def cosines(device: torch.device) -> Tensor:
    """The orthonormal cosine transform of a block's side, (8, 8)."""
    places = torch.arange(BLOCK, device=device)
    basis: Tensor = torch.cos(torch.pi / BLOCK * (places + 0.5) * places[:, None]) * sqrt(2 / BLOCK)
    basis[0] /= sqrt(2)
    return basis


DEGRADATIONS: dict[str, Degradation] = {
    # Gaussian, sigma 0.5 to 2.5 pixels along each axis.
    "blurred": lambda x, draw, normal: gaussian(x, 0.5 * 5 ** draw(0, 1), 0.5 * 5 ** draw(0, 1)),
    "noisy": noisy,
    # As lossy files do.
    "compressed": lambda x, draw, normal: rounded_frequencies(x, 0.08 * 10 ** draw(0, 1)),
    "warped": warped,
    "hazy": hazy,
    "dirty": dirty,
    # What a slight blur takes away, added once more.
    "sharpened": lambda x, draw, normal: x + draw(0.4, 2) * (x - gaussian(x, draw(0.6, 1.5), draw(0.6, 1.5))),
    # Noise of 0.01 to 0.2 of the range whose grains are a few pixels wide.
    "grainy": lambda x, draw, normal: x + 0.02 * 20 ** draw(0, 1) * smooth_noise(normal(x.shape), draw(0.4, 1.5)),
    "blocky": lambda x, draw, normal: sampled_in_blocks(x, draw(0.3, 0.8)),
    "discoloured": discoloured,
    "exposed": exposed,
}
