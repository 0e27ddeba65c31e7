"""Distillation: a frozen discriminator whose logits and statistics a new one learns to reproduce."""

from collections.abc import Iterable
from contextlib import AbstractContextManager
from copy import deepcopy
from dataclasses import dataclass
from typing import NamedTuple, Self

import torch
from torch import Tensor

from discopatch.errors import ParameterError
from discopatch.model import Discriminator, Weights, channels_last
from discopatch.training.config import TrainingConfig

SMALLEST_SCALE = 0.01  # of a mean or a log-variance, below which a difference is no difference


class TeacherOutput(NamedTuple):
    """What the student is to reproduce of a batch of whole images."""

    logits: Tensor  # (B, rows, columns)
    statistics: Tensor  # (B, 2 x channels), in standard deviations over images


@dataclass(frozen=True, eq=False)
class Teacher:
    """A frozen discriminator, with the mean and spread of its statistics, so that each of them weighs the same."""

    discriminator: Discriminator
    centre: Tensor  # (2 x channels,)
    scale: Tensor  # (2 x channels,)

    @classmethod
    @torch.no_grad()
    def from_weights(cls, weights: Weights, batches: Iterable[Tensor], device: torch.device) -> Self:
        """A teacher on the device; the batches (B, 3, H, W) in [-1, 1] say how its statistics vary over images."""
        discriminator = channels_last(deepcopy(weights.discriminator)).to(device).eval().requires_grad_(False)
        with autocast(device):
            statistics = torch.cat([discriminator(batch, 1, statistics=True).statistics for batch in batches])
        return cls(discriminator, statistics.mean(0), statistics.std(0) + SMALLEST_SCALE)

    @torch.no_grad()
    def __call__(self, images: Tensor) -> TeacherOutput:
        """The output for whole images (B, 3, H, W) in [-1, 1]."""
        with autocast(images.device):
            output = self.discriminator(images, 1, statistics=True)
        return TeacherOutput(output.logits.float(), (output.statistics - self.centre) / self.scale)


def autocast(device: torch.device) -> AbstractContextManager[None]:
    """The student's precision: bfloat16 on a GPU, with the statistics in float32 all the same."""
    return torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda")


def check_teacher(config: TrainingConfig, teacher: Weights | None) -> None:
    """Raises unless these are the weights that the config names and their logits stand at the student's places."""
    digest = None if teacher is None else teacher.digest
    if digest != config.teacher:
        raise ParameterError(
            f"the config's teacher is {config.teacher}, given is {digest}: give the weights of that digest"
        )
    if teacher is None:
        return
    check_range(teacher)
    theirs, student = teacher.discriminator.architecture, config.architecture
    if (theirs.patch_size, theirs.stride) != (student.patch_size, student.stride):
        raise ParameterError(
            f"the teacher has patches of {theirs.patch_size} pixels every {theirs.stride}, the student of "
            f"{student.patch_size} every {student.stride}: choose a preset with patches like the teacher's"
        )


def check_range(weights: Weights) -> None:
    """Raises ParameterError where weights take pixels in another range than training has them in."""
    if weights.transform.pixels != "symmetric":
        raise ParameterError(
            f"these weights take pixels in the range {weights.transform.pixels!r}, and training has them in [-1, 1]: "
            "choose other weights"
        )
