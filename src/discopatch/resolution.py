"""The working resolution of a new detector: how many small changes are found at each step."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Annotated, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from discopatch.calibration import Index, fold_numbers
from discopatch.corruptions.places import SCRATCH_LENGTH, change_place
from discopatch.encoders import Compare, Encoder, unpack_maps
from discopatch.errors import ImageError
from discopatch.heads.base import Array
from discopatch.heads.components import joined_windows
from discopatch.heads.parts import fit_tails
from discopatch.heads.places import WINDOWS, fit_places, window_means
from discopatch.heads.trials import share_below
from discopatch.images import Limits, Pixels, Source, Transform
from discopatch.images.items import Item
from discopatch.images.transform import Shape
from discopatch.normal_images import PixelFile
from discopatch.schema import Positive, between

STEPS = (256, 384, 512, 768, 1024)  # pixels along the short side
N_IMAGES, MIN_IMAGES = 30, 12  # normal images that are compared
KINDS = ("scratch", "stain", "missing") * 2  # changes of one image, each in its own part of it
GRID = (2, 3)  # parts along the short and the long side
SMALLEST, LARGEST = 4, 1 / 24  # sizes of changes: pixels of the original image, and a share of its short side
MAX_HELD_BYTES = 2**28  # of places of images in memory
EARNING, SMALLEST_GAIN = 2.0, 0.01  # standard errors, and AUROC, that a step must gain


@dataclass(frozen=True)
class ResolutionStep:
    """What is found at one resolution."""

    pixels: Positive  # along the short side
    found: Annotated[float, between(0, 1)]  # AUROC of small made-up changes against normal images
    milliseconds: Annotated[float, between(0, 1e9)]  # an image, in the network and the comparison of places
    chosen: bool = False

    @property
    def text(self) -> str:
        return f"{self.pixels} px: {100 * self.found:.0f} %, {self.milliseconds:.0f} ms an image"


class Chosen(NamedTuple):
    """The resolution of a detector."""

    transform: Transform
    steps: tuple[ResolutionStep, ...]  # that were tried
    measured: frozenset[str]  # the names of the images that it was chosen by, which must not calibrate


def images_to_measure(source: Source, limits: Limits, *, in_groups: bool, needed: int, seed: int) -> list[Item]:
    """Random images; of images in groups from a third that lies together, so that most groups are untouched.

    At most a third of all, and none where few would be left: others must calibrate, of which so many are `needed`. Of
    shards they are evenly spread, because only these images are read.
    """
    total = source.total()
    most = min(N_IMAGES, total // 3, total - needed)
    if most < MIN_IMAGES:
        return []
    if source.count is None and not in_groups:
        return list(source.draw(most).items(limits))
    rng = np.random.default_rng([seed, 18])
    among = (rng.integers(total) + np.arange(total // 3)) % total if in_groups else np.arange(total)
    chosen = set(rng.permutation(among)[:most].tolist())
    return [item for number, item in enumerate(source.items(limits)) if number in chosen]


def choose_resolution(
    make_encoder: Callable[[Transform], Encoder],
    source: Source,
    transforms: Sequence[Transform],
    *,
    in_groups: bool,
    needed: int,
    limits: Limits,
    seed: int,
) -> Chosen:
    """The transform at which enough more is found than at the one before.

    make_encoder: gives an encoder of packed maps.
    source: normal images, of which some are measured.
    transforms: of ascending resolution. The next is tried as long as something is gained, and taken where that is more
        than chance explains.
    in_groups, needed: as in `images_to_measure`.
    """
    best, steps, reached = 0, list[ResolutionStep](), np.empty(0)
    several = len(transforms) > 1
    images = images_to_measure(source, limits, in_groups=in_groups, needed=needed, seed=seed) if several else []
    for number, transform in enumerate(transforms if images else ()):
        shares, milliseconds = measure(make_encoder(transform), images, limits, seed=seed)
        if not len(shares):
            break
        steps.append(ResolutionStep(transform.size, float(shares.mean()), milliseconds))
        if number:
            gain = (shares - reached).mean(1)
            if gain.mean() <= SMALLEST_GAIN:
                break
            if gain.mean() <= EARNING * gain.std() / np.sqrt(max(len(gain) - 1, 1)):
                continue  # a further step may gain more
        best, reached = number, shares
    if steps:
        steps[best] = replace(steps[best], chosen=True)
    return Chosen(transforms[best], tuple(steps), frozenset(item.name for item in images))


def measure(encoder: Encoder, images: Sequence[Item], limits: Limits, *, seed: int) -> tuple[Array, float]:
    """How much each change raises the share of normal images below, plus a half, and the milliseconds per image.

    The mean of these (images, changes) is the AUROC of changed against normal images. There are none where too few
    images can be read.
    """
    height, width = encoder.transform.largest
    pixels = PixelFile(seed, 3 * height * width)
    parts: list[Shape] = []
    for image in images:
        with suppress(ImageError):
            original = np.asarray(image.decode(limits, levels=encoder.transform.levels))
            pixels.offer(2 * len(parts), encoder.transform(original))
            pixels.offer(2 * len(parts) + 1, encoder.transform(changed(original, len(parts), seed=seed)))
            parts.append(parts_of(*original.shape[:2]))
    count = len(parts)
    if count < MIN_IMAGES:
        return np.empty((0, len(KINDS))), 0.0
    rows, held = np.arange(count), dict[int, Tensor]()

    def places_of(chosen: Index) -> Iterator[Tensor]:
        if len(held) == count:
            yield from (held[row] for row in chosen.tolist())
            return
        for row, features in zip(chosen.tolist(), encoder.extract_each(pixels.read(2 * chosen)), strict=True):
            found = torch.from_numpy(features.places[0])
            if count * found.nbytes <= MAX_HELD_BYTES:  # the fit asks twice
                held[row] = found
            yield found

    fitted = fit_places(places_of, fold_numbers(len(rows)), rows, blocks=encoder.place_sizes, seed=seed)
    start = perf_counter()
    extracted = zip(encoder.extract_each(pixels.read(2 * rows + 1)), rows.tolist(), parts, strict=True)
    maxima = np.stack([maxima_by_part(each.places, fitted.compare(row), own) for each, row, own in extracted])
    milliseconds = 1000 * (perf_counter() - start) / len(rows)
    own = fitted.maxima[np.argsort(fitted.rows)]
    tails = fit_tails(own)
    after = np.maximum(maxima, own[:, None])  # the rest of the image is as it was
    usual, found = (joined_windows(each, tails) for each in (own, after.reshape(-1, after.shape[2])))
    # Less the share of the image without a change, whose mean is a half: the errors of both are nearly the same.
    gained = share_below(usual, found).reshape(after.shape[:2]) - share_below(usual, usual)[:, None]
    return gained + 0.5, milliseconds


def parts_of(height: int, width: int) -> Shape:
    """The number of parts of an image along its height and its width."""
    return GRID if width >= height else (GRID[1], GRID[0])


def changed(image: Pixels, number: int, *, seed: int) -> Pixels:
    """The image with one change in each part, of sizes that are spread over the range that some step may find."""
    rng, result = np.random.default_rng([seed, 17, number]), image.copy()
    height, width = image.shape[:2]
    rows, columns = parts_of(height, width)
    largest = max(LARGEST * min(height, width), SMALLEST)
    for place, (kind, (row, column)) in enumerate(zip(KINDS, np.ndindex(rows, columns), strict=True)):
        size = SMALLEST * (largest / SMALLEST) ** ((0.618 * (number * len(KINDS) + place)) % 1)
        part = result[
            row * height // rows : (row + 1) * height // rows,
            column * width // columns : (column + 1) * width // columns,
        ]
        pixels = max(1, round(4 * size / SCRATCH_LENGTH)) if kind == "scratch" else round(size)
        part[:] = change_place(kind, part, part, size=pixels, rng=rng).pixels
    return result


@torch.inference_mode()
def maxima_by_part(places: NDArray[np.float32], compare: Compare, parts: Shape) -> Array:
    """`window_maxima` of each part of an image, (parts, windows)."""
    z = compare(unpack_maps(torch.from_numpy(places)))
    found = [F.adaptive_max_pool2d(window_means(z, size), parts).flatten() for size in WINDOWS]
    result: Array = torch.stack(found, 1).double().numpy()
    return result
