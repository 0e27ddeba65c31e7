"""Images of every step and their augmentation, which follow from the seed and the place in the run alone.

No random state is carried from step to step, so a resumed run continues to the bit.
"""

from functools import lru_cache
from math import ceil
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from discopatch.corruptions.degradations import DEGRADATIONS, degrade, without_colours
from discopatch.images import PixelCache
from discopatch.images.tensors import to_unit
from discopatch.model.patches import extract_patches, random_corners
from discopatch.training.config import TrainingConfig
from discopatch.training.teachers import Targets, Teachers

SHARE_OF_MEMORY = 0.5  # of a GPU, that decoded images may take
SIZE_STEP = 16
AT_ONCE = 8  # chains of degradations in a batch: each takes many small kernels, however few images it is for
FURTHER = (0.5, 0.35, 0.15)  # shares of the chains with one degradation, two and three
COLOURS = "discoloured"  # what a grey image cannot show


class TrainingImages:
    """Decoded images as an endless stream: from the memory of the GPU if they fit, else from the mapped file.

    Every epoch is a permutation of all images, or the first part of one where `config.epoch_share` is below 1.
    """

    def __init__(self, cache: PixelCache, device: torch.device, config: TrainingConfig) -> None:
        self._device, self._mapped, self._seed = device, cache.pixels, config.seed
        self._length = ceil(config.epoch_share * len(cache.pixels))
        self._epoch = lru_cache(maxsize=2)(self._shuffled)
        self._resident: Tensor | None = None
        if device.type == "cuda" and cache.pixels.nbytes < SHARE_OF_MEMORY * torch.cuda.mem_get_info(device)[0]:
            self._resident = torch.from_numpy(np.array(cache.pixels)).to(device)

    def __len__(self) -> int:
        return len(self._mapped)

    def _shuffled(self, epoch: int) -> NDArray[np.int64]:
        return np.random.default_rng([self._seed, epoch]).permutation(len(self._mapped))

    def take(self, start: int, count: int) -> Tensor:
        """The images at `count` places of the stream from `start` on, (count, H, W, 3) in uint8 on the device."""
        places = range(start, start + count)
        numbers = np.array([self._epoch(place // self._length)[place % self._length] for place in places])
        if self._resident is not None:
            return self._resident[torch.from_numpy(numbers).pin_memory().to(self._device, non_blocking=True)]
        images = torch.from_numpy(self._mapped[numbers])
        return images.pin_memory().to(self._device, non_blocking=True) if self._device.type == "cuda" else images


def step_generator(seed: int, step: int, rank: int, device: torch.device | str) -> torch.Generator:
    """Source of all random draws of one step on one rank."""
    state = np.random.SeedSequence([seed, step, rank]).generate_state(1, np.uint64)[0]
    return torch.Generator(device).manual_seed(int(state >> np.uint64(1)))


def random_patches(images: Tensor, config: TrainingConfig, generator: torch.Generator) -> Tensor:
    """(B, H, W, 3) in uint8 -> (B x patches, 3, S, S) in [-1, 1], at random places of each image."""
    patch_size = config.architecture.patch_size
    corners = random_corners(
        len(images), config.patches, size=images.shape[1], patch_size=patch_size, generator=generator
    )
    return to_unit(extract_patches(images, corners, patch_size))


def whole_images(images: Tensor) -> Tensor:
    """(B, H, W, 3) in uint8 -> (B, 3, H, W) in [-1, 1]."""
    return to_unit(images).permute(0, 3, 1, 2)


def shrink(images: Tensor, min_scale: float, generator: torch.Generator) -> Tensor:
    """(B, H, W, 3) in uint8 -> the same, smaller by one random factor for all, resampled as the transform does it.

    This removes traces of storage, such as the grid of a JPEG, by which a discriminator would recognise real images.
    Sizes are multiples of 16, so that few shapes occur, and at most nine tenths of the whole: an image that is hardly
    smaller keeps the traces.
    """
    if min_scale == 1:
        return images
    whole = images.shape[1]
    sizes = range(SIZE_STEP * ceil(min_scale * whole / SIZE_STEP), int(0.9 * whole) + 1, SIZE_STEP)
    # Drawn by numpy, because reading torch's draw would synchronise the device.
    size = int(np.random.default_rng(generator.initial_seed()).choice(sizes or [ceil(min_scale * whole)]))
    small = F.interpolate(images.permute(0, 3, 1, 2).float(), size=(size, size), mode="bicubic", antialias=True)
    return small.round().clamp(0, 255).to(torch.uint8).permute(0, 2, 3, 1)


class Batch(NamedTuple):
    """Images with a label for every pixel and the degradations in them; the input of the further objectives."""

    images: Tensor  # (B, 3, H, W) in [-1, 1]
    real: Tensor | bool  # (B, 1, H, W): 1 for pixels that are not degraded, 0 for others; or one value for all
    classes: Tensor  # shares of no degradation and of each degradation, (B, 1 + D)
    recipes: Tensor  # (B,): equal for equally degraded images; -1 for those with two parts
    targets: Targets | None = None  # outputs of the teachers


@torch.no_grad()
def draw_batches(
    images: Tensor, generator: torch.Generator, step: int, config: TrainingConfig, teachers: Teachers | None = None
) -> list[Batch]:
    """Images (B, H, H, 3) in uint8, and each of them degraded; with `config.crop` crops of them as one batch."""
    intact = whole_images(images if config.crop is None else random_crops(images, config.crop_size, generator))
    chains = draw_chains(len(intact), generator, step, config.left_out)
    if config.crop is not None:
        intact = without_some_colours(intact, chains, config.grey, generator)
    degraded = degrade_by_chains(intact, chains, generator)
    none = torch.zeros(len(intact), dtype=torch.int64, device=intact.device)
    real = Batch(intact, True, F.one_hot(none, 1 + len(DEGRADATIONS)).float(), none)
    found = [real, degraded] if config.crop is None else [mixed(real, degraded, config, generator)]
    return found if teachers is None else [batch._replace(targets=teachers(batch.images)) for batch in found]


def draw_chains(count: int, generator: torch.Generator, step: int, left_out: str | None) -> list[tuple[str, ...]]:
    """The degradations, in the order of a camera, of equal parts of so many images.

    The first degradations of all chains take turns; further ones are drawn.
    """
    names = [name for name in DEGRADATIONS if name != left_out]
    # Drawn by numpy, because reading torch's draw would synchronise the device.
    rng, parts = np.random.default_rng([generator.initial_seed(), 1]), max(1, min(AT_ONCE, count // 2))
    found = []
    for number in range(parts):
        first = (parts * step + number) % len(names)
        others = [name for place, name in enumerate(names) if place != first]
        more = rng.choice(others, rng.choice(len(FURTHER), p=FURTHER), replace=False)
        found.append(tuple(name for name in names if name == names[first] or name in more))
    return found


def degrade_by_chains(images: Tensor, chains: list[tuple[str, ...]], generator: torch.Generator) -> Batch:
    """(B, 3, H, W) in [-1, 1], degraded by one chain in each part; strengths are drawn.

    Two halves of a part have the same strengths: images of two scenes that are degraded equally, but for noise.
    """
    degraded, order, names = [], [], [None, *DEGRADATIONS]
    recipes: list[int] = []
    for chain, part in zip(chains, images.tensor_split(len(chains)), strict=True):
        twins = 2 if len(part) % 2 == 0 else 1
        for name in chain:
            part = degrade(part, DEGRADATIONS[name], generator, twins=twins)
        degraded.append(part)
        order += [[(name in chain) / len(chain) for name in names]] * len(part)
        recipes += [len(recipes) + 1 + place % (len(part) // twins) for place in range(len(part))]
    classes = torch.tensor(order, dtype=torch.float32).to(images.device, non_blocking=True)
    return Batch(torch.cat(degraded), False, classes, torch.tensor(recipes).to(images.device, non_blocking=True))


def without_some_colours(
    images: Tensor, chains: list[tuple[str, ...]], share: float, generator: torch.Generator
) -> Tensor:
    """The images, a share of them without colours, but none whose chain changes colours alone."""
    grey = torch.rand(len(images), generator=generator, device=images.device) < share
    for chain, part in zip(chains, grey.tensor_split(len(chains)), strict=True):
        if COLOURS in chain:
            part.zero_()
    return torch.where(grey.view(-1, 1, 1, 1), without_colours(images), images)


def mixed(intact: Batch, degraded: Batch, config: TrainingConfig, generator: torch.Generator) -> Batch:
    """Both as one batch, in which some images have a part of another, degraded or not."""
    images = torch.cat((intact.images, degraded.images))
    classes = torch.cat((intact.classes, degraded.classes))
    recipes = torch.cat((intact.recipes, degraded.recipes))
    real = torch.ones(len(images), 1, 1, 1, device=images.device)
    real[len(intact.images) :] = 0
    mask, shift = mixing_mask(images, config.cut_mix, generator)
    share = mask.float().mean((1, 2, 3))
    return Batch(
        torch.where(mask, images.roll(shift, 0), images).contiguous(memory_format=torch.channels_last),
        torch.where(mask, real.roll(shift, 0), real),
        torch.lerp(classes, classes.roll(shift, 0), share[:, None]),
        torch.where(share > 0, -1, recipes),
    )


def random_crops(images: Tensor, size: int, generator: torch.Generator) -> Tensor:
    """(B, H, H, 3) -> (B, size, size, 3) at random places; images are mirrored beyond their border.

    All crops thus have one size, whatever the size of the images.
    """
    side, device = images.shape[1], images.device
    least, most = sorted((0, side - size))
    corners = torch.randint(least, most + 1, (len(images), 2, 1), generator=generator, device=device)
    places = (corners + torch.arange(size, device=device)).abs()
    rows, columns = (side - 1 - (side - 1 - places).abs()).unbind(1)
    flat = (rows[:, :, None] * side + columns[:, None, :]).flatten(1)
    found = images.flatten(1, 2)[torch.arange(len(images), device=device)[:, None], flat]
    return found.view(-1, size, size, 3)


def mixing_mask(images: Tensor, share: float, generator: torch.Generator) -> tuple[Tensor, int]:
    """Where a crop takes the pixels of another, (B, 1, S, S), and how far before it in the batch that one stands.

    A rectangle of a tenth to nine tenths of each side, in that share of the crops; in the others nothing.
    """
    count, size, device = len(images), images.shape[-1], images.device
    draws = torch.rand(count, 5, generator=generator, device=device)
    sides = size * (0.1 + 0.8 * draws[:, :2])
    corners = (size - sides) * draws[:, 2:4]
    places = torch.arange(size, device=device)
    inside = (places >= corners[..., None]) & (places < (corners + sides)[..., None])  # (B, 2, S)
    mask = (draws[:, 4] < share)[:, None, None] & inside[:, 0, :, None] & inside[:, 1, None, :]
    # Drawn by numpy, because reading torch's draw would synchronise the device.
    shift = int(np.random.default_rng(generator.initial_seed()).integers(1, max(count, 2)))
    return mask[:, None], shift
