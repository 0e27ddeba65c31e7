"""Parts of a source: what is scored and written as one, planned from the listing alone."""

import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from discopatch.errors import ImageError, ParameterError, ScoresError
from discopatch.images import DEFAULT_LIMITS, Limits, RefusalReason
from discopatch.images.items import Item, Shard
from discopatch.images.source import list_source
from discopatch.images.stores import StorePath

if TYPE_CHECKING:
    import pyarrow

PER_PART = 10_000  # loose images
MOST_PARTS = 10**6  # their numbers have six digits, so that names sort as numbers do


@dataclass(frozen=True)
class Part:
    """The work of one shard, or of some loose images, which can be done by itself.

    names: those of the images, or that of the shard, in the order of the source.
    version: of a shard, what changes when somebody writes it again; none of loose images.
    entries: of what a name alone does not lead to; other names are paths of local images.
    """

    number: int
    names: tuple[str, ...]
    version: str | None = None
    entries: Mapping[str, Item | Shard] = field(default_factory=dict, compare=False)

    @cached_property
    def id(self) -> str:
        """Number and digest of what it holds; its file has this name."""
        digest = hashlib.sha256(repr(self.version).encode())
        for name in self.names:
            digest.update(b"\0" + os.fsencode(name))
        return f"part-{self.number:06d}-{digest.hexdigest()[:16]}"

    @property
    def is_shard(self) -> bool:
        return self.version is not None

    @property
    def shard(self) -> Shard | None:
        found = None if self.version is None else self.entries.get(self.names[0])
        return found if isinstance(found, Shard) else None

    @property
    def source(self) -> list[Item | Shard]:
        """Its images for `read_images`."""
        return [self.entries.get(name) or Item(name, Path(name)) for name in self.names]

    def check_unchanged(self) -> None:
        """Raises ScoresError if the shard is no longer the one that was planned."""
        if self.shard is not None and version_now(self.shard) != self.version:
            raise ScoresError(
                f"{self.names[0]} was changed while it was scored, so nothing was written of it: "
                "score again when it is complete"
            )


class Plan(NamedTuple):
    """All parts of a source by number, and how they differ from those that were planned before."""

    parts: tuple[Part, ...]
    new: tuple[Part, ...]  # those that were not planned before, or whose shard has changed
    gone: Mapping[int, tuple[str, ...]]  # names that the source no longer has, by the number of their part


def plan_parts(
    source: object,
    *,
    per_part: int = PER_PART,
    limits: Limits = DEFAULT_LIMITS,
    before: Sequence[Part] = (),
) -> Plan:
    """One part for each shard, and one for up to `per_part` successive loose images; nothing is read but the listing.

    What was planned `before` keeps its part; what is new in the source comes in parts behind it. ParameterError where a
    name stands twice, or for images in memory, which have no name by which another run would find them.
    """
    if per_part < 1:
        raise ParameterError(f"per_part is {per_part}: a part holds at least 1 image")
    known = {name: part.number for part in before for name in part.names}
    found = {part.number: part for part in before}
    entries: dict[int, dict[str, Item | Shard]] = {}
    listed: set[str] = set()
    new: list[Part] = []

    def unknown() -> Iterator[tuple[str, Item | Shard]]:
        for entry in list_source(source).entries(limits):
            name = name_of(entry)
            if name in listed:
                raise ParameterError(f"{name} stands twice in the source: give each image once")
            listed.add(name)
            if name not in known:
                yield name, entry
                continue
            number = known[name]
            if not is_plain(name, entry):
                entries.setdefault(number, {})[name] = entry
            if isinstance(entry, Shard) and (version := version_of(entry)) != found[number].version:
                found[number] = Part(number, (name,), version)
                new.append(found[number])

    added = list(divide(unknown(), per_part, first=len(before)))
    if len(before) + len(added) > MOST_PARTS:
        raise ParameterError(f"more than {MOST_PARTS:,} parts: give more images to each, with a larger per_part")
    parts = tuple(Part(each.number, each.names, each.version, entries.get(each.number, {})) for each in found.values())
    gone = {
        part.number: missing for part in parts if (missing := tuple(name for name in part.names if name not in listed))
    }
    return Plan((*parts, *added), (*new, *added), gone)


def divide(listing: Iterable[tuple[str, Item | Shard]], per_part: int, *, first: int) -> Iterator[Part]:
    """Parts of the listing in its order, numbered from `first` on."""
    number, names, entries = first, list[str](), dict[str, Item | Shard]()
    for name, entry in listing:
        alone = isinstance(entry, Shard)
        if names and (alone or len(names) == per_part):
            yield Part(number, tuple(names), None, entries)
            number, names, entries = number + 1, [], {}
        if isinstance(entry, Shard):
            yield Part(number, (name,), version_of(entry), {name: entry})
            number += 1
            continue
        names.append(name)
        if not is_plain(name, entry):
            entries[name] = entry
    if names:
        yield Part(number, tuple(names), None, entries)


def name_of(entry: Item | Shard) -> str:
    if isinstance(entry, Shard):
        return entry.name
    if not isinstance(entry.content, Path | StorePath | Exception):
        raise ParameterError(f"{entry.name} is in memory, where no other run would find it: give the paths of images")
    return entry.name


def is_plain(name: str, entry: Item | Shard) -> bool:
    """Whether the name is the path of a local image, of which nothing else needs to be kept."""
    return isinstance(entry, Item) and isinstance(entry.content, Path) and str(entry.content) == name


def version_of(shard: Shard) -> str:
    """What tells that the shard is another now, as it was listed."""
    return " ".join(map(str, shard.stamp))


def version_now(shard: Shard) -> str:
    """The same as it is now: a store is asked again."""
    place = shard.place
    if isinstance(place, StorePath) and not place.is_folder:
        return " ".join(map(str, StorePath(place.store, place.path).stamp))
    return version_of(shard)


def without_gone(part: Part, gone: Iterable[str]) -> Part:
    """The part with a refusal in the place of each image that is no longer there."""
    refusals = {
        name: Item(name, ImageError(RefusalReason.MISSING, "planned, but no longer in the source: put it back"))
        for name in gone
    }
    return Part(part.number, part.names, part.version, {**part.entries, **refusals})


def table_of(parts: Iterable[Part]) -> "pyarrow.Table":
    """One row for each name, with the number of its part; names are bytes, since those of files need not be text."""
    import pyarrow

    rows = [(part.number, os.fsencode(name), part.version) for part in parts for name in part.names]
    columns: list[Any] = [list(column) for column in zip(*rows, strict=True)] or [[], [], []]
    schema = pyarrow.schema([("part", pyarrow.int32()), ("name", pyarrow.binary()), ("version", pyarrow.string())])
    return pyarrow.table(columns, schema=schema)


def parts_of(tables: Iterable["pyarrow.Table"]) -> list[Part]:
    """The parts by number, as they were planned last; ScoresError where a number is missing."""
    found: dict[int, Part] = {}
    for table in tables:
        rows: dict[int, list[str]] = {}
        versions: dict[int, str | None] = {}
        for number, name, version in zip(*(table[each].to_pylist() for each in table.column_names), strict=True):
            rows.setdefault(number, []).append(os.fsdecode(name))
            versions[number] = version
        found |= {number: Part(number, tuple(names), versions[number]) for number, names in rows.items()}
    if sorted(found) != list(range(len(found))):
        raise ScoresError("the plan lacks some of its parts: copy the folder again, or score into another one")
    return [found[number] for number in range(len(found))]
