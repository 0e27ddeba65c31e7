"""A user's own images: a folder of normal ones, and folders of others."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from discopatch.bench.dataset import Files, ImageFile, list_files, shuffled
from discopatch.bench.suites.base import OtherSet, Suite, class_folders
from discopatch.errors import ParameterError, TooFewImagesError

MIN_FIT = 30
MAX_TEST = 100
RESERVED = re.compile(r"test|fit|normal|(control|fit) .*|.*/.*|\s*", re.IGNORECASE | re.DOTALL)  # names of a run's sets


def folder_suite(normal: Path, others: Mapping[str, Path], *, test: int | None, seed: int) -> Suite:
    """Normal images, split at random into `test` images to test with and the rest to fit on; folders or tar shards.

    Without `test` a third of them is tested, at most a hundred. Folders of normal images are their classes.
    """
    check_names(list(others))
    for name, path in others.items():
        inner, outer = path.resolve(), normal.resolve()
        if inner.is_relative_to(outer) or outer.is_relative_to(inner):  # a folder is read to its bottom
            raise ParameterError(
                f"{name}: {path} and the normal images in {normal} lie within each other: move one of them out"
            )
    files = list_files(normal)
    unique: dict[str, ImageFile] = {}
    for file in files:  # a copy could be fitted while the same image is tested
        unique.setdefault(file.digest, file)
    test = min(len(unique) // 3, MAX_TEST) if test is None else test
    tested, fitted = split_normal(tuple(unique.values()), normal, test=test, seed=seed)
    sets = [OtherSet(name, "far", list_files(path)) for name, path in others.items()]
    classes = class_folders([file.name for file in fitted])
    return Suite("folder", fitted, tested, tuple(sets), fit_classes=classes, copies=len(files) - len(unique))


def split_normal(files: Sequence[ImageFile], folder: Path, *, test: int, seed: int) -> tuple[Files, Files]:
    """The files to test with, and those to fit on."""
    if test < 1:
        raise ParameterError(f"{test} test images: give at least 1")
    if len(files) < test + MIN_FIT:
        raise TooFewImagesError(
            f"{len(files):,} normal images in {folder}; {test:,} to test with and at least {MIN_FIT} to fit on "
            f"are needed: add images, or test with fewer"
        )
    order = shuffled(files, seed=seed)
    return tuple(order[:test]), tuple(order[test:])


def check_names(names: Sequence[str]) -> None:
    """Each set needs a name of its own that a run does not give to something else."""
    known: dict[str, str] = {}
    for name in names:
        if RESERVED.fullmatch(name):
            raise ParameterError(
                f"a set cannot be called {name!r}: choose a name without /, other than test, fit or control"
            )
        if name.casefold() in known:
            raise ParameterError(f"two sets are called {known[name.casefold()]!r} and {name!r}: rename one of them")
        known[name.casefold()] = name
