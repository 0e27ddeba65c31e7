"""What a suite is: normal images to fit on, others to test with, and what is not normal."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from discopatch.benchmark.imagefile import File
from discopatch.benchmark.storage import LOSSLESS, Storage

Group = Literal["near", "far", "control"]  # a control holds nothing strange, and only shows what its way does
Cell = tuple[str, int]  # corruption, severity
Files = tuple[File, ...]


@dataclass(frozen=True)
class OtherSet:
    """Images that are not the normal ones."""

    name: str
    group: Group
    files: Files
    sizes: tuple[int, ...] = ()  # squares that its publisher brought it to, one after the other


@dataclass(frozen=True)
class Suite:
    """Files only: nothing has been decoded yet.

    `fit` are candidates, more than are needed: each seed fits on others of them.
    `stored` says how the images to fit on were already stored at the size of the transform, where they were: all that
    is compared with them then ends its way in the same storage.
    `corrupted` are corrupted images that lie in files, as ImageNet-C does; where there are none, the test images are
    corrupted on the way.
    """

    name: str
    fit: Files
    test: Files
    others: tuple[OtherSet, ...]
    corrupted: Mapping[Cell, Files] = field(default_factory=dict)
    stored: Storage = LOSSLESS
    copies: int = 0  # normal images that were left out, since each is there once
