"""The training pictures, as near to the device as they fit."""

from math import ceil

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from discopatch.images import PixelCache

SHARE_OF_FREE_MEMORY = 0.5
STEP = 16


class Pictures:
    """Batches of the decoded pictures on the device: from its own memory where they fit, else from the mapped file."""

    def __init__(self, cache: PixelCache, device: torch.device) -> None:
        self._device = device
        self._resident: Tensor | None = None
        self._mapped = cache.pixels
        if device.type == "cuda":
            free, _ = torch.cuda.mem_get_info(device)
            if cache.pixels.nbytes < SHARE_OF_FREE_MEMORY * free:
                self._resident = torch.from_numpy(np.array(cache.pixels)).to(device)

    def __len__(self) -> int:
        return len(self._mapped)

    def batch(self, indices: NDArray[np.int64]) -> Tensor:
        """(B, H, W, 3) in uint8 on the device."""
        if self._resident is not None:
            return self._resident[torch.from_numpy(indices).to(self._device)]
        gathered = torch.from_numpy(self._mapped[indices])
        return gathered.pin_memory().to(self._device, non_blocking=True) if self._device.type == "cuda" else gathered


def shrunk(pictures: Tensor, smallest: float, generator: torch.Generator) -> Tensor:
    """(B, H, W, 3) in uint8 -> the same, smaller by one random factor for all, as the transform makes pictures smaller.

    Sizes are multiples of 16, so that only a few shapes occur, and at most nine tenths of what they were: a picture
    that is hardly smaller keeps the traces.
    """
    if smallest == 1:
        return pictures
    whole = pictures.shape[1]
    sizes = range(STEP * ceil(smallest * whole / STEP), int(0.9 * whole) + 1, STEP) or [ceil(smallest * whole)]
    size = int(np.random.default_rng(generator.initial_seed()).choice(sizes))  # without waiting for the device
    small = F.interpolate(pictures.permute(0, 3, 1, 2).float(), size=(size, size), mode="bicubic", antialias=True)
    return small.round().clamp(0, 255).to(torch.uint8).permute(0, 2, 3, 1)
