"""Distances of pooled features from those of stored normal images."""

from typing import ClassVar, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from discopatch.heads.base import Fitted, Shapes

N_NEIGHBOURS = 5
MAX_BANK = 10_000  # stored images of neighbours
SHORTEST = 1e-12  # length of pooled features that is divided by


class Neighbours(Fitted):
    """The distance of pooled features, scaled to length 1, from the k-th nearest of normal images.

    After Sun et al., Out-of-Distribution Detection with Deep Nearest Neighbors, 2022, with few neighbours, since there
    are few normal images.
    """

    shapes: ClassVar[Shapes] = {"bank": ("images", "channels")}  # of length 1
    derived = ("squares", "accepted")
    squares: Tensor  # (images,), squared lengths, 1 except for rounding
    accepted: Tensor  # (images, channels), of length 1

    @classmethod
    def fit(cls, pooled: NDArray[np.floating], *, seed: int = 0) -> Self:
        """From pooled features (images, channels), of at most `MAX_BANK` random images."""
        drawn = np.sort(np.random.default_rng([seed, 12]).permutation(len(pooled))[:MAX_BANK])
        return cls.of(bank=unit_length(torch.from_numpy(pooled[drawn])).float().numpy())

    def derive(self) -> None:
        self.squares = self.bank.square().sum(1)
        if self._buffers["accepted"] is None:
            self.accepted = self.bank[:0]

    def forward(self, pooled: Tensor) -> Tensor:
        """(B, channels) to (B,) in float64. An accepted image counts as k of them."""
        units, bank, count = unit_length(pooled), self.bank.double(), min(N_NEIGHBOURS, len(self.bank))
        # The nearest is found by squared distances without their common term, then measured without cancellation.
        squares = self.squares - 2 * units @ bank.T
        nearest = squares.topk(count, dim=1, largest=False).indices[:, -1]
        found = (units - bank[nearest]).square().sum(1)
        if len(self.accepted):
            away = units[:, None] - self.accepted.double()
            found = found.minimum(away.square().sum(2).amin(1))
        return found.sqrt()


def unit_length(pooled: Tensor) -> Tensor:
    values = pooled.double()
    lengths: Tensor = values.norm(dim=1, keepdim=True)
    return values / lengths.clamp(min=SHORTEST)
