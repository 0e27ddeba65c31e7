"""Augmentation of training images: scaling, cropping, mixing, and degradations as negatives."""

from math import ceil
from typing import NamedTuple, Self

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from discopatch.corruptions.degradations import DEGRADATIONS, degrade, without_colours
from discopatch.training.batches import whole_images
from discopatch.training.config import TrainingConfig
from discopatch.training.teachers import Targets, Teachers

SIZE_STEP = 16
AT_ONCE = 4  # degradations in a batch: each takes many small kernels, however few images it is for
DISCOLOURED = 1 + list(DEGRADATIONS).index("discoloured")  # the class of what a grey image cannot show


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
    # Drawn by numpy, because reading torch's draw would wait for the device.
    size = int(np.random.default_rng(generator.initial_seed()).choice(sizes or [ceil(min_scale * whole)]))
    small = F.interpolate(images.permute(0, 3, 1, 2).float(), size=(size, size), mode="bicubic", antialias=True)
    return small.round().clamp(0, 255).to(torch.uint8).permute(0, 2, 3, 1)


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


def degrade_in_turn(images: Tensor, generator: torch.Generator, *, step: int) -> tuple[Tensor, Tensor]:
    """(B, 3, H, W) in [-1, 1] degraded, and the classes (B,): places in `DEGRADATIONS`, plus 1.

    A few degradations take turns over the batch, the next few in the next step; their strengths are drawn.
    """
    degraded, names = torch.empty_like(images), list(DEGRADATIONS)
    numbers = [(AT_ONCE * step + turn) % len(names) for turn in range(AT_ONCE)]
    for turn, number in enumerate(numbers[: len(images)]):
        own = slice(turn, None, AT_ONCE)
        degraded[own] = degrade(images[own], DEGRADATIONS[names[number]], generator)
    turns = torch.arange(len(images), device=images.device) % AT_ONCE
    return degraded, 1 + (AT_ONCE * step + turns) % len(names)


class DegradedBatch(NamedTuple):
    """Whole images and a degraded copy of each; a class is the place of the degradation in `DEGRADATIONS`, plus 1."""

    images: Tensor  # (B, 3, H, W) in [-1, 1]
    degraded: Tensor  # (B, 3, H, W) in [-1, 1]
    classes: Tensor  # (B,)
    targets: tuple[Targets, Targets] | None = None  # for the images and for the degraded ones

    @classmethod
    @torch.no_grad()
    def draw(cls, images: Tensor, generator: torch.Generator, *, step: int, teachers: Teachers | None = None) -> Self:
        """The images beside copies with the degradations of that step."""
        degraded, classes = degrade_in_turn(images, generator, step=step)
        return cls(images, degraded, classes, None if teachers is None else (teachers(images), teachers(degraded)))


class CropBatch(NamedTuple):
    """Crops, every second of which is degraded, and some of which have a part of another, degraded or not."""

    images: Tensor  # (B, 3, S, S) in [-1, 1]
    real: Tensor  # (B, 1, S, S): 1 for pixels that are not degraded, 0 for others
    classes: Tensor  # (B, 1 + D): the share of no degradation and of each degradation in the crop
    targets: Targets | None = None

    @classmethod
    @torch.no_grad()
    def draw(
        cls,
        images: Tensor,
        generator: torch.Generator,
        *,
        step: int,
        config: TrainingConfig,
        teachers: Teachers | None = None,
    ) -> Self:
        """Crops of (B, H, H, 3) in uint8, with the degradations of that step."""
        crops = whole_images(random_crops(images, config.crop_size, generator))
        classes = torch.zeros(len(crops), dtype=torch.int64, device=crops.device)
        degraded, classes[1::2] = degrade_in_turn(crops[1::2], generator, step=step)
        crops[1::2] = degraded
        crops = lose_colours(crops, config.grey, generator, spared=classes == DISCOLOURED)
        shares = F.one_hot(classes, 1 + len(DEGRADATIONS)).float()
        mask, shift = mixing_mask(crops, config.cut_mix, generator)
        mixed = torch.where(mask, crops.roll(shift, 0), crops).contiguous(memory_format=torch.channels_last)
        intact = (classes == 0).float().view(-1, 1, 1, 1)
        real = torch.where(mask, intact.roll(shift, 0), intact)
        shares = torch.lerp(shares, shares.roll(shift, 0), mask.float().mean((1, 2, 3))[:, None])
        return cls(mixed, real, shares, None if teachers is None else teachers(mixed))


def lose_colours(images: Tensor, share: float, generator: torch.Generator, *, spared: Tensor) -> Tensor:
    """(B, 3, H, W) with that share of them grey, but for those that are spared, (B,)."""
    chosen = torch.rand(len(images), generator=generator, device=images.device) < share
    return torch.where((chosen & ~spared).view(-1, 1, 1, 1), without_colours(images), images)


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
    # Drawn by numpy, because reading torch's draw would wait for the device.
    shift = int(np.random.default_rng(generator.initial_seed()).integers(1, max(count, 2)))
    return mask[:, None], shift
