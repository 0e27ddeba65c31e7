"""A direction of known misses, learnt from a few images of defects that were not found."""

from math import log
from typing import ClassVar, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from discopatch.heads.base import Array, Fitted, Shapes
from discopatch.heads.gaussian import ShrunkGaussian
from discopatch.heads.parts import SHARPNESS, TAIL, part_scale, rarity, soft_maximum, tail_of

STEADY = 0.7  # least shrinkage: a few examples do not show how their kind varies
NOTABLE = 1.645
FULL_WEIGHT, HALF = 1.5, 4  # of many examples, beside the weights of components; with so many it is half of that


class Examples(Fitted):
    """How much an image differs from normal ones in the direction of the examples, beside its components."""

    shapes: ClassVar[Shapes] = {
        "filter": ("statistics",),
        "mean": ("statistics",),
        "tail": (TAIL,),  # how rare a response is among normal images, see `rarity`
        "centre": (),  # and the scale of that
        "spread": (),
        "weight": (),
    }
    positive = ("spread", "weight")

    @classmethod
    def fit(cls, normal: NDArray[np.floating], examples: NDArray[np.floating], fold: NDArray[np.intp]) -> Self:
        """From statistics (images, d) of normal images and of examples.

        The tail is that of normal images of each fold by a direction that was learnt from the other folds.
        """
        usual, held_out = direction(normal, examples), np.empty(len(normal))
        for number in np.unique(fold):
            mean, response = direction(normal[fold != number], examples)
            held_out[fold == number] = (normal[fold == number] - mean) @ response
        tail = tail_of(held_out)
        rare = rarity(torch.from_numpy(held_out[:, None]), torch.from_numpy(tail[None])).numpy()
        (centre,), (spread,) = part_scale(rare)
        weight = FULL_WEIGHT * len(examples) / (len(examples) + HALF)
        return cls.of(mean=usual[0], filter=usual[1], tail=tail, centre=centre, spread=spread, weight=weight)

    def forward(self, statistics: Tensor) -> Tensor:
        """(B,): how rare the response is among normal images."""
        response = (statistics.double() - self.mean) @ self.filter
        return rarity(response[:, None], self.tail[None])[:, 0]

    def z(self, statistics: Tensor) -> Tensor:
        """(B,): z-scores among normal images, of which about 5 % are above `NOTABLE`."""
        found: Tensor = (self(statistics) - self.centre) / self.spread
        return found

    def join(self, score: Tensor, rare: Tensor, total: float) -> Tensor:
        """The score (B,) of components, whose weights have this total, with the responses as one more."""
        both = torch.stack((SHARPNESS * score + log(total), SHARPNESS * rare + self.weight.log()), 1)
        return (soft_maximum(both) - (total + self.weight).log()) / SHARPNESS


def direction(normal: NDArray[np.floating], examples: NDArray[np.floating]) -> tuple[Array, Array]:
    """The mean of normal statistics, and the filter that separates the examples from them best."""
    mean = normal.mean(0, dtype=np.float64)
    (found,) = ShrunkGaussian.fit(normal, least=STEADY).matched_filters({"examples": examples - mean})
    return mean, found
