"""A folder of scores: a manifest, the plan of parts, and one Parquet file for each part that is done.

Names of other files begin with an underscore and do not end in .parquet, so that readers of Parquet ignore them.
"""

import hashlib
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, Self

import msgspec
import numpy as np

from discopatch.batch.output import OutputFolder, arrow_schema, to_parquet
from discopatch.batch.plan import Part, plan_from_bytes, plan_parts, plan_to_bytes
from discopatch.errors import ParameterError, RunError, SchemaError
from discopatch.images import Refusal, RefusalReason, RefusalReport
from discopatch.images.stores import is_uri, without_options
from discopatch.results import FittedDetector, Prediction
from discopatch.schema import Digest, Name, Positive, between, load_json, read_fields

if TYPE_CHECKING:
    import pyarrow
    import pyarrow.dataset

MANIFEST, PLAN = "_manifest.json", "_plan-{:05d}.json.gz"
OTHER_FOLDER = "choose another folder"
Out = str | os.PathLike[str] | OutputFolder


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """The detector and the settings with which a folder was begun."""

    kind: Literal["scores"] = "scores"
    format: Literal[2] = 2
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
            return read_fields(cls, load_json(out.read(MANIFEST)), where="manifest")
        except SchemaError as error:
            raise RunError(f"{out.name}/{MANIFEST}: {error}: update discopatch, or {OTHER_FOLDER}") from None

    def to_bytes(self) -> bytes:
        return msgspec.json.format(msgspec.json.encode(asdict(self)), indent=1) + b"\n"

    def check_same(self, wanted: "Manifest", name: str) -> None:
        """Raises RunError with the first difference."""
        for each, own in asdict(self).items():
            if own != (given := getattr(wanted, each)):
                raise RunError(f"{name} was begun with {each} {own}, not {given}: give the same, or {OTHER_FOLDER}")


@dataclass
class Summary:
    """Numbers of images in a folder of scores."""

    flagged: int = 0
    refusals: RefusalReport = field(default_factory=RefusalReport)

    @property
    def images(self) -> int:
        return self.refusals.accepted + self.refusals.count


class ScoresFolder:
    """A folder of scores; a part whose file is there is done."""

    def __init__(self, out: OutputFolder, manifest: Manifest, parts: tuple[Part, ...]) -> None:
        self.out, self.manifest, self.parts = out, manifest, parts

    def done(self) -> list[Part]:
        """The parts that are done, by number."""
        names = self.out.names()
        return [part for part in self.parts if part.file in names]

    def write(self, part: Part, table: "pyarrow.Table") -> None:
        """Writes the scores of a part, unless its shard has changed in the meantime."""
        part.check_unchanged()
        self.out.write(part.file, to_parquet(table))

    def dataset(self, *, allow_incomplete: bool = False) -> "pyarrow.dataset.Dataset":
        """All scores in the order of the source; RunError if parts are missing and that is not allowed."""
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

        paths, schema = [self.out.place(part.file) for part in parts], arrow_schema(self.manifest.components)
        return pyarrow.dataset.dataset(paths, schema=schema, format="parquet", filesystem=self.out.filesystem)

    def summary(self) -> Summary:
        """Counts the images of all parts that are done."""
        from pyarrow.dataset import field

        if not (parts := self.done()):
            return Summary()
        data = self.scores(parts)
        found = Summary(data.count_rows(filter=field("is_ood")))
        for batch in data.to_batches(columns=["name", "error"], filter=field("error").is_valid()):
            for name, error in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                found.refusals.add(Refusal(name, RefusalReason(error.partition(":")[0]), ""))
        found.refusals.accepted = data.count_rows() - found.refusals.count
        return found

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
    out: Out, detector: FittedDetector, source: object, *, per_part: int | None = None, allow_missing: bool = False
) -> ScoresFolder:
    """The folder for the scores of a source, begun now or continued.

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
        limits, names = detector.limits, folder.names()
        parts, new = plan_parts(
            source, before, names, per_part=wanted.per_part, limits=limits, allow_missing=allow_missing
        )
        if not new or folder.create(PLAN.format(generation), plan_to_bytes(new)):
            break
    if manifest is None and not folder.create(MANIFEST, wanted.to_bytes()):
        open_scores(folder).manifest.check_same(wanted, folder.name)
    return ScoresFolder(folder, wanted, tuple(parts))


def check_outside(source: object, out: OutputFolder) -> None:
    """Raises ParameterError if the scores would lie among the images, where the next listing would find them."""
    place = out.name if out.local is None else str(out.local.resolve())
    for each in source if isinstance(source, list | tuple) else [source]:
        if isinstance(each, str | os.PathLike):
            text = os.fspath(each)
            top = without_options(text).rstrip("/") if is_uri(text) else str(Path(text).resolve())
            if f"{place}/".startswith(f"{top}/"):
                raise ParameterError(f"{out.name} lies in {without_options(text)}, among the images: {OTHER_FOLDER}")


def read_plans(out: OutputFolder) -> tuple[list[Part], int]:
    """All planned parts, and the number of plan files; later files replace parts whose shard has changed."""
    found: dict[int, Part] = {}
    generation = 0
    while out.has(PLAN.format(generation)):
        found |= plan_from_bytes(out.read(PLAN.format(generation)))
        generation += 1
    return [found[number] for number in sorted(found)], generation


def rescore(scores: Out, detector: FittedDetector, out: Out) -> ScoresFolder:
    """Decides about stored scores again, at the false-alarm rate of `detector`; scores and p-values stay.

    The detector is the one that made the scores, at another rate: `detector.with_rate(0.05)`. Writes to a new folder;
    if it is interrupted, the same call continues.
    """
    import pyarrow.compute

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
            table = old.scores([part]).to_table()
            is_ood = pyarrow.compute.greater(table["score"], detector.threshold_)
            folder.write(part, table.set_column(table.column_names.index("is_ood"), "is_ood", is_ood))
    return folder
