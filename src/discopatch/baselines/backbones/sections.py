"""What methods see of a convolutional network: its last features, those without rank 1, statistics of early maps."""

from collections.abc import Callable, Collection, Sequence
from itertools import accumulate
from typing import NamedTuple

import torch
from torch import Tensor

from discopatch.baselines.method import PENULTIMATE, RANK_BEFORE, RANK_LAST, STATISTICS
from discopatch.model.discriminator import SMALLEST_VARIANCE

Part = Callable[[Tensor], Tensor]

SQUARINGS = 14
TINY = 1e-300


class Sections(NamedTuple):
    """A convolutional network, cut where methods look into it."""

    parts: tuple[Part, ...]  # one after another; the last is the stage of the lowest resolution
    shown: int  # statistics are taken after each of so many first parts
    pool: Part  # the map (B, C, H, W) that the last part leaves -> (B, d), what the last linear layer sees


def see(x: Tensor, sections: Sections, kinds: Collection[str]) -> dict[str, Tensor]:
    """The kinds of features that are asked for, running no part of the network that they do not need."""
    *early, last = sections.parts
    deep = set(kinds) - {STATISTICS}
    needed = early if deep else early[: sections.shown]
    maps = list(accumulate(needed, lambda so_far, part: part(so_far), initial=x))[1:]
    seen = {}
    if STATISTICS in kinds:
        seen[STATISTICS] = channel_statistics(maps[: sections.shown])
    if RANK_BEFORE in kinds:
        seen[RANK_BEFORE] = sections.pool(last(without_rank_one(maps[-1])))
    if {PENULTIMATE, RANK_LAST} & deep:
        end = last(maps[-1])
        if PENULTIMATE in kinds:
            seen[PENULTIMATE] = sections.pool(end)
        if RANK_LAST in kinds:
            seen[RANK_LAST] = sections.pool(without_rank_one(end))
    return seen


def without_rank_one(maps: Tensor) -> Tensor:
    """(B, C, H, W), each as a matrix C x HW, less its largest singular component.

    That component is X v v', v the top eigenvector of X'X, or u u' X with that of XX': the smaller of the two is
    all that has to be decomposed, and in double precision it loses nothing that float32 had.
    """
    matrix = maps.flatten(2).double()
    if matrix.shape[1] < matrix.shape[2]:
        top = _top_eigenvector(matrix @ matrix.mT)
        component = top @ (top.mT @ matrix)
    else:
        top = _top_eigenvector(matrix.mT @ matrix)
        component = (matrix @ top) @ top.mT
    return (matrix - component).to(maps.dtype).reshape(maps.shape)


def _top_eigenvector(gram: Tensor) -> Tensor:
    """(B, n, n), positive semidefinite -> (B, n, 1)."""
    if gram.is_cuda:
        return top_by_squaring(gram)
    result: Tensor = torch.linalg.eigh(gram).eigenvectors[..., -1:]
    return result


def top_by_squaring(gram: Tensor) -> Tensor:
    """The same without a decomposition, which a GPU does one matrix after the other.

    Squared again and again the matrix becomes u u', and each of its columns u; a second eigenvalue of 0.999 of the
    first is left with 1e-7.
    """
    for _ in range(SQUARINGS):
        gram = gram / gram.diagonal(dim1=-2, dim2=-1).sum(-1)[:, None, None].clamp_min(TINY)
        gram = gram @ gram
    largest = gram.diagonal(dim1=-2, dim2=-1).argmax(-1)
    column = gram[torch.arange(len(gram), device=gram.device), :, largest, None]
    result: Tensor = column / column.norm(dim=1, keepdim=True).clamp_min(TINY)
    return result


def channel_statistics(maps: Sequence[Tensor]) -> Tensor:
    """Maps (B, C, H, W) or (B, C, positions) -> (B, 2 x all channels): map by map its means, then its log-variances."""
    each = []
    for one in maps:
        variance, mean = torch.var_mean(one.flatten(2), dim=2, correction=0)
        each += [mean, torch.log(variance + SMALLEST_VARIANCE)]
    return torch.cat(each, dim=1)


def mean_of_positions(end: Tensor) -> Tensor:
    """(B, C, H, W) -> (B, C)."""
    return end.mean(dim=(2, 3))
