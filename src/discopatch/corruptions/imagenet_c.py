"""The 19 corruptions of ImageNet-C at five severities, seeded, for images of any size from 32 pixels.

They are those of its published program, github.com/hendrycks/robustness, whose lengths in pixels are for 224 pixels.
Inside, an image is floats in [0, 1], (H, W, 3), and the constants of a formula are its last arguments.
"""

import io
from collections.abc import Callable

import numpy as np
from PIL import Image

from discopatch.corruptions import filters
from discopatch.corruptions.filters import Floats, blur_with_gaussian, stored, to_bytes
from discopatch.corruptions.frost import frost_crop, photograph_folder
from discopatch.errors import ParameterError
from discopatch.images import Pixels

Formula = Callable[..., Floats]  # of image, generator, and the constants of a severity

CORRUPTIONS: dict[str, Callable[[Floats, int, np.random.Generator], Floats]] = {}
FAMILIES: dict[str, tuple[str, ...]] = {}
SEVERITIES = (1, 2, 3, 4, 5)
VERSION = 2  # goes up whenever corrupted pixels change

ELASTIC_SIDE = 244 / 224  # the side that elastic's constants are shares of, in sides of the image
HUE_OF_GREY = np.array([0.0, 1.0, 1.0])  # red
LUMA = np.array([0.299, 0.587, 0.114])
WATER = np.array([175, 238, 238]) / 255
MUD = np.array([63, 42, 20]) / 255
THICK_MUD = 0.8  # of the smoothed mask; thinner mud is not there


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
    found: dict[str, str | int] = {"corrupt": name, "severity": severity, "version": VERSION}
    return {**found, "texture": "photographs" if photograph_folder() else "procedural"} if name == "frost" else found


def corruption(family: str, *constants: float | tuple[float, ...]) -> Callable[[Formula], Formula]:
    """Registers a formula under its name, with its constants at each severity."""

    def register(formula: Formula) -> Formula:
        def at_severity(x: Floats, severity: int, rng: np.random.Generator) -> Floats:
            found = constants[severity - 1]
            return formula(x, rng, *(found if isinstance(found, tuple) else (found,)))

        CORRUPTIONS[formula.__name__] = at_severity
        FAMILIES[family] = (*FAMILIES.get(family, ()), formula.__name__)
        return formula

    return register


@corruption("noise", 0.08, 0.12, 0.18, 0.26, 0.38)
def gaussian_noise(x: Floats, rng: np.random.Generator, deviation: float) -> Floats:
    """Adds N(0, deviation) to every value."""
    return x + rng.normal(scale=deviation, size=x.shape)


@corruption("noise", 60, 25, 12, 5, 3)
def shot_noise(x: Floats, rng: np.random.Generator, photons: int) -> Floats:
    """Poisson(x photons) / photons: so many photons make white."""
    return rng.poisson(x * photons) / photons


@corruption("noise", 0.03, 0.06, 0.09, 0.17, 0.27)
def impulse_noise(x: Floats, rng: np.random.Generator, share: float) -> Floats:
    """Every value becomes 0 with probability share / 2, and 1 with probability share / 2."""
    uniform = rng.random(x.shape)
    return np.where(uniform < share / 2, 0.0, np.where(uniform < share, 1.0, x))


@corruption("noise", 0.15, 0.2, 0.35, 0.45, 0.6)
def speckle_noise(x: Floats, rng: np.random.Generator, deviation: float) -> Floats:
    """Adds x N(0, deviation): the brighter, the noisier."""
    return x + x * rng.normal(scale=deviation, size=x.shape)


@corruption("blur", 1, 2, 3, 4, 6)
def gaussian_blur(x: Floats, rng: np.random.Generator, sigma: float) -> Floats:
    """Gaussian; beyond its border the image goes on as its border."""
    return blur_with_gaussian(x, sigma)


@corruption("blur", (3, 0.1), (4, 0.5), (6, 0.5), (8, 0.5), (10, 0.5))
def defocus_blur(x: Floats, rng: np.random.Generator, radius: int, rim: float) -> Floats:
    """Convolves with a disk, its rim smoothed with that sigma; the image is mirrored at its border."""
    return filters.convolve(x, filters.disk(radius, rim), border="reflect")


@corruption("blur", (0.7, 1, 2), (0.9, 2, 1), (1, 2, 3), (1.1, 3, 2), (1.5, 4, 2))
def glass_blur(x: Floats, rng: np.random.Generator, sigma: float, furthest: int, passes: int) -> Floats:
    """Gaussian, then pixels take the colours of others at most so far away, in so many passes; the Gaussian again."""
    height, width, channels = x.shape
    taken = np.arange(height * width)
    for _ in range(passes):
        down, right = rng.integers(-furthest, furthest, (2, height, width))
        taken = taken[filters.scanned_places(down, right, furthest)]
    colours = stored(blur_with_gaussian(x, sigma)).reshape(-1, channels)
    return blur_with_gaussian(np.take(colours, taken, axis=0).reshape(x.shape), sigma)


@corruption("blur", (10, 3), (15, 5), (15, 8), (15, 12), (20, 15))
def motion_blur(x: Floats, rng: np.random.Generator, radius: int, sigma: float) -> Floats:
    """Convolves with half a Gaussian along a ray at a random angle of -45 to 45 degrees."""
    return filters.convolve(x, filters.one_sided_line(radius, sigma, rng.uniform(-45, 45)), border="edge")


@corruption("blur", (1.11, 0.01), (1.16, 0.01), (1.21, 0.02), (1.26, 0.02), (1.31, 0.03))
def zoom_blur(x: Floats, rng: np.random.Generator, largest: float, step: float) -> Floats:
    """Mean of the image and its zooms about the middle by 1, 1 + step, ... up to the largest."""
    zooms = np.arange(1, largest, step)  # its rounding errors decide whether the largest is among them
    single = x.astype(np.float32)  # errs by far less than a grey level, in half the time
    total = 2 * single  # the image, and its zoom by 1
    for zoom in zooms[1:]:
        total += filters.zoom_centre(single, float(zoom))
    return total.astype(np.float64) / (len(zooms) + 1)


@corruption(
    "weather",
    (0.1, 0.3, 3, 0.5, 10, 4, 0.8),
    (0.2, 0.3, 2, 0.5, 12, 4, 0.7),
    (0.55, 0.3, 4, 0.9, 12, 8, 0.7),
    (0.55, 0.3, 4.5, 0.85, 12, 8, 0.65),
    (0.55, 0.3, 2.5, 0.85, 12, 12, 0.55),
)
def snow(x: Floats, rng: np.random.Generator, *constants: float) -> Floats:
    """own x + (1 - own) max(x, 1.5 grey + 0.5), plus a layer of flakes and the layer upside down.

    Flakes are N(mean, deviation) zoomed, dark below the threshold, in [0, 1], and smeared at -135 to -45 degrees; they
    are stored in 8 bits before and after.
    """
    mean, deviation, zoom, threshold, radius, sigma, own = constants
    noise = filters.zoom_centre(rng.normal(mean, deviation, x.shape[:2]), zoom)
    flakes = stored(np.where(noise < threshold, 0, noise))
    smear = filters.one_sided_line(int(radius), sigma, rng.uniform(-135, -45))
    flakes = stored(filters.convolve(flakes, smear, border="edge"))
    pale: Floats = np.maximum(x, 1.5 * (x @ LUMA)[..., None] + 0.5)
    return own * x + (1 - own) * pale + (flakes + flakes[::-1, ::-1])[..., None]


@corruption("weather", (1, 0.4), (0.8, 0.6), (0.7, 0.7), (0.65, 0.7), (0.6, 0.75))
def frost(x: Floats, rng: np.random.Generator, own: float, ice: float) -> Floats:
    """own x + ice frost, a random crop of a texture."""
    return own * x + ice * frost_crop(x.shape[0], x.shape[1], rng)


@corruption("weather", (1.5, 2), (2, 2), (2.5, 1.7), (2.5, 1.5), (3, 1.4))
def fog(x: Floats, rng: np.random.Generator, thickness: float, decay: float) -> Floats:
    """(x + thickness clouds) m / (m + thickness), with m the largest value of the image."""
    brightest = float(x.max())
    veil = filters.clouds(x.shape[0], x.shape[1], decay, rng)[..., None]
    return (x + thickness * veil) * (brightest / (brightest + thickness))


@corruption("weather", 0.1, 0.2, 0.3, 0.4, 0.5)
def brightness(x: Floats, rng: np.random.Generator, amount: float) -> Floats:
    """V + amount in HSV, at most 1: a new V scales the colour, and hue and saturation stay."""
    value = x.max(axis=2, keepdims=True)
    brighter = (value + amount).clip(0, 1)
    scaled: Floats = np.where(value > 0, x * (brighter / np.where(value > 0, value, 1)), brighter)
    return scaled


@corruption("digital", 0.4, 0.3, 0.2, 0.1, 0.05)
def contrast(x: Floats, rng: np.random.Generator, factor: float) -> Floats:
    """(x - m) factor + m, with m the mean of each channel."""
    mean: Floats = x.mean(axis=(0, 1))
    return (x - mean) * factor + mean


@corruption("digital", (2, 0.7, 0.1), (2, 0.08, 0.2), (0.05, 0.01, 0.02), (0.07, 0.01, 0.02), (0.12, 0.01, 0.02))
def elastic_transform(x: Floats, rng: np.random.Generator, *shares: float) -> Floats:
    """A random affine warp by points shifted up to a length, then a displacement by alpha times U(-1, 1), smoothed.

    The constants are alpha, the sigma of the smoothing, and the largest shift: shares of the side.
    """
    height, width = x.shape[:2]
    alpha, sigma, shift = (share * ELASTIC_SIDE * min(height, width) for share in shares)
    warped = filters.interpolated(x.astype(np.float32), *filters.affine_places(height, width, shift, rng))
    shifts = alpha * filters.smoothed(rng.uniform(-1, 1, (2, height, width)), sigma)
    return filters.displaced(warped, shifts).astype(np.float64)


@corruption("digital", 0.6, 0.5, 0.4, 0.3, 0.25)
def pixelate(x: Floats, rng: np.random.Generator, share: float) -> Floats:
    """Down to that share of each side by the mean of boxes, and up again."""
    height, width = x.shape[:2]
    small = Image.fromarray(to_bytes(x)).resize((int(width * share), int(height * share)), Image.Resampling.BOX)
    return np.asarray(small.resize((width, height), Image.Resampling.BOX)) / 255


@corruption("digital", 25, 18, 15, 10, 7)
def jpeg_compression(x: Floats, rng: np.random.Generator, quality: int) -> Floats:
    """Encodes and decodes as JPEG."""
    file = io.BytesIO()
    Image.fromarray(to_bytes(x)).save(file, "JPEG", quality=quality)
    return np.asarray(Image.open(file)) / 255


@corruption("digital", (0.3, 0), (0.1, 0), (2, 0), (5, 0.1), (20, 0.2))
def saturate(x: Floats, rng: np.random.Generator, factor: float, amount: float) -> Floats:
    """S factor + amount in HSV; grey, of no hue, turns red where the amount is not 0.

    A colour is V (1 - S k), where k is 0 for the largest channel, 1 for the smallest, and depends on the hue alone. So
    a new S scales the distance from the largest channel.
    """
    value = x.max(axis=2, keepdims=True)
    spread = value - x.min(axis=2, keepdims=True)
    coloured = spread > 0
    saturation = spread / np.where(value > 0, value, 1)
    new_spread = value * (saturation * factor + amount).clip(0, 1)
    hue = np.where(coloured, (value - x) / np.where(coloured, spread, 1), HUE_OF_GREY)
    recoloured: Floats = value - new_spread * hue
    return recoloured


@corruption(
    "weather",
    (0.65, 0.3, 4, 0.69, 0.6, False),
    (0.65, 0.3, 3, 0.68, 0.6, False),
    (0.65, 0.3, 2, 0.68, 0.5, False),
    (0.65, 0.3, 1, 0.65, 1.5, True),
    (0.67, 0.4, 1, 0.65, 1.5, True),
)
def spatter(x: Floats, rng: np.random.Generator, *constants: float) -> Floats:
    """Where blurred N(mean, deviation) passes a threshold: x + m water, m shaded by the edges; or x (1 - m) + m mud."""
    mean, deviation, sigma, threshold, strength, is_mud = constants
    liquid = blur_with_gaussian(rng.normal(mean, deviation, x.shape[:2]), sigma)
    wet = liquid >= threshold
    if is_mud:
        soft = blur_with_gaussian(wet.astype(np.float64), strength)
        cover: Floats = np.where(soft < THICK_MUD, 0, soft)[..., None]
        return x * (1 - cover) + cover * MUD
    return x + strength * filters.water_shine(to_bytes(np.where(wet, liquid, 0)))[..., None] * WATER
