"""Pictures beside their spoiled copies: negatives that no VAE makes."""

from typing import NamedTuple

import torch
from torch import Tensor

from discopatch.defects import DEFECTS, spoil


class Answer(NamedTuple):
    """What a teacher sees in whole pictures."""

    logits: Tensor  # (B, rows, columns)
    statistics: Tensor  # (B, 2 x channels), in standard deviations of the pictures


class Lesson(NamedTuple):
    """Whole pictures, each as it is and with one defect, and which one: what `DEFECTS` has at that place, plus 1."""

    pictures: Tensor  # (B, 3, H, W) in [-1, 1]
    spoiled: Tensor  # (B, 3, H, W) in [-1, 1]
    defects: Tensor  # (B,)
    answers: "tuple[Answer, Answer] | None" = None  # a teacher's, for the pictures and for the spoiled ones

    @classmethod
    @torch.no_grad()
    def draw(cls, pictures: Tensor, generator: torch.Generator, *, first: int) -> "Lesson":
        """The defects take turns, beginning with number `first`; their strengths are drawn."""
        spoiled = torch.empty_like(pictures)
        for number, defect in enumerate(DEFECTS.values()):
            mine = slice((number - first) % len(DEFECTS), None, len(DEFECTS))
            if len(pictures[mine]):
                spoiled[mine] = spoil(pictures[mine], defect, generator)
        turns = (first + torch.arange(len(pictures), device=pictures.device)) % len(DEFECTS)
        return cls(pictures, spoiled, 1 + turns)
