"""Anybody's own images: a folder of normal ones, and folders of others."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from discopatch.benchmark.imagefile import File
from discopatch.benchmark.suites.order import in_random_order
from discopatch.benchmark.suites.places import images_at
from discopatch.benchmark.suites.suite import Files, OtherSet, Suite

FEWEST_TO_FIT = 30
MOST_TO_TEST = 100
TAKEN = re.compile(
    r"test|fit|normal|(control|fit) .*|.*/.*|\s*", re.IGNORECASE | re.DOTALL
)  # a run calls its own sets so


def folder_suite(normal: Path, others: Mapping[str, Path], *, test: int | None, seed: int) -> Suite:
    """Normal images are split at random into `test` to test with and the rest to fit on; folders or tar shards.

    Without a number a third of them is tested, at most a hundred.
    """
    check_names(list(others))
    for name, place in others.items():
        check_apart(normal, place, name)
    found = images_at(normal)
    once = without_copies(found)
    tested, fitted = split(once, normal, test=min(len(once) // 3, MOST_TO_TEST) if test is None else test, seed=seed)
    sets = [OtherSet(name, "far", images_at(place)) for name, place in others.items()]
    return Suite("folder", fitted, tested, tuple(sets), copies=len(found) - len(once))


def without_copies(files: Sequence[File]) -> Files:
    """Each image once, whatever its names: or its copy could be fitted while it is tested."""
    first: dict[str, File] = {}
    for file in files:
        first.setdefault(file.digest, file)
    return tuple(first.values())


def split(files: Sequence[File], place: Path, *, test: int, seed: int) -> tuple[Files, Files]:
    """To test with, and to fit on."""
    if test < 1:
        raise ValueError(f"{test} test images: give at least 1")
    if len(files) < test + FEWEST_TO_FIT:
        raise ValueError(
            f"{len(files):,} normal images in {place}; {test:,} to test with and at least {FEWEST_TO_FIT} to fit on "
            f"are needed: add images, or test with fewer"
        )
    order = in_random_order(files, seed=seed)
    return tuple(order[:test]), tuple(order[test:])


def check_names(names: Sequence[str]) -> None:
    """Each set has a name of its own, and none that a run gives to something else."""
    seen: dict[str, str] = {}
    for name in names:
        if TAKEN.fullmatch(name):
            raise ValueError(
                f"a set cannot be called {name!r}: choose a name without /, other than test, fit or control"
            )
        if name.casefold() in seen:
            raise ValueError(f"two sets are called {seen[name.casefold()]!r} and {name!r}: rename one of them")
        seen[name.casefold()] = name


def check_apart(normal: Path, other: Path, name: str) -> None:
    """A folder is read to its bottom: what lies within the normal images would be taken for normal."""
    inner, outer = other.resolve(), normal.resolve()
    if inner.is_relative_to(outer) or outer.is_relative_to(inner):
        raise ValueError(
            f"{name}: {other} and the normal images in {normal} lie within each other: move one of them out"
        )
