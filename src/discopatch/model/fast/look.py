"""Where pictures are looked at."""

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Look:
    """Patches of one size at the same corners of every picture; a picture as a whole is one patch of its own size."""

    corners: Tensor  # (patches, 2), int32
    patch: int  # side of a patch
    size: int  # side of a picture

    @classmethod
    def at(cls, corners: Tensor | None, *, patch: int, size: int, device: torch.device) -> Self:
        """At these corners; without any, at the whole picture."""
        if corners is None:
            return cls(torch.zeros(1, 2, dtype=torch.int32, device=device), size, size)
        return cls(corners.to(device, torch.int32).contiguous(), patch, size)

    @property
    def patches(self) -> int:
        """Of an image."""
        return len(self.corners)

    def side(self, layers: int) -> int:
        """Of a patch's feature map after so many layers: each halves it, and rounds up."""
        side = self.patch
        for _ in range(layers):
            side = (side + 1) // 2
        return side

    def pixels(self, layers: int) -> int:
        """Of all feature maps of an image after so many layers."""
        return self.patches * self.side(layers) ** 2
