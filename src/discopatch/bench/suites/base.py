"""A suite: normal images to fit on, normal images to test with, and sets of other images."""

import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from discopatch.bench.dataset import Files
from discopatch.bench.preprocessing import LOSSLESS, Storage

Group = Literal["near", "far", "control"]  # a control holds normal images with other preprocessing
CorruptionLevel = tuple[str, int]  # corruption, severity


@dataclass(frozen=True)
class OtherSet:
    """Images that are not the normal ones."""

    name: str
    group: Group
    files: Files
    sizes: tuple[int, ...] = ()  # squares that its publisher resized it to, one after the other


@dataclass(frozen=True)
class Suite:
    """The files of a benchmark; nothing has been decoded yet.

    `fit` are candidates, more than are needed: each seed fits on others of them. `fit_classes` are their classes, one
    each, or empty where no classes are known.
    `stored` says how the images to fit on were already stored at the size of the transform, if they were: the
    preprocessing of all that is compared with them then ends in the same storage.
    `corrupted` lists corrupted images in files of their own, such as ImageNet-C; where there are none, the test images
    are corrupted during the run.
    """

    name: str
    fit: Files
    test: Files
    others: tuple[OtherSet, ...]
    corrupted: Mapping[CorruptionLevel, Callable[[], Files]] = field(default_factory=dict)
    fit_classes: tuple[str, ...] = ()
    stored: Storage = LOSSLESS
    copies: int = 0  # normal images that were left out because they are copies of others


def missing_names(folder: Path, names: Iterable[str]) -> list[str]:
    """The names that do not exist below the folder; each folder is listed once."""
    by_parent: dict[str, list[str]] = defaultdict(list)
    for name in names:
        by_parent[name.rpartition("/")[0]].append(name)
    missing = []
    for parent, wanted in by_parent.items():
        try:
            present = set(os.listdir(folder / parent))  # noqa: PTH208 - a million names
        except (FileNotFoundError, NotADirectoryError):
            present = set()
        missing += [name for name in wanted if name.rpartition("/")[2] not in present]
    return missing


def class_folders(names: Sequence[str]) -> tuple[str, ...]:
    """The class of each image, which is its folder below the folders that all images share: train/cat/1.png -> cat.

    Empty where an image has no such folder, since then no folder is sure to be a class.
    """
    folders = [name.split("/")[:-1] for name in names]
    while folders and all(folders) and len({path[0] for path in folders}) == 1:
        folders = [path[1:] for path in folders]
    return tuple(path[0] for path in folders) if all(folders) else ()
