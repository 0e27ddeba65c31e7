"""The plan of a folder of scores: which images of a source form one part, and the files that hold it."""

import gzip
import hashlib
import io
import json
import os
import zlib
from collections.abc import Container, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import chain, count, groupby, islice
from pathlib import Path
from typing import Self

from discopatch.errors import ImageError, ParameterError, RunError
from discopatch.images import Item, Limits, RefusalReason, Shard, Source
from discopatch.images.items import stamp_of
from discopatch.images.shards import Rows, split_shard
from discopatch.images.stores import StorePath, without_options

OTHER_FOLDER = "choose another folder"
SAME_OR_OTHER = f"give the same source, or {OTHER_FOLDER}"
GONE = "was planned and is gone from the source: put it back, or"


NOTHING = zlib.compress(b"", 1)


@dataclass(frozen=True)
class Part:
    """A shard, a range of one, or some loose images, scored and written as one.

    packed: the names of the images, or of the shard, in the order of the source, compressed.
    version: size and time of change of a shard; None for loose images.
    rows: the images of a shard that is split.
    entries: images and shards that are not simply the file with that name.
    stores: the URI with its options of each store with loose images, by its visible start.
    """

    number: int
    packed: bytes = field(repr=False)
    version: str | None = None
    rows: Rows | None = None
    entries: dict[str, Item | Shard] = field(default_factory=dict, compare=False, repr=False)
    stores: dict[str, str] = field(default_factory=dict, compare=False, repr=False)

    @classmethod
    def of(cls, number: int, names: Iterable[str], version: str | None = None, rows: Rows | None = None) -> Self:
        return cls(number, zlib.compress("\0".join(names).encode(errors="surrogateescape"), 1), version, rows)

    @property
    def names(self) -> list[str]:
        """None for a part that removes an older one of its number."""
        text = zlib.decompress(self.packed).decode(errors="surrogateescape")
        return text.split("\0") if text else []

    @cached_property
    def file(self) -> str:
        """The name of its Parquet file: the number, and a digest of names, version and rows."""
        digest = hashlib.sha256(repr(self.version).encode())
        for name in self.names:
            digest.update(b"\0" + os.fsencode(name))
        digest.update(b"" if self.rows is None else repr(tuple(self.rows)).encode())
        return f"part-{self.number:06d}-{digest.hexdigest()[:16]}.parquet"

    @cached_property
    def images(self) -> int | None:
        """The number of images; None for a shard that is not split."""
        if self.rows is not None:
            return self.rows.images
        return len(self.names) if self.version is None else None

    @property
    def source(self) -> list[Item | Shard]:
        """Its images, as `predict` takes them."""
        return list(map(self._entry, self.names))

    def _entry(self, name: str) -> Item | Shard:
        entry = self.entries.get(name)
        if isinstance(entry, Shard) and self.rows is not None:
            return self.rows.of(entry)
        for start, root in self.stores.items():
            if entry is None and name.startswith(f"{start}/"):
                return Item(name, StorePath(root, name.removeprefix(f"{start}/")))
        return entry or Item(name, Path(name))

    def check_unchanged(self) -> None:
        """Raises RunError if the shard is not the one that was planned any more."""
        shard = next(iter(self.entries.values()), None)
        if self.version is None or not isinstance(shard, Shard):
            return
        found = shard.place.found() if isinstance(shard.place, StorePath) else shard.place
        if found is None or version_of(replace(shard, place=found)) != self.version:
            raise RunError(f"{shard.name} was changed while it was scored: run the command again when it is complete")


def to_lines(parts: Iterable[Part]) -> bytes:
    """A compressed line of JSON for each part."""
    content = io.BytesIO()
    with gzip.GzipFile("", "wb", 1, content, mtime=0) as file:
        for part in parts:
            file.write(f"{json.dumps([part.number, part.version, part.names, part.rows])}\n".encode())
    return content.getvalue()


def from_lines(content: bytes) -> Iterator[Part]:
    """The parts that `to_lines` wrote, one at a time."""
    with gzip.open(io.BytesIO(content)) as lines:
        for number, version, names, rows in map(json.loads, lines):
            yield Part.of(number, names, version, rows and Rows(*rows))


class Listing:
    """The images and shards of a source by name, and None for an image that is found again by its name."""

    def __init__(self, source: Source, limits: Limits) -> None:
        """Raises ParameterError for duplicate names, and for images in memory, which a later run could not find."""
        self.entries: dict[str, Item | Shard | None] = {}
        self.stores: dict[str, str] = {}
        for entry in source.entries(limits):
            if isinstance(entry, Item) and not isinstance(entry.content, Path | StorePath | Exception):
                raise ParameterError(f"{entry.name} is in memory, where a later run cannot find it: give paths")
            if entry.name in self.entries:
                raise ParameterError(f"{entry.name} is in the source twice: give each image once")
            self.entries[entry.name] = None if self._is_plain(entry) else entry

    def _is_plain(self, entry: Item | Shard) -> bool:
        if isinstance(entry, Shard) or str(entry.content) != entry.name or isinstance(entry.content, Exception):
            return False
        root = entry.content.root if isinstance(entry.content, StorePath) else None
        return root is None or self.stores.setdefault(without_options(root), root) == root


def plan_parts(
    listing: Listing,
    before: Mapping[int, Part],
    files: Container[str],
    again: Container[str],
    per_part: int,
    *,
    allow_missing: bool,
) -> tuple[list[Part], list[Part], list[Part]]:
    """All parts by number; those that are new, changed or, without names, removed; and those that were replaced.

    Each `per_part` successive loose images are one part, and each shard, or about as many of a large one. Parts that
    were planned `before` stay, new images become new parts. Raises RunError if the source contradicts the `files` of
    parts that are not scored `again`, or lacks planned images, unless they are loose and `allow_missing`.
    """
    found, missing, is_same_source = dict(before), list[str](), not before
    changed, replaced = list[Part](), list[Part]()
    planned = dict[str, list[Part]]()  # the parts of each shard
    new: list[tuple[Shard, list[Part]]] = []
    for part in before.values():
        if part.version is not None:
            planned.setdefault(part.names[0], []).append(part)
            continue
        gone = list[str]()
        for name in part.names:
            if name not in listing.entries:
                gone.append(name)
            elif (entry := listing.entries.pop(name)) is not None:
                part.entries[name] = entry
        is_same_source |= len(gone) < (part.images or 0)
        part.stores.update(listing.stores)
        if gone and (part.file not in files or part.file in again):
            detail = "planned, but no longer in the source: put it back"
            part.entries.update((name, Item(name, ImageError(RefusalReason.MISSING, detail))) for name in gone)
            missing += [] if allow_missing else [f"{gone[0]} {GONE} count such images as refused with --allow-missing"]
    for name, parts in planned.items():
        shard, scored = listing.entries.pop(name, None), [part for part in parts if part.file in files]
        is_again = any(part.file in again for part in scored)
        if not isinstance(shard, Shard):
            missing += [f"{name} {GONE} {SAME_OR_OTHER}"] if is_again or len(scored) < len(parts) else []
            continue
        is_same_source = True
        for part in parts:
            part.entries[name] = shard
        if version_of(shard) != parts[0].version:
            if scored and not is_again:
                remedy = f"restore it, remove {scored[0].file}, or --retry a damaged one"
                raise RunError(f"{name} was changed after it was scored: {remedy}")
            replaced += scored
            new.append((shard, parts))
    if not is_same_source:
        first = next(iter(before.values())).names[0]
        raise RunError(f"the folder was begun with a source that had {first}: {SAME_OR_OTHER}")
    if missing:
        raise RunError(missing[0])

    def add(number: int, names: list[str], shard: Shard | None = None, rows: Rows | None = None) -> None:
        part = Part.of(number, names, None if shard is None else version_of(shard), rows)
        entries = [(name, entry) for name in names if (entry := shard or listing.entries.get(name)) is not None]
        part.entries.update(entries)
        part.stores.update(listing.stores)
        changed.append(part)
        found.pop(number, None)
        if names:
            found[number] = part

    numbers = count(max(before, default=-1) + 1)
    shards = [shard for shard, _ in new] + [entry for entry in listing.entries.values() if isinstance(entry, Shard)]
    with ThreadPoolExecutor(thread_name_prefix="discopatch-plan") as pool:
        ranges = dict(zip(shards, pool.map(partial(split_shard, most=per_part), shards), strict=True))
    for shard, parts in new:
        places = chain((part.number for part in parts), numbers)
        for rows in ranges[shard]:
            add(next(places), [shard.name], shard, rows)
        for part in parts[len(ranges[shard]) :]:
            add(part.number, [])
    for kind, names in groupby(listing.entries, lambda name: isinstance(listing.entries[name], Shard)):
        while chunk := list(islice(names, 1 if kind else per_part)):
            entry = listing.entries[chunk[0]]
            for rows in ranges[entry] if isinstance(entry, Shard) else [None]:
                add(next(numbers), chunk, entry if isinstance(entry, Shard) else None, rows)
    return [found[number] for number in sorted(found)], changed, replaced


def version_of(shard: Shard) -> str:
    """Size and time of change of a shard, in a store as it was listed."""
    return " ".join(map(str, stamp_of(shard.place)))
