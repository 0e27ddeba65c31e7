"""Degradations of real images, as a camera makes them when something goes wrong: negatives for training, probes.

Images are (B, 3, H, W) in [-1, 1]. Every image has a random strength of its own.
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
GAMMA = 2.2  # between light and the values of an image
MARGIN = 16  # pixels of an image's mirror image around it, more than half of any kernel
# Steps of the frequencies of a block, in 8-bit levels at quality 50: the mean of the table of luminance in Annex K of
# the JPEG standard over all frequencies with the same sum of rows and columns; colours have the second row.
JPEG_STEPS = (
    (16, 11.5, 12.0, 16.5, 21.6, 36.7, 51.1, 63.6, 67.0, 72.8, 89.2, 98.8, 99.3, 102.0, 99.0),
    (17, 18.0, 22.7, 47.0, 76.4, 93.3, *[99.0] * 9),
)


def degrade(images: Tensor, degradation: Degradation, generator: torch.Generator, *, twins: int = 1) -> Tensor:
    """The images, degraded at random strengths, on the 256 levels that a real image has.

    The first of `twins` equal parts of the images and the parts after it have the same draws, but for noise.
    """
    return to_unit(to_pixels(degradation(images, *random_numbers(len(images), generator, twins=twins))))


def random_numbers(count: int, generator: torch.Generator, *, twins: int = 1) -> tuple[Draw, Normal]:
    """Functions that draw uniform numbers for so many images, and normal ones, on the generator's device."""
    rand, randn = (partial(f, generator=generator, device=generator.device) for f in (torch.rand, torch.randn))
    return lambda low, high: low + (high - low) * rand(count // twins, 1, 1, 1).repeat(twins, 1, 1, 1), randn


def noisy(x: Tensor, draw: Draw, normal: Normal) -> Tensor:
    """White noise of 0.01 to 0.2 of the range, coloured or grey."""
    noise = normal(x.shape)
    return x + 0.02 * 20 ** draw(0, 1) * torch.where(draw(0, 1) < 0.5, noise, noise[:, :1])


def sensor_noise(x: Tensor, draw: Draw, normal: Normal) -> Tensor:
    """Noise of a sensor: of photons and of reading, before colours are interpolated between the pixels of each."""
    light = to_light(x)
    photons, reading = 3e-4 * 100 ** draw(0, 1), 1e-3 * 20 ** draw(0, 1)
    noise = normal(x.shape) * (photons * light + reading**2).sqrt()
    return from_light(light + interpolated_colours(noise))


def interpolated_colours(x: Tensor) -> Tensor:
    """What is left of an image when a sensor takes one colour in each pixel, and the others are interpolated."""
    height, width = x.shape[2:]
    mask, kernel = colour_filter(x.device)
    mask = mask.repeat(1, 1, -(-height // 2), -(-width // 2))[:, :, :height, :width]
    taken = F.pad(torch.cat((x * mask, mask.expand_as(x))), (1, 1, 1, 1), mode="reflect")
    sums, weights = F.conv2d(taken, kernel, groups=3).chunk(2)
    return sums / weights


@cache
def colour_filter(device: torch.device) -> tuple[Tensor, Tensor]:
    """Bayer's mask (1, 3, 2, 2), and the weights of bilinear interpolation (3, 1, 3, 3)."""
    mask = torch.tensor([[[1.0, 0], [0, 0]], [[0, 1], [1, 0]], [[0, 0], [0, 1]]], device=device)[None]
    along = torch.tensor([0.5, 1, 0.5], device=device)
    return mask, (along[:, None] * along).expand(3, 1, 3, 3).contiguous()


def to_light(x: Tensor) -> Tensor:
    """Values in [-1, 1] as light in [0, 1]."""
    return ((x.clamp(-1, 1) + 1) / 2) ** GAMMA


def from_light(light: Tensor) -> Tensor:
    return 2 * light.clamp(1e-6, 1) ** (1 / GAMMA) - 1


def defocused(x: Tensor, draw: Draw, normal: Normal) -> Tensor:
    """Blurred by a disk of radius 0.6 to 6 pixels, in light."""
    radius = 0.6 * 10 ** draw(0, 1)
    rows, columns = kernel_places(x.device)
    return convolved(x, (radius + 0.5 - (rows**2 + columns**2).sqrt()).clamp(0, 1))


def shaken(x: Tensor, draw: Draw, normal: Normal) -> Tensor:
    """Blurred along a line or an arc of 2 to 24 pixels, whose ends count as much as its middle or less, in light."""
    length, angle, bend, fading = 2 * 12 ** draw(0, 1), draw(0, torch.pi), draw(-0.04, 0.04), draw(0, 3)
    rows, columns = kernel_places(x.device)
    along, across = columns * angle.cos() + rows * angle.sin(), rows * angle.cos() - columns * angle.sin()
    inside = (length / 2 + 0.5 - along.abs()).clamp(0, 1) * (1 - (across - bend * along**2).abs()).clamp(0, 1)
    return convolved(x, inside * torch.exp(-fading * (along / length + 0.5).clamp(0, 1)))


@cache
def kernel_places(device: torch.device) -> tuple[Tensor, Tensor]:
    """Rows and columns from the middle of a kernel."""
    places = torch.arange(-MARGIN + 1, MARGIN, device=device)
    rows, columns = torch.meshgrid(places, places, indexing="ij")
    return rows, columns


def convolved(x: Tensor, kernels: Tensor) -> Tensor:
    """The light of each image, convolved with its own kernel (B, 1, K, K) of positive weights."""
    mirrored = min(x.shape[2:]) > MARGIN
    padded = F.pad(to_light(x), (MARGIN,) * 4, mode="reflect" if mirrored else "replicate")
    size = list(padded.shape[2:])
    spectrum = torch.fft.rfft2(kernels / kernels.sum((2, 3), keepdim=True), s=size)
    found = torch.fft.irfft2(torch.fft.rfft2(padded) * spectrum, s=size)
    start = 2 * MARGIN - 1
    return from_light(found[..., start : start + x.shape[2], start : start + x.shape[3]])


def denoised(x: Tensor, draw: Draw, normal: Normal) -> Tensor:
    """Smoothed where differences between pixels are small, as by a filter against noise: a guided filter."""
    grey, weakest = without_colours(x), (0.02 * 15 ** draw(0, 1)) ** 2
    small = draw(0, 1) < 0.5

    def averaged(values: Tensor) -> Tensor:
        near, far = (F.avg_pool2d(values, side, 1, side // 2, count_include_pad=False) for side in (3, 7))
        return torch.where(small, near, far)

    mean, means = averaged(grey), averaged(x)
    variance = averaged(grey * grey) - mean * mean
    slope = (averaged(grey * x) - mean * means) / (variance + weakest)
    return averaged(slope) * grey + averaged(means - slope * mean)


def rescaled(x: Tensor, draw: Draw, normal: Normal) -> Tensor:
    """Stored at 0.35 to 0.9 of the resolution, by one of two filters each way."""
    scale, cubic = draw(0.35, 0.9), (draw(0, 1) < 0.5, draw(0, 1) < 0.5)
    rows, columns = (resampling(scale, side, cubic) for side in x.shape[2:])
    return rows @ x @ columns.mT


def resampling(scale: Tensor, side: int, cubic: tuple[Tensor, Tensor]) -> Tensor:
    """(B, 1, side, side): a line shrunk by that scale and enlarged again, by a cubic or linear filter each."""
    places = torch.arange(side, device=scale.device)
    distance = (places + 0.5) * scale - 0.5 - places[:, None]  # (B, 1, coarse, fine), in coarse pixels
    there = (places[:, None] < (side * scale).ceil()).float()
    down, up = (torch.where(each, cubic_weights(distance), (1 - distance.abs()).clamp(min=0)) * there for each in cubic)
    down = down / down.sum(3, keepdim=True).clamp(min=1e-6)
    up = up / up.sum(2, keepdim=True)
    return up.mT @ down


def cubic_weights(distance: Tensor) -> Tensor:
    """Keys' cubic filter with a = -0.5."""
    x = distance.abs()
    near, far = (1.5 * x - 2.5) * x**2 + 1, ((-0.5 * x + 2.5) * x - 4) * x + 2
    return torch.where(x < 1, near, torch.where(x < 2, far, 0))


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
    frequency = torch.arange(BLOCK, device=x.device)
    return rounded_to(x, (1 + 0.5 * (frequency[:, None, None] + frequency)) * smallest_step[..., None, None])


def rounded_to(x: Tensor, step: Tensor) -> Tensor:
    """Frequencies of 8 x 8 blocks rounded to these steps, (B, 1, 1, 8, 1, 8)."""
    height, width = (side - side % BLOCK for side in x.shape[2:])
    basis = cosines(x.device)
    # The blocks stay in the places of their pixels, (B, 3, rows, 8, columns, 8): no product is of a single block.
    down = basis @ x[..., :height, :width].unflatten(2, (-1, BLOCK))
    rounded = ((down.unflatten(4, (-1, BLOCK)) @ basis.T) / step).round() * step
    result = x.clone()
    result[..., :height, :width] = (basis.T @ (rounded @ basis).flatten(4, 5)).flatten(2, 3)
    return result


def compressed(x: Tensor, draw: Draw, normal: Normal) -> Tensor:
    """As lossy files do: with one step of all colours, or as JPEG files of quality 8 to 70, once or twice."""
    once = jpeg(x, 100 / (8 * 10.6 ** draw(0, 1)))
    shifts = (3, 5)
    again = jpeg(once.roll(shifts, (2, 3)), 100 / (20 * 4 ** draw(0, 1))).roll((-3, -5), (2, 3))
    file = torch.where(draw(0, 1) < 0.7, once, again)
    return torch.where(draw(0, 1) < 0.4, rounded_frequencies(x, 0.08 * 10 ** draw(0, 1)), file)


def jpeg(x: Tensor, coarseness: Tensor) -> Tensor:
    """Frequencies rounded to the steps of JPEG times half of `coarseness`, colours at half the resolution."""
    grey, colours = (jpeg_steps(x.device)[kind] * coarseness[..., None, None] / 2 for kind in (0, 1))
    return with_coarse_colours(x, partial(rounded_to, step=grey), partial(rounded_to, step=colours))


def with_coarse_colours(
    x: Tensor, of_grey: Callable[[Tensor], Tensor], of_colours: Callable[[Tensor], Tensor]
) -> Tensor:
    """The luminance, and the differences of colours at half the resolution, each through its function, joined again."""
    grey = without_colours(x)
    differences = F.avg_pool2d(torch.cat([x[:, :1] - grey, x[:, 2:] - grey], 1), 2)
    coarse = F.interpolate(of_colours(differences), x.shape[2:], mode="bilinear")
    grey = of_grey(grey)
    red, blue = grey + coarse[:, :1], grey + coarse[:, 1:]
    return torch.cat([red, (grey - LUMINANCE[0] * red - LUMINANCE[2] * blue) / LUMINANCE[1], blue], 1)


@cache
def jpeg_steps(device: torch.device) -> Tensor:
    """(2, 1, 1, 8, 1, 8): steps of luminance and colours, in the places of a block's frequencies."""
    frequency = torch.arange(BLOCK)
    steps = torch.tensor(JPEG_STEPS)[:, frequency[:, None] + frequency] / 127.5
    return steps.view(2, 1, 1, BLOCK, 1, BLOCK).to(device)


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
    """Brighter or darker, by what is added to all values or to the largest of each pixel, a factor, or a power."""
    by = torch.where(draw(0, 1) < 0.5, 1, -1) * 0.08 * 10 ** draw(0, 1)
    form, unit = draw(0, 4), (x + 1) / 2
    largest = unit.amax(1, keepdim=True).clamp(min=1e-3)
    forms = (x + by, (x + 1) * by.exp() - 1, 2 * unit * ((largest + by / 2).clamp(0, 1) / largest) - 1)
    power = 2 * unit.clamp(1e-6, 1) ** (-by).exp() - 1
    return torch.where(form < 1, forms[0], torch.where(form < 2, forms[1], torch.where(form < 3, forms[2], power)))


def contrasted(x: Tensor, draw: Draw, normal: Normal) -> Tensor:
    """Values moved towards the image's mean, or away from it."""
    mean, less = x.mean((1, 2, 3), keepdim=True), 0.85 * 0.12 ** draw(0, 1)
    return mean + (x - mean) * torch.where(draw(0, 1) < 0.6, less, 1.15 * 2 ** draw(0, 1))


def tinted(x: Tensor, draw: Draw, normal: Normal) -> Tensor:
    """Red and blue multiplied by factors of their own, as by a wrong balance of white."""
    red, blue = ((draw(0.06, 0.35) * torch.where(draw(0, 1) < 0.5, 1, -1)).exp() for _ in range(2))
    return (x + 1) * torch.cat([red, torch.ones_like(red), blue], 1) - 1


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
    return x / x.std((1, 2, 3), keepdim=True)


def gaussian(x: Tensor, sigma_rows: Tensor, sigma_columns: Tensor) -> Tensor:
    """Each image blurred by its own sigma, (B, 1, 1, 1): two matrix products, faster than many convolutions."""
    rows, columns = blur_matrix(sigma_rows, x.shape[2]), blur_matrix(sigma_columns, x.shape[3])
    return rows @ x @ columns.mT


def blur_matrix(sigma: Tensor, size: int) -> Tensor:
    """(B, 1, 1, 1) -> (B, 1, size, size), rows that sum to 1."""
    places = torch.arange(size, device=sigma.device)
    by_distance = torch.exp(-0.5 * (places / sigma) ** 2)
    by_distance = torch.where(by_distance < 1e-30, 0, by_distance)  # subnormal numbers take many times as long
    weights = by_distance[:, :, 0, (places - places[:, None]).abs()]
    return weights / weights.sum(3, keepdim=True)


def cosines(device: torch.device) -> Tensor:
    """The orthonormal cosine transform of a block's side, (8, 8)."""
    places = torch.arange(BLOCK, device=device)
    basis: Tensor = torch.cos(torch.pi / BLOCK * (places + 0.5) * places[:, None]) * sqrt(2 / BLOCK)
    basis[0] /= sqrt(2)
    return basis


# In the order in which a camera makes them: several of an image follow it.
DEGRADATIONS: dict[str, Degradation] = {
    "hazy": hazy,
    "dirty": dirty,
    "warped": warped,
    "defocused": defocused,
    "shaken": shaken,
    # Gaussian, sigma 0.5 to 2.5 pixels along each axis.
    "blurred": lambda x, draw, normal: gaussian(x, 0.5 * 5 ** draw(0, 1), 0.5 * 5 ** draw(0, 1)),
    "sensor_noise": sensor_noise,
    "noisy": noisy,
    # Noise of 0.01 to 0.2 of the range whose grains are a few pixels wide.
    "grainy": lambda x, draw, normal: x + 0.02 * 20 ** draw(0, 1) * smooth_noise(normal(x.shape), draw(0.4, 1.5)),
    "exposed": exposed,
    "tinted": tinted,
    "discoloured": discoloured,
    "contrasted": contrasted,
    "denoised": denoised,
    # What a slight blur takes away, added once more.
    "sharpened": lambda x, draw, normal: x + draw(0.4, 2) * (x - gaussian(x, draw(0.6, 1.5), draw(0.6, 1.5))),
    "blocky": lambda x, draw, normal: sampled_in_blocks(x, draw(0.3, 0.8)),
    "rescaled": rescaled,
    "compressed": compressed,
}
