"""A tiny discriminator, patches for it, and numbers that are the same every time."""

import torch
from torch import Tensor

from discopatch.model import Architecture, Discriminator, Networks
from tests.samples import TINY


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def patches_of(count: int, *, seed: int = 0) -> Tensor:
    """Patches of the tiny size in [-1, 1], in the memory order in which they are cut."""
    uniform = torch.rand(count, 3, 32, 32, generator=torch.Generator().manual_seed(seed))
    return (2 * uniform - 1).contiguous(memory_format=torch.channels_last)


def a_discriminator(architecture: Architecture = TINY, *, seed: int = 0) -> Discriminator:
    return Networks.from_seed(architecture, seed).discriminator


def relative_difference(one: Tensor, other: Tensor) -> float:
    """Length of the difference in lengths of the second."""
    return float(((one - other).norm() / other.norm()).detach())
