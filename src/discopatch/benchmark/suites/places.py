"""What lies in a folder: listed without opening a file, and told in a few words in an error."""

import os
import tarfile
from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path

from discopatch.benchmark.imagefile import files_in
from discopatch.benchmark.suites.suite import Files
from discopatch.images.item import IMAGE_SUFFIXES

SHOWN = 8


def images_at(place: Path) -> Files:
    """All images of a folder or an uncompressed tar shard, by name."""
    if not place.exists():
        raise FileNotFoundError(f"no folder or tar shard {place}: look in {place.parent}, {inside(place.parent)}")
    try:
        return tuple(files_in(place))
    except tarfile.TarError as error:
        raise ValueError(f"{place} is damaged or no tar shard ({error}): copy it again") from error


def names_below(folder: Path) -> Iterator[str]:
    """Every image to the folder's bottom, as it is called below it; folders are listed, files are not looked up."""
    seen = set()
    for here, folders, files in os.walk(folder, onerror=_raise, followlinks=True):
        place = Path(here)
        status = place.stat()
        if (identity := (status.st_dev, status.st_ino)) in seen:  # a link that leads back
            folders.clear()
            continue
        seen.add(identity)
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        above = place.relative_to(folder).as_posix()
        for name in files:
            if name.lower().endswith(IMAGE_SUFFIXES) and not name.startswith("."):
                yield name if above == "." else f"{above}/{name}"


def absent(folder: Path, names: Iterable[str]) -> list[str]:
    """Those that are not below the folder; each folder is listed once, and no file looked up by itself."""
    by_place: dict[str, list[str]] = defaultdict(list)
    for name in names:
        by_place[name.rpartition("/")[0]].append(name)
    missing = []
    for place, wanted in by_place.items():
        there = _entries(folder / place)
        missing += [name for name in wanted if name.rpartition("/")[2] not in there]
    return missing


def inside(folder: Path) -> str:
    """Such as: which holds natural/, notes.txt and 3 more."""
    if not folder.exists():
        return "which is not there"
    if not folder.is_dir():
        return "which is a file"
    with os.scandir(folder) as listing:
        names = sorted(entry.name + "/" * entry.is_dir() for entry in islice(listing, 1000))
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return f"which holds {', '.join(names[:SHOWN])}{more}" if names else "which is empty"


def remedy(root: Path) -> str:
    """What to do, at the end of an error."""
    return f"`discopatch data check {root}` tells what is missing and where it is had"


def _entries(folder: Path) -> frozenset[str]:
    try:
        with os.scandir(folder) as listing:
            return frozenset(entry.name for entry in listing)
    except (FileNotFoundError, NotADirectoryError):
        return frozenset()


def _raise(error: OSError) -> None:
    raise error
