"""Which pictures, which patches, which noise: all of it follows from the seed and the place in the run.

Nothing random is carried from step to step, so a resumed run needs no random state and continues to the bit.
"""

from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray


def pictures_at(start: int, count: int, *, pictures: int, seed: int) -> NDArray[np.int64]:
    """`count` places of the endless stream in which every epoch shows each picture once, newly shuffled."""
    places = np.arange(start, start + count)
    epochs = places // pictures
    order = np.empty(count, dtype=np.int64)
    for epoch in np.unique(epochs):
        here = epochs == epoch
        order[here] = shuffled(pictures, seed, int(epoch))[places[here] % pictures]
    return order


@lru_cache(maxsize=2)
def shuffled(pictures: int, seed: int, epoch: int) -> NDArray[np.int64]:
    """The order of one epoch."""
    return np.random.default_rng([seed, epoch]).permutation(pictures)


def step_generator(seed: int, step: int, rank: int, device: torch.device | str) -> torch.Generator:
    """The source of all that is random in one step on one rank."""
    state = np.random.SeedSequence([seed, step, rank]).generate_state(1, np.uint64)[0]
    return torch.Generator(device).manual_seed(int(state >> np.uint64(1)))
