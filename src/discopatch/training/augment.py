"""What is done to whole training images: they shrink, and get degraded copies as negatives that no VAE makes."""

from math import ceil
from typing import NamedTuple, Self

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from discopatch.corruptions.degradations import DEGRADATIONS, degrade
from discopatch.training.distill import Teacher, TeacherOutput

SIZE_STEP = 16


def shrink(images: Tensor, min_scale: float, generator: torch.Generator) -> Tensor:
    """(B, H, W, 3) in uint8 -> the same, smaller by one random factor for all, resampled as the transform does it.

    Traces of how images were stored, such as the grid of a JPEG, are lost with that: a discriminator would take them
    for the mark of a real image. Sizes are multiples of 16, so that only a few shapes occur, and at most nine tenths of
    the whole, because an image that is hardly smaller keeps the traces.
    """
    if min_scale == 1:
        return images
    whole = images.shape[1]
    sizes = range(SIZE_STEP * ceil(min_scale * whole / SIZE_STEP), int(0.9 * whole) + 1, SIZE_STEP)
    # Drawn by numpy, because reading torch's draw would wait for the device.
    size = int(np.random.default_rng(generator.initial_seed()).choice(sizes or [ceil(min_scale * whole)]))
    small = F.interpolate(images.permute(0, 3, 1, 2).float(), size=(size, size), mode="bicubic", antialias=True)
    return small.round().clamp(0, 255).to(torch.uint8).permute(0, 2, 3, 1)


class DegradedBatch(NamedTuple):
    """Whole images and a degraded copy of each; a class is the place of the degradation in `DEGRADATIONS`, plus 1."""

    images: Tensor  # (B, 3, H, W) in [-1, 1]
    degraded: Tensor  # (B, 3, H, W) in [-1, 1]
    classes: Tensor  # (B,)
    targets: tuple[TeacherOutput, TeacherOutput] | None = None  # for the images and for the degraded ones

    @classmethod
    @torch.no_grad()
    def draw(cls, images: Tensor, generator: torch.Generator, *, first: int, teacher: Teacher | None = None) -> Self:
        """The degradations take turns over the batch, from number `first` on; their strengths are drawn."""
        degraded = torch.empty_like(images)
        for number, degradation in enumerate(DEGRADATIONS.values()):
            turn = slice((number - first) % len(DEGRADATIONS), None, len(DEGRADATIONS))
            if len(images[turn]):
                degraded[turn] = degrade(images[turn], degradation, generator)
        classes = 1 + (first + torch.arange(len(images), device=images.device)) % len(DEGRADATIONS)
        return cls(images, degraded, classes, None if teacher is None else (teacher(images), teacher(degraded)))
