"""Parts of a source: the units that are scored and written as one, planned from the listing alone."""

import gzip
import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from discopatch.errors import ImageError, ParameterError, RunError
from discopatch.images import Item, Limits, RefusalReason, Shard, list_source
from discopatch.images.stores import StorePath


@dataclass(frozen=True)
class Part:
    """One shard, or some loose images, scored and written as one.

    names: of the images, or of the shard, in the order of the source.
    version: size and time of change of a shard; None for loose images.
    entries: images and shards that are not simply the local file with that name.
    """

    number: int
    names: tuple[str, ...]
    version: str | None = None
    entries: Mapping[str, Item | Shard] = field(default_factory=dict, compare=False, repr=False)

    @cached_property
    def file(self) -> str:
        """The name of its Parquet file: the number, and a digest of names and version."""
        digest = hashlib.sha256(repr(self.version).encode())
        for name in self.names:
            digest.update(b"\0" + os.fsencode(name))
        return f"part-{self.number:06d}-{digest.hexdigest()[:16]}.parquet"

    @property
    def images(self) -> int | None:
        """The number of images; None for a shard."""
        return len(self.names) if self.version is None else None

    @property
    def source(self) -> list[Item | Shard]:
        """Its images, as `predict` takes them."""
        return [self.entries.get(name) or Item(name, Path(name)) for name in self.names]

    def check_unchanged(self) -> None:
        """Raises RunError if the shard is not the one that was planned any more."""
        shard = self.entries.get(self.names[0])
        if self.version is None or not isinstance(shard, Shard):
            return
        found = shard.place.found() if isinstance(shard.place, StorePath) else shard.place
        if found is None or version_of(replace(shard, place=found)) != self.version:
            raise RunError(f"{shard.name} was changed while it was scored: run the command again when it is complete")


class Plan(NamedTuple):
    """All parts of a source by number, and the differences to an earlier plan."""

    parts: tuple[Part, ...]
    new: tuple[Part, ...]  # not planned before, or with a changed shard
    missing: Mapping[int, tuple[str, ...]]  # names that the source no longer has, by the number of their part


def plan_parts(source: object, *, per_part: int, limits: Limits, before: Sequence[Part] = ()) -> Plan:
    """Makes one part of each shard, and one of each `per_part` successive loose images; opens no image.

    Parts that were planned `before` stay, new images become new parts. Raises ParameterError for duplicate names, and
    for images in memory, which a later run could not find.
    """
    known = {name: part.number for part in before for name in part.names}
    found = {part.number: part for part in before}
    entries: dict[int, dict[str, Item | Shard]] = {}
    listed: set[str] = set()
    changed: list[Part] = []

    def unknown_entries() -> Iterator[Item | Shard]:
        for entry in list_source(source).entries(limits):
            if isinstance(entry, Item) and not isinstance(entry.content, Path | StorePath | Exception):
                raise ParameterError(f"{entry.name} is in memory, where a later run cannot find it: give paths")
            if entry.name in listed:
                raise ParameterError(f"{entry.name} is in the source twice: give each image once")
            listed.add(entry.name)
            if entry.name not in known:
                yield entry
                continue
            number = known[entry.name]
            if not is_local_file(entry):
                entries.setdefault(number, {})[entry.name] = entry
            if isinstance(entry, Shard) and (version := version_of(entry)) != found[number].version:
                found[number] = replace(found[number], version=version)
                changed.append(found[number])

    added = list(divide(unknown_entries(), per_part, first=len(before)))
    parts = tuple(replace(each, entries=entries.get(each.number, {})) for each in found.values())
    missing = {part.number: tuple(name for name in part.names if name not in listed) for part in parts}
    return Plan((*parts, *added), (*changed, *added), {number: names for number, names in missing.items() if names})


def divide(listing: Iterable[Item | Shard], per_part: int, *, first: int) -> Iterator[Part]:
    """Parts in the order of the listing, numbered from `first` on."""
    number, loose = first, list[Item]()
    for entry in listing:
        if loose and (isinstance(entry, Shard) or len(loose) == per_part):
            yield of_images(number, loose)
            number, loose = number + 1, []
        if isinstance(entry, Shard):
            yield Part(number, (entry.name,), version_of(entry), {entry.name: entry})
            number += 1
        else:
            loose.append(entry)
    if loose:
        yield of_images(number, loose)


def of_images(number: int, images: Iterable[Item]) -> Part:
    others = {image.name: image for image in images if not is_local_file(image)}
    return Part(number, tuple(image.name for image in images), None, others)


def is_local_file(entry: Item | Shard) -> bool:
    """Whether the name is the path of a local image, so that nothing else has to be kept."""
    return isinstance(entry, Item) and isinstance(entry.content, Path) and str(entry.content) == entry.name


def version_of(shard: Shard) -> str:
    """Size and time of change of a shard, in a store as it was listed."""
    return " ".join(map(str, shard.stamp))


def without_missing(part: Part, names: Iterable[str]) -> Part:
    """The part with a refused image in place of each missing one."""
    error = ImageError(RefusalReason.MISSING, "planned, but no longer in the source: put it back")
    return replace(part, entries={**part.entries, **{name: Item(name, error) for name in names}})


def plan_to_bytes(parts: Iterable[Part]) -> bytes:
    """Compressed JSON: number, version and names of each part."""
    rows = [(part.number, part.version, part.names) for part in parts]
    return gzip.compress(json.dumps(rows).encode(), compresslevel=1, mtime=0)


def plan_from_bytes(content: bytes) -> dict[int, Part]:
    """The parts of one stored plan by number."""
    rows = json.loads(gzip.decompress(content))
    return {number: Part(number, tuple(names), version) for number, version, names in rows}
