"""Parts of a source: the units that are scored and written as one, planned from the listing alone."""

import gzip
import hashlib
import json
import os
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import groupby, islice
from pathlib import Path
from typing import Self

from discopatch.errors import ImageError, ParameterError, RunError
from discopatch.images import Item, Limits, RefusalReason, Shard, list_source
from discopatch.images.stores import StorePath

SAME_OR_OTHER = "give the same source, or choose another folder"


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

    @classmethod
    def of(
        cls,
        number: int,
        names: tuple[str, ...],
        listed: Mapping[str, Item | Shard | None],
        version: str | None = None,
    ) -> Self:
        """The part with the entries that are listed; `version` is that of a shard that is not."""
        entries = {name: entry for name in names if (entry := listed.get(name)) is not None}
        shard = entries.get(names[0])
        return cls(number, names, version_of(shard) if isinstance(shard, Shard) else version, entries)

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


def plan_parts(
    source: object, before: Sequence[Part], done: Container[str], *, per_part: int, limits: Limits, allow_missing: bool
) -> tuple[list[Part], list[Part]]:
    """All parts by number, and those that are new or have a changed shard; opens no image.

    Each shard is one part, and each `per_part` successive loose images. Parts that were planned `before` stay, new
    images become new parts. Raises RunError if the source contradicts the files that are `done`, or lacks planned
    images, unless they are loose and `allow_missing`.
    """
    listed = list_entries(source, limits)
    parts = [Part.of(part.number, part.names, listed, part.version) for part in before]
    new = [part for part, old in zip(parts, before, strict=True) if part.version != old.version]
    for part in new:
        if (old := before[part.number].file) in done:
            raise RunError(f"{part.names[0]} was changed after it was scored: restore it, or remove {old}")
    known = {name for part in before for name in part.names}
    if known and known.isdisjoint(listed):
        raise RunError(f"the folder was begun with a source that had {before[0].names[0]}: {SAME_OR_OTHER}")
    for number, part in enumerate(parts):
        missing = [name for name in part.names if name not in listed] if part.file not in done else []
        if missing and (part.version is not None or not allow_missing):
            remedy = SAME_OR_OTHER if part.version is not None else "count such images as refused with --allow-missing"
            raise RunError(f"{missing[0]} was planned and is gone from the source: put it back, or {remedy}")
        error = ImageError(RefusalReason.MISSING, "planned, but no longer in the source: put it back")
        parts[number] = replace(part, entries={**part.entries, **{name: Item(name, error) for name in missing}})
    unknown = (name for name in listed if name not in known)
    for is_shard, names in groupby(unknown, lambda name: isinstance(listed[name], Shard)):
        while chunk := tuple(islice(names, 1 if is_shard else per_part)):
            new.append(Part.of(len(parts), chunk, listed))
            parts.append(new[-1])
    return parts, new


def list_entries(source: object, limits: Limits) -> dict[str, Item | Shard | None]:
    """The images and shards by name; None for a local image, whose name is its path.

    Raises ParameterError for duplicate names, and for images in memory, which a later run could not find.
    """
    listed: dict[str, Item | Shard | None] = {}
    for entry in list_source(source).entries(limits):
        if isinstance(entry, Item) and not isinstance(entry.content, Path | StorePath | Exception):
            raise ParameterError(f"{entry.name} is in memory, where a later run cannot find it: give paths")
        if entry.name in listed:
            raise ParameterError(f"{entry.name} is in the source twice: give each image once")
        is_local = isinstance(entry, Item) and isinstance(entry.content, Path) and str(entry.content) == entry.name
        listed[entry.name] = None if is_local else entry
    return listed


def version_of(shard: Shard) -> str:
    """Size and time of change of a shard, in a store as it was listed."""
    return " ".join(map(str, shard.stamp))


def plan_to_bytes(parts: Iterable[Part]) -> bytes:
    """Compressed JSON: number, version and names of each part."""
    rows = [(part.number, part.version, part.names) for part in parts]
    return gzip.compress(json.dumps(rows).encode(), compresslevel=1, mtime=0)


def plan_from_bytes(content: bytes) -> dict[int, Part]:
    """The parts of one stored plan by number."""
    rows = json.loads(gzip.decompress(content))
    return {number: Part(number, tuple(names), version) for number, version, names in rows}
