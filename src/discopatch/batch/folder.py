"""A folder of scores: a manifest, the plan of parts, and one Parquet file for each part that is done.

Manifest and plan are Parquet files of the same columns without rows, and carry their content before the footer: readers
of a folder of Parquet skip them, or find no rows in them.
"""

import hashlib
import io
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, Self

import msgspec
import numpy as np

from discopatch.batch.kept import kept_schema, with_kept
from discopatch.batch.output import OutputFolder, carried, carrier, part_schema, to_parquet
from discopatch.batch.plan import NOTHING, OTHER_FOLDER, Listing, Part, from_lines, plan_parts, to_lines
from discopatch.calibration import ROUNDING
from discopatch.errors import ParameterError, RunError, SchemaError
from discopatch.images import Refusal, RefusalReason, RefusalReport, list_source
from discopatch.images.items import Reading
from discopatch.images.stores import Stamp, parse
from discopatch.results import CAUTIONS, CLASS, FittedDetector, Prediction, from_row
from discopatch.schema import Digest, Name, Positive, between, load_json, read_fields
from discopatch.utils import resolved

if TYPE_CHECKING:
    import pyarrow
    import pyarrow.dataset

MANIFEST, PLAN = "_manifest.parquet", "_plan-{:05d}.parquet"
NOTES = b"discopatch"  # key of the metadata of a part, where something was passed over
Out = str | os.PathLike[str] | OutputFolder


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """The detector and the settings with which a folder was begun."""

    kind: Literal["scores"] = "scores"
    format: Literal[4] = 4
    detector: Digest
    calibration: Digest  # of the calibration scores
    false_alarm_rate: Annotated[float, between(0, 1)]
    components: tuple[Name, ...]  # `column_names` of the detector
    max_pixels: Positive
    max_bytes: Positive
    per_part: Positive = 10_000  # images, about
    keep: tuple[Name, ...] = ()  # columns of the tables

    @classmethod
    def of(cls, detector: FittedDetector) -> Self:
        scores = np.ascontiguousarray(detector.calibration_.stored, "<f8")
        return cls(
            detector=detector.digest_,
            calibration=hashlib.sha256(scores.tobytes()).hexdigest()[:16],
            false_alarm_rate=detector.false_alarm_rate_,
            components=detector.column_names,
            max_pixels=detector.limits.max_pixels,
            max_bytes=detector.limits.max_bytes,
        )

    @classmethod
    def read(cls, out: OutputFolder) -> Self | None:
        """The manifest of a folder, or None if it has none."""
        if not out.has(MANIFEST):
            return None
        try:
            found = load_json(carried(out.read(MANIFEST)))
            if isinstance(found, dict) and found.get("format") in range(cls.format):
                raise RunError(f"{out.name} is of an older discopatch: finish it with that one, or {OTHER_FOLDER}")
            return read_fields(cls, found, where="manifest")
        except SchemaError as error:
            raise RunError(f"{out.name}/{MANIFEST}: {error}: update discopatch, or {OTHER_FOLDER}") from None

    def to_bytes(self, schema: "pyarrow.Schema") -> bytes:
        return carrier(msgspec.json.format(msgspec.json.encode(asdict(self)), indent=1) + b"\n", schema)

    def check_same(self, wanted: "Manifest", name: str) -> None:
        """Raises RunError with the first difference."""
        for each, own in asdict(self).items():
            if own != (given := getattr(wanted, each)):
                raise RunError(f"{name} was begun with {each} {own}, not {given}: give the same, or {OTHER_FOLDER}")


@dataclass
class Summary:
    """Numbers of images in a folder of scores; damaged shards are no images."""

    flagged: int = 0
    cautions: dict[str, int] = field(default_factory=dict)
    refusals: RefusalReport = field(default_factory=RefusalReport)
    reading: Reading = field(default_factory=Reading)

    @property
    def images(self) -> int:
        return self.refusals.accepted + self.refusals.count


class ScoresFolder:
    """A folder of scores; a part whose file is there is done.

    again: the files of parts that are done and are scored once more, as they are before that.
    reading: what the listing of the source passed over.
    """

    def __init__(
        self,
        out: OutputFolder,
        manifest: Manifest,
        parts: tuple[Part, ...],
        again: Mapping[str, Stamp] | None = None,
        reading: Reading | None = None,
    ) -> None:
        self.out, self.manifest, self.parts, self.again = out, manifest, parts, again or {}
        self.reading = Reading() if reading is None else reading

    @cached_property
    def schema(self) -> "pyarrow.Schema":
        """The columns of all files of the folder, of which those that are kept come last."""
        from pyarrow.parquet import read_schema

        return read_schema(io.BytesIO(self.out.read(MANIFEST)))

    def is_scored(self, part: Part) -> bool:
        """Whether a part has its scores, and is not to be scored once more."""
        return self.out.stamp(part.file) not in (None, self.again.get(part.file))

    def scored(self) -> set[str]:
        """The files that have their scores, and are not to be scored once more."""
        return {name for name, stamp in self.out.stamps().items() if stamp != self.again.get(name)}

    def done(self) -> list[Part]:
        """The parts that are done, by number."""
        names = self.out.names()
        return [part for part in self.parts if part.file in names]

    def write(self, part: Part, table: "pyarrow.Table") -> None:
        """Writes the scores of a part with its kept columns, unless its shard has changed in the meantime."""
        part.check_unchanged()
        self.out.write(part.file, to_parquet(with_kept(table, part, self.schema)))

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
        import pyarrow.dataset

        paths = [self.out.place(part.file) for part in parts]
        return pyarrow.dataset.dataset(paths, schema=self.schema, format="parquet", filesystem=self.out.filesystem)

    def summary(self) -> Summary:
        """Counts the images of all parts that are done, and what was not read."""
        from pyarrow.compute import match_substring
        from pyarrow.dataset import field

        found = Summary(reading=deepcopy(self.reading))
        if not (parts := self.done()):
            return found
        data, reading = self.scores(parts), found.reading
        found.cautions = {each: data.count_rows(filter=match_substring(field("caution"), each)) for each in CAUTIONS}
        found.flagged = data.count_rows(filter=field("is_ood"))
        damaged = 0  # of one shard, several parts may be
        for batch in data.to_batches(columns=["name", "error", "shard", "row"], filter=field("error").is_valid()):
            for name, error, shard, row in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                if shard is not None and row is None:
                    reading.damaged[name] = error
                    damaged += 1
                else:
                    found.refusals.add(Refusal(name, RefusalReason(error.partition(":")[0]), ""))
        found.refusals.accepted = data.count_rows() - found.refusals.count - damaged
        for fragment in data.get_fragments():
            notes = json.loads((fragment.metadata.metadata or {}).get(NOTES, b"{}"))
            reading.pass_over(*notes.get("names", ()), count=notes.get("passed_over", 0))
            reading.several = reading.several or tuple(notes.get("several", ()))
        return found

    def refused(self) -> dict[str, Stamp]:
        """The files of parts with refused images, or of which a shard could not be read to its end."""
        from pyarrow.dataset import field

        refused = field("error").is_valid()
        fragments = self.scores(parts).get_fragments() if (parts := self.done()) else ()
        stamps = self.out.stamps()
        names = (Path(each.path).name for each in fragments if each.count_rows(filter=refused))
        return {name: stamps[name] for name in names if name in stamps}

    def predictions(self) -> Iterator[Prediction]:
        """All predictions without components; RunError if parts are missing."""
        columns = ["name", "score", "p_value", "is_ood", "error", *[CLASS] * (CLASS in self.manifest.components)]
        for batch in self.dataset().to_batches(columns=columns):
            yield from map(from_row, batch.to_pylist())


def open_scores(out: Out) -> ScoresFolder:
    """The folder for reading."""
    folder = OutputFolder.open(out)
    if (manifest := Manifest.read(folder)) is None:
        raise RunError(f"{folder.name} has no scores: give the folder that `discopatch score --out` wrote")
    return ScoresFolder(folder, manifest, tuple(read_plans(folder)[0].values()))


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
    keep: Sequence[str] = (),
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
    wanted = replace(wanted, per_part=per_part or (manifest or wanted).per_part, keep=tuple(keep))
    (manifest or wanted).check_same(wanted, folder.name)
    while True:
        before, generation = read_plans(folder)
        again = ScoresFolder(folder, wanted, tuple(before.values())).refused() if retry else {}
        found = list_source(source, member=member)
        parts, changed, replaced = plan_parts(
            Listing(found, detector.limits), before, folder.names(), again, wanted.per_part, allow_missing=allow_missing
        )
        for part in replaced:
            folder.remove(part.file)
        schema = None if manifest is None else ScoresFolder(folder, manifest, ()).schema
        unknown = (
            parts if schema is None else changed
        )  # another process may have written the plan, and not the manifest
        schema = kept_schema(unknown, wanted.keep, part_schema(wanted.components), schema)
        if not changed or folder.create(PLAN.format(generation), carrier(to_lines(changed), schema)):
            break
    if manifest is None and not folder.create(MANIFEST, wanted.to_bytes(schema)):
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


def read_plans(out: OutputFolder) -> tuple[dict[int, Part], int]:
    """All planned parts by number, and the number of plan files; later files replace parts whose shard has changed."""
    found: dict[int, Part] = {}
    generation = 0
    while out.has(PLAN.format(generation)):
        found |= {part.number: part for part in from_lines(carried(out.read(PLAN.format(generation))))}
        generation += 1
    return {number: found[number] for number in sorted(found) if found[number].packed != NOTHING}, generation


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
    if not new.create(MANIFEST, replace(old.manifest, false_alarm_rate=own.false_alarm_rate).to_bytes(old.schema)):
        raise RunError(f"{new.name} holds other scores: {OTHER_FOLDER}")
    folder = open_scores(new)
    done = folder.done()
    for part in old.done():
        if part not in done:
            table = read_table(old.out.place(part.file), filesystem=old.out.filesystem)
            levels = {name: each.rate + ROUNDING for name, each in detector.calibration_.parts.items()}
            allowed: object = levels.get(None)
            if allowed is None:
                allowed = pyarrow.array([levels.get(name) for name in table[CLASS].to_pylist()], pyarrow.float64())
            is_ood = pyarrow.compute.less_equal(table["p_value"], allowed)
            folder.write(part, table.set_column(table.column_names.index("is_ood"), "is_ood", is_ood))
    return folder
