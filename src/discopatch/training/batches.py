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
AT_ONCE = 4  # degradations in a batch: each takes many small kernels, however few images it is for
DISCOLOURED = 1 + list(DEGRADATIONS).index("discoloured")  # the class of what a grey image cannot show


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
    classes: Tensor  # 0 for no degradation, else the place in `DEGRADATIONS` plus 1, (B,); or shares, (B, 1 + D)
    targets: Targets | None = None  # outputs of the teachers


@torch.no_grad()
def draw_batches(
    images: Tensor, generator: torch.Generator, step: int, config: TrainingConfig, teachers: Teachers | None = None
) -> list[Batch]:
    """Crops, half of them degraded, of (B, H, H, 3) in uint8; without `config.crop` the images, and degraded copies."""
    if config.crop is not None:
        found = [mixed_crops(images, generator, step, config)]
    else:
        intact = whole_images(images)
        degraded, classes = degrade_in_turn(intact, generator, step)
        found = [Batch(intact, True, torch.zeros_like(classes)), Batch(degraded, False, classes)]
    return found if teachers is None else [batch._replace(targets=teachers(batch.images)) for batch in found]


def degrade_in_turn(images: Tensor, generator: torch.Generator, step: int) -> tuple[Tensor, Tensor]:
    """(B, 3, H, W) in [-1, 1] degraded, and the classes (B,).

    A few degradations take turns over the batch, the next few in the next step; their strengths are drawn.
    """
    degraded, names = torch.empty_like(images), list(DEGRADATIONS)
    for turn in range(min(AT_ONCE, len(images))):
        own = slice(turn, None, AT_ONCE)
        name = names[(AT_ONCE * step + turn) % len(names)]
        degraded[own] = degrade(images[own], DEGRADATIONS[name], generator)
    turns = torch.arange(len(images), device=images.device) % AT_ONCE
    return degraded, 1 + (AT_ONCE * step + turns) % len(names)


def mixed_crops(images: Tensor, generator: torch.Generator, step: int, config: TrainingConfig) -> Batch:
    """Crops, every second of which is degraded, and some of which have a part of another, degraded or not."""
    crops = whole_images(random_crops(images, config.crop_size, generator))
    classes = torch.zeros(len(crops), dtype=torch.int64, device=crops.device)
    crops[1::2], classes[1::2] = degrade_in_turn(crops[1::2], generator, step)
    grey = torch.rand(len(crops), generator=generator, device=crops.device) < config.grey
    grey &= classes != DISCOLOURED
    crops = torch.where(grey.view(-1, 1, 1, 1), without_colours(crops), crops)
    shares = F.one_hot(classes, 1 + len(DEGRADATIONS)).float()
    intact = (classes == 0).float().view(-1, 1, 1, 1)
    mask, shift = mixing_mask(crops, config.cut_mix, generator)
    return Batch(
        torch.where(mask, crops.roll(shift, 0), crops).contiguous(memory_format=torch.channels_last),
        torch.where(mask, intact.roll(shift, 0), intact),
        torch.lerp(shares, shares.roll(shift, 0), mask.float().mean((1, 2, 3))[:, None]),
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
