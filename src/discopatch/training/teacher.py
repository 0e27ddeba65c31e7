"""A discriminator that has learnt more, and what it sees in the pictures of a lesson."""

from collections.abc import Iterable
from contextlib import AbstractContextManager
from copy import deepcopy
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from discopatch.model import Architecture, Discriminator
from discopatch.model.blocks import channels_last
from discopatch.model.weights import Weights
from discopatch.training.lesson import Answer, Lesson

SMALLEST_SCALE = 0.01  # of a mean or a log-variance, below which a difference is no difference


@dataclass(frozen=True, eq=False)
class Teacher:
    """Frozen; its statistics are told in standard deviations over pictures, so that each has one say."""

    discriminator: Discriminator
    centre: Tensor  # (2 x channels,)
    scale: Tensor  # (2 x channels,)

    @classmethod
    @torch.no_grad()
    def prepare(cls, weights: Weights, batches: Iterable[Tensor], device: torch.device) -> Self:
        """Looks at some pictures, (B, 3, H, W) in [-1, 1], to know how much its statistics vary between them."""
        discriminator = channels_last(deepcopy(weights.discriminator)).to(device).eval().requires_grad_(False)
        with half_precision(device):
            seen = torch.cat([discriminator.inspect(batch, 1).statistics for batch in batches])
        return cls(discriminator, seen.mean(0), seen.std(0) + SMALLEST_SCALE)

    @property
    def statistics(self) -> int:
        """How many it has."""
        return len(self.centre)

    def teach(self, lesson: Lesson) -> Lesson:
        """The lesson with its answers."""
        return lesson._replace(answers=(self.answer(lesson.pictures), self.answer(lesson.spoiled)))

    @torch.no_grad()
    def answer(self, pictures: Tensor) -> Answer:
        """What it sees in these."""
        with half_precision(pictures.device):
            seen = self.discriminator.inspect(pictures, 1)
        return Answer(seen.logits.float(), (seen.statistics - self.centre) / self.scale)


def half_precision(device: torch.device) -> AbstractContextManager[None]:
    """As the pupil trains: bfloat16 on a GPU, with the statistics in float32 all the same."""
    return torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda")


def check_can_teach(teacher: Architecture, pupil: Architecture) -> None:
    """Their logits must stand for the same places."""
    if (teacher.patch_size, teacher.stride) != (pupil.patch_size, pupil.stride):
        raise ValueError(
            f"the teacher judges patches of {teacher.patch_size} pixels every {teacher.stride}, the pupil of "
            f"{pupil.patch_size} every {pupil.stride}: choose a preset with patches like the teacher's"
        )
