"""Which images, which patches, which noise: all of it follows from the seed and the place in the run.

No random state is carried from step to step, so a resumed run needs none and continues to the bit.
"""

from functools import lru_cache
from math import ceil

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from discopatch.images import PixelCache, Pixels
from discopatch.images.tensors import to_unit
from discopatch.model.patches import extract_patches, random_corners

SHARE_OF_FREE_MEMORY = 0.5


class TrainingImages:
    """The decoded images as an endless stream: from the device's own memory where they fit, else from the mapped file.

    Every epoch of the stream holds each image once, newly shuffled; with a `share` below 1 it is cut after so many.
    """

    def __init__(self, cache: PixelCache, device: torch.device, *, seed: int, share: float = 1.0) -> None:
        self._device = device
        self._seed, self._share = seed, share
        self._mapped = cache.pixels
        self._resident: Tensor | None = None
        if device.type == "cuda":
            free, _ = torch.cuda.mem_get_info(device)
            if cache.pixels.nbytes < SHARE_OF_FREE_MEMORY * free:
                self._resident = torch.from_numpy(np.array(cache.pixels)).to(device)

    replaced = 0  # images that could not be read are not in the cache

    def __len__(self) -> int:
        return len(self._mapped)

    def take(self, start: int, count: int) -> Tensor:
        """`count` images from place `start` of the stream on, (count, H, W, 3) in uint8 on the device."""
        indices = image_order(start, count, images=len(self), seed=self._seed, share=self._share)
        if self._resident is not None:
            here = torch.from_numpy(indices).pin_memory().to(self._device, non_blocking=True)
            return self._resident[here]
        return to_device(self._mapped[indices], self._device)

    def close(self) -> None:
        """Nothing works ahead."""


def to_device(pixels: Pixels, device: torch.device) -> Tensor:
    """The pixels as a tensor there; the transfer to a GPU is not waited for."""
    gathered = torch.from_numpy(pixels)
    return gathered.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else gathered


def image_order(start: int, count: int, *, images: int, seed: int, share: float = 1.0) -> NDArray[np.int64]:
    """The indices of the images at `count` places of the stream, from place `start` on."""
    places = np.arange(start, start + count)
    length = ceil(share * images)  # of an epoch
    epochs = places // length
    order = np.empty(count, dtype=np.int64)
    for epoch in np.unique(epochs):
        here = epochs == epoch
        order[here] = epoch_order(images, seed, int(epoch))[places[here] % length]
    return order


@lru_cache(maxsize=2)
def epoch_order(images: int, seed: int, epoch: int) -> NDArray[np.int64]:
    """A permutation of all images."""
    return np.random.default_rng([seed, epoch]).permutation(images)


def step_generator(seed: int, step: int, rank: int, device: torch.device | str) -> torch.Generator:
    """The source of all random draws of one step on one rank."""
    state = np.random.SeedSequence([seed, step, rank]).generate_state(1, np.uint64)[0]
    return torch.Generator(device).manual_seed(int(state >> np.uint64(1)))


def random_patches(images: Tensor, patches: int, patch_size: int, generator: torch.Generator) -> Tensor:
    """(B, H, W, 3) in uint8 -> (B x patches, 3, S, S) in [-1, 1], at random places of each image."""
    corners = random_corners(len(images), patches, size=images.shape[1], patch_size=patch_size, generator=generator)
    return to_unit(extract_patches(images, corners, patch_size))


def whole_images(images: Tensor) -> Tensor:
    """(B, H, W, 3) in uint8 -> (B, 3, H, W) in [-1, 1]."""
    return to_unit(images).permute(0, 3, 1, 2)
