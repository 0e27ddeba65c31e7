"""Neighbours: how far an image's pooled features are from those of the normal images nearest to it."""

from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from discopatch.errors import ParameterError
from discopatch.heads.base import Fitted, Size, Stored, declare, declare_derived

N_NEIGHBOURS = 5
MAX_BANK = 10_000  # images that are stored
SHORTEST = 1e-12  # length of features that are divided by it

BANK, CHANNELS = Size("bank", MAX_BANK), Size("channels", 2**14)


class Neighbours(Fitted):
    """The distance of pooled features, brought to length 1, from the k-th nearest of normal images.

    After Sun et al., Out-of-Distribution Detection with Deep Nearest Neighbors, 2022, with few neighbours: normal
    images are few. Nothing is stored where there are no pooled features.
    """

    bank: Tensor  # (n, channels), of length 1
    squares: Tensor  # (n,), their squared lengths but for rounding

    def __init__(self) -> None:
        super().__init__()
        declare(self, bank=Stored(BANK, CHANNELS))
        declare_derived(self, "squares")

    @classmethod
    def fit(cls, pooled: NDArray[np.floating], *, seed: int = 0) -> Self:
        """From pooled features (images, channels), of at most `MAX_BANK` images that are drawn."""
        drawn = np.sort(np.random.default_rng([seed, 12]).permutation(len(pooled))[:MAX_BANK])
        found = cls().hold(bank=unit_length(torch.from_numpy(pooled[drawn])).float().numpy())
        found.derive()
        return found

    def derive(self) -> None:
        self.squares = self.bank.square().sum(1)

    def forward(self, pooled: Tensor, hidden: Tensor | None = None) -> Tensor:
        """(B, channels) to (B,) in float64; of what is `hidden` (B, n) no neighbour is found."""
        if pooled.shape[1] != self.bank.shape[1]:
            raise ParameterError(
                f"{pooled.shape[1]} pooled features, and the head was fitted on {self.bank.shape[1]}: "
                "take the same encoder"
            )
        units, bank, count = unit_length(pooled), self.bank.double(), min(N_NEIGHBOURS, len(self.bank))
        # Found by the squared distance less what all have in common, then measured without cancellation.
        squares = self.squares - 2 * units @ bank.T
        if hidden is not None:
            squares = squares.masked_fill(hidden, torch.inf)
        nearest = squares.topk(count, dim=1, largest=False).indices[:, -1]
        return (units - bank[nearest]).square().sum(1).sqrt()


def unit_length(pooled: Tensor) -> Tensor:
    values = pooled.double()
    lengths: Tensor = values.norm(dim=1, keepdim=True)
    return values / lengths.clamp(min=SHORTEST)
