"""The training pictures, as near to the device as they fit."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from discopatch.images import PixelCache

SHARE_OF_FREE_MEMORY = 0.5


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
