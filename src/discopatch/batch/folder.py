"""A folder of scores: a manifest, the plan of parts, and one Parquet file for each part that is done.

Manifest and plan are Parquet files of the same columns without rows, and carry their content before the footer: readers
of a folder of Parquet skip them, or find no rows in them.
"""

import gzip
import hashlib
import json
import os
from collections.abc import Container, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from itertools import groupby, islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, Self

import msgspec
import numpy as np

from discopatch.batch.output import OutputFolder, carried, carrier, part_schema, to_parquet
from discopatch.errors import ImageError, ParameterError, RunError, SchemaError
from discopatch.images import Item, Limits, Refusal, RefusalReason, RefusalReport, Shard, Source, list_source
from discopatch.images.items import Reading, stamp_of
from discopatch.images.stores import StorePath, parse
from discopatch.results import UNUSUAL_SHAPE, FittedDetector, Prediction
from discopatch.schema import Digest, Name, Positive, between, load_json, read_fields
from discopatch.utils import resolved

if TYPE_CHECKING:
    import pyarrow
    import pyarrow.dataset

MANIFEST, PLAN = "_manifest.parquet", "_plan-{:05d}.parquet"
OTHER_FOLDER = "choose another folder"
NOTES = b"discopatch"  # key of the metadata of a part, where something was passed over
SAME_OR_OTHER = f"give the same source, or {OTHER_FOLDER}"
Out = str | os.PathLike[str] | OutputFolder


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
        cls, number: int, names: tuple[str, ...], listed: Mapping[str, Item | Shard | None], version: str | None = None
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


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """The detector and the settings with which a folder was begun."""

    kind: Literal["scores"] = "scores"
    format: Literal[3] = 3
    detector: Digest
    calibration: Digest  # of the calibration scores
    false_alarm_rate: Annotated[float, between(0, 1)]
    components: tuple[Name, ...]
    max_pixels: Positive
    max_bytes: Positive
    per_part: Positive = 10_000  # loose images

    @classmethod
    def of(cls, detector: FittedDetector) -> Self:
        scores = np.ascontiguousarray(detector.calibration_scores_, "<f8")
        return cls(
            detector=detector.digest_,
            calibration=hashlib.sha256(scores.tobytes()).hexdigest()[:16],
            false_alarm_rate=detector.false_alarm_rate_,
            components=tuple(detector.component_names),
            max_pixels=detector.limits.max_pixels,
            max_bytes=detector.limits.max_bytes,
        )

    @classmethod
    def read(cls, out: OutputFolder) -> Self | None:
        """The manifest of a folder, or None if it has none."""
        if not out.has(MANIFEST):
            return None
        try:
            return read_fields(cls, load_json(carried(out.read(MANIFEST))), where="manifest")
        except SchemaError as error:
            raise RunError(f"{out.name}/{MANIFEST}: {error}: update discopatch, or {OTHER_FOLDER}") from None

    def to_bytes(self) -> bytes:
        content = msgspec.json.format(msgspec.json.encode(asdict(self)), indent=1) + b"\n"
        return carrier(content, part_schema(self.components))

    def check_same(self, wanted: "Manifest", name: str) -> None:
        """Raises RunError with the first difference."""
        for each, own in asdict(self).items():
            if own != (given := getattr(wanted, each)):
                raise RunError(f"{name} was begun with {each} {own}, not {given}: give the same, or {OTHER_FOLDER}")


@dataclass
class Summary:
    """Numbers of images in a folder of scores; damaged shards are no images."""

    flagged: int = 0
    unusual_shapes: int = 0
    refusals: RefusalReport = field(default_factory=RefusalReport)
    reading: Reading = field(default_factory=Reading)

    @property
    def images(self) -> int:
        return self.refusals.accepted + self.refusals.count


class ScoresFolder:
    """A folder of scores; a part whose file is there is done.

    again: the files of parts that are done, and are scored once more.
    reading: what the listing of the source passed over.
    """

    def __init__(
        self,
        out: OutputFolder,
        manifest: Manifest,
        parts: tuple[Part, ...],
        again: frozenset[str] = frozenset(),
        reading: Reading | None = None,
    ) -> None:
        self.out, self.manifest, self.parts, self.again = out, manifest, parts, again
        self.reading = Reading() if reading is None else reading

    def is_scored(self, part: Part) -> bool:
        """Whether a part has its scores, and is not to be scored once more."""
        return part.file not in self.again and self.out.has(part.file)

    def done(self) -> list[Part]:
        """The parts that are done, by number."""
        names = self.out.names()
        return [part for part in self.parts if part.file in names]

    def write(self, part: Part, table: "pyarrow.Table") -> None:
        """Writes the scores of a part, unless its shard has changed in the meantime."""
        part.check_unchanged()
        self.out.write(part.file, to_parquet(table))

    def dataset(self, *, allow_incomplete: bool = False) -> "pyarrow.dataset.Dataset":
        """As `read_scores`."""
        parts = self.done()
        if len(parts) < len(self.parts) and not allow_incomplete:
            raise RunError(
                f"{self.out.name} has {len(parts):,} of {len(self.parts):,} parts: run the same command again, or "
                "allow_incomplete"
            )
        return self.scores(parts)

    def scores(self, parts: list[Part]) -> "pyarrow.dataset.Dataset":
        """The scores of some parts that are done."""
        import pyarrow.dataset

        paths, schema = [self.out.place(part.file) for part in parts], part_schema(self.manifest.components)
        return pyarrow.dataset.dataset(paths, schema=schema, format="parquet", filesystem=self.out.filesystem)

    def summary(self) -> Summary:
        """Counts the images of all parts that are done, and what was not read."""
        from pyarrow.dataset import field

        found = Summary(reading=deepcopy(self.reading))
        if not (parts := self.done()):
            return found
        data, reading = self.scores(parts), found.reading
        found.unusual_shapes = data.count_rows(filter=field("caution") == UNUSUAL_SHAPE)
        found.flagged = data.count_rows(filter=field("is_ood"))
        for batch in data.to_batches(columns=["name", "error", "shard", "row"], filter=field("error").is_valid()):
            for name, error, shard, row in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                if shard is not None and row is None:
                    reading.damaged[name] = error
                else:
                    found.refusals.add(Refusal(name, RefusalReason(error.partition(":")[0]), ""))
        found.refusals.accepted = data.count_rows() - found.refusals.count - len(reading.damaged)
        for fragment in data.get_fragments():
            notes = json.loads((fragment.metadata.metadata or {}).get(NOTES, b"{}"))
            reading.pass_over(*notes.get("names", ()), count=notes.get("passed_over", 0))
            reading.several = reading.several or tuple(notes.get("several", ()))
        return found

    def refused(self) -> frozenset[str]:
        """The files of parts with refused images, or of which a shard could not be read to its end."""
        from pyarrow.dataset import field

        refused = field("error").is_valid()
        fragments = self.scores(parts).get_fragments() if (parts := self.done()) else ()
        return frozenset(Path(each.path).name for each in fragments if each.count_rows(filter=refused))

    def predictions(self) -> Iterator[Prediction]:
        """All predictions without components; RunError if parts are missing."""
        for batch in self.dataset().to_batches(columns=["name", "score", "p_value", "is_ood", "error"]):
            for row in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                yield Prediction(*row)


def open_scores(out: Out) -> ScoresFolder:
    """The folder for reading."""
    folder = OutputFolder.open(out)
    if (manifest := Manifest.read(folder)) is None:
        raise RunError(f"{folder.name} has no scores: give the folder that `discopatch score --out` wrote")
    return ScoresFolder(folder, manifest, tuple(read_plans(folder)[0]))


def read_scores(out: Out, *, allow_incomplete: bool = False) -> "pyarrow.dataset.Dataset":
    """All scores of a folder as a dataset of pyarrow, in the order of the source.

    Raises RunError if parts are missing, unless `allow_incomplete`.
    """
    return open_scores(out).dataset(allow_incomplete=allow_incomplete)


def begin_scores(
    out: Out,
    detector: FittedDetector,
    source: object,
    *,
    per_part: int | None = None,
    allow_missing: bool = False,
    retry: bool = False,
    member: str | None = None,
) -> ScoresFolder:
    """The folder for the scores of a source, begun now or continued; with `retry` parts with refused images are left.

    Several processes may do this at once: each plan file is created once, and the others add what it lacks.
    """
    if per_part is not None and per_part < 1:
        raise ParameterError(f"per_part is {per_part}: a part holds at least 1 image")
    folder, wanted = OutputFolder.open(out), Manifest.of(detector)
    source = list(source) if isinstance(source, Iterator) else source
    check_outside(source, folder)
    folder.prepare()
    manifest = Manifest.read(folder)
    wanted = replace(wanted, per_part=per_part or (manifest or wanted).per_part)
    (manifest or wanted).check_same(wanted, folder.name)
    while True:
        before, generation = read_plans(folder)
        again = ScoresFolder(folder, wanted, tuple(before)).refused() if retry else frozenset[str]()
        found = list_source(source, member=member)
        listed = list_entries(found, detector.limits)
        done = folder.names() - again
        parts, new = plan_parts(listed, before, done, wanted.per_part, allow_missing=allow_missing)
        for part in new:  # of another version than the one that was scored
            if part.number < len(before) and before[part.number].file in again:
                folder.remove(before[part.number].file)
        rows = [(part.number, part.version, part.names) for part in new]
        content = gzip.compress(json.dumps(rows).encode(), compresslevel=1, mtime=0)
        if not new or folder.create(PLAN.format(generation), carrier(content, part_schema(wanted.components))):
            break
    if manifest is None and not folder.create(MANIFEST, wanted.to_bytes()):
        open_scores(folder).manifest.check_same(wanted, folder.name)
    return ScoresFolder(folder, wanted, tuple(parts), again, found.reading)


def check_outside(source: object, out: OutputFolder) -> None:
    """Raises ParameterError if the scores would lie among the images, where the next listing would find them."""
    place = out.name if out.local is None else str(resolved(out.local))
    for each in source if isinstance(source, list | tuple) else [source]:
        if isinstance(each, str | os.PathLike):
            top = parse(os.fspath(each))
            above = str(resolved(top) if isinstance(top, Path) else top).rstrip("/")
            if f"{place}/".startswith(f"{above}/"):
                raise ParameterError(f"{out.name} lies in {top}, among the images: {OTHER_FOLDER}")


def read_plans(out: OutputFolder) -> tuple[list[Part], int]:
    """All planned parts, and the number of plan files; later files replace parts whose shard has changed."""
    found: dict[int, Part] = {}
    generation = 0
    while out.has(PLAN.format(generation)):
        rows = json.loads(gzip.decompress(carried(out.read(PLAN.format(generation)))))
        found |= {number: Part(number, tuple(names), version) for number, version, names in rows}
        generation += 1
    return [found[number] for number in sorted(found)], generation


def rescore(scores: Out, detector: FittedDetector, out: Out) -> ScoresFolder:
    """Decides about stored scores again, at the false-alarm rate of `detector`; scores and p-values stay.

    The detector is the one that made the scores, at another rate: `detector.with_rate(0.05)`. Writes to a new folder;
    if it is interrupted, the same call continues.
    """
    import pyarrow.compute
    from pyarrow.parquet import read_table

    old, own, new = open_scores(scores), Manifest.of(detector), OutputFolder.open(out)
    if (old.manifest.detector, old.manifest.calibration) != (own.detector, own.calibration):
        raise RunError(f"{old.out.name} was scored by another detector: give that one, or score the images again")
    new.prepare()
    for generation in range(read_plans(old.out)[1]):
        new.create(PLAN.format(generation), old.out.read(PLAN.format(generation)))
    if not new.create(MANIFEST, replace(old.manifest, false_alarm_rate=own.false_alarm_rate).to_bytes()):
        raise RunError(f"{new.name} holds other scores: {OTHER_FOLDER}")
    folder = open_scores(new)
    done = folder.done()
    for part in old.done():
        if part not in done:
            table = read_table(old.out.place(part.file), filesystem=old.out.filesystem)
            is_ood = pyarrow.compute.greater(table["score"], detector.threshold_)
            folder.write(part, table.set_column(table.column_names.index("is_ood"), "is_ood", is_ood))
    return folder


# The plan of parts.


def plan_parts(
    listed: Mapping[str, Item | Shard | None],
    before: Sequence[Part],
    done: Container[str],
    per_part: int,
    *,
    allow_missing: bool,
) -> tuple[list[Part], list[Part]]:
    """All parts by number, and those that are new or have a changed shard.

    Each shard is one part, and each `per_part` successive loose images. Parts that were planned `before` stay, new
    images become new parts. Raises RunError if the source contradicts the files that are `done`, or lacks planned
    images, unless they are loose and `allow_missing`.
    """
    parts = [Part.of(part.number, part.names, listed, part.version) for part in before]
    new = [part for part, old in zip(parts, before, strict=True) if part.version != old.version]
    for part in new:
        if (old := before[part.number].file) in done:
            raise RunError(
                f"{part.names[0]} was changed after it was scored: restore it, remove {old}, or --retry a damaged one"
            )
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


def list_entries(source: Source, limits: Limits) -> dict[str, Item | Shard | None]:
    """The images and shards by name; None for a local image, whose name is its path.

    Raises ParameterError for duplicate names, and for images in memory, which a later run could not find.
    """
    listed: dict[str, Item | Shard | None] = {}
    for entry in source.entries(limits):
        if isinstance(entry, Item) and not isinstance(entry.content, Path | StorePath | Exception):
            raise ParameterError(f"{entry.name} is in memory, where a later run cannot find it: give paths")
        if entry.name in listed:
            raise ParameterError(f"{entry.name} is in the source twice: give each image once")
        is_local = isinstance(entry, Item) and isinstance(entry.content, Path) and str(entry.content) == entry.name
        listed[entry.name] = None if is_local else entry
    return listed


def version_of(shard: Shard) -> str:
    """Size and time of change of a shard, in a store as it was listed."""
    return " ".join(map(str, stamp_of(shard.place)))
