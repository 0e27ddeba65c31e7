"""A folder of scores: its manifest, its plan, and which parts are there; present means done."""

import hashlib
import io
import os
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from discopatch.batch.manifest import MANIFEST, OTHER_FOLDER, Manifest
from discopatch.batch.plan import Part, Plan, parts_of, plan_parts, table_of, without_gone
from discopatch.batch.store import LocalStore, Store
from discopatch.batch.table import Counts, group_rows, read_counts, write_scores
from discopatch.errors import ParameterError, ScoresError
from discopatch.images import Limits
from discopatch.images.stores import is_uri, without_options

if TYPE_CHECKING:
    import pyarrow
    import pyarrow.dataset

PLAN = "_plan-{:05d}.parquet"
SUFFIX = ".parquet"
MOST_PLANS = 100_000
READERS = 16  # that ask a store for the ends of files at once


class ScoresFolder:
    """The parts of a source, of which each is there or still to be done, by whichever process."""

    def __init__(self, store: Store, manifest: Manifest, parts: tuple[Part, ...]) -> None:
        self.store, self.manifest, self.parts = store, manifest, parts

    def has(self, part: Part) -> bool:
        return self.store.has(file_of(part))

    def present(self) -> list[Part]:
        """The parts that are done, by number."""
        names = set(self.store.names())
        return [part for part in self.parts if file_of(part) in names]

    def counts(self, parts: Iterable[Part]) -> Counts:
        """What was found in these parts, all of which are done; their rows are not read."""
        total = Counts()
        with ThreadPoolExecutor(READERS, "discopatch-counts") as pool:
            for counts in pool.map(self._count, parts):
                total.add(counts)
        return total

    def _count(self, part: Part) -> Counts:
        name = file_of(part)
        with self.store.open_parquet(name) as file:
            return read_counts(file, f"{self.store.name}/{name}")


def file_of(part: Part) -> str:
    return part.id + SUFFIX


def finish_part(folder: ScoresFolder, part: Part, table: "pyarrow.Table") -> Counts:
    """Writes the scores of a part, at once, and returns what was found in it; with that the part is done.

    ScoresError, and nothing is written, where its shard was changed meanwhile; OutputError where there is no room.
    """
    part.check_unchanged()
    rows = group_rows(folder.manifest.features)
    folder.store.write(file_of(part), partial(write_to, table, rows))
    return Counts.of(table)


def write_to(table: "pyarrow.Table", rows: int, path: object) -> None:
    write_scores(table, path, rows=rows)  # type: ignore[arg-type]


def begin_scores(
    store: Store, wanted: Manifest, source: object, *, limits: Limits, per_part: int | None, allow_gone: bool = False
) -> ScoresFolder:
    """The folder for the scores of a source, begun now or gone on with; `wanted` says with what.

    Several processes may do this at once: a plan is created once, and who comes second takes the first one's and adds
    what it lacks.
    """
    if isinstance(source, Iterator):
        source = list(source)
    check_outside(source, store)
    store.prepare()
    while True:
        found = Manifest.read(store)
        wanted = replace(wanted, per_part=per_part or (found or wanted).per_part)
        if found is not None:
            found.check_same(wanted, store.name)
        done = {name for name in store.names() if name.startswith("part-")}
        before, generations = read_plan(store, found)
        plan = plan_parts(source, per_part=wanted.per_part, limits=limits, before=before)
        plan = check_plan(store, plan, before, done, allow_gone=allow_gone)
        if not plan.new or create_plan(store, plan.new, generations):
            break
    if found is None:
        store.create(MANIFEST, replace(wanted, source=first_listing(store)).to_json())
        found = Manifest.read(store)
        assert found is not None
        found.check_same(wanted, store.name)
        read_plan(store, found)
    return ScoresFolder(store, found, plan.parts)


def check_outside(source: object, store: Store) -> None:
    """Raises ParameterError where the scores would be written among the images, and be found by the next listing."""
    for each in source if isinstance(source, list | tuple) else [source]:
        if not isinstance(each, str | os.PathLike):
            continue
        text = os.fspath(each)
        if isinstance(store, LocalStore):
            inside = (
                not is_uri(text) and Path(text).is_dir() and store.folder.resolve().is_relative_to(Path(text).resolve())
            )
        else:
            inside = f"{store.name}/".startswith(f"{without_options(text).rstrip('/')}/")
        if inside:
            raise ParameterError(f"{store.name} lies in {without_options(text)}, among the images: {OTHER_FOLDER}")


def begin_copy(store: Store, old: ScoresFolder, wanted: Manifest) -> ScoresFolder:
    """A folder for the same parts as another one has, begun now or gone on with."""
    store.prepare()
    found = Manifest.read(store)
    if found is not None:
        found.check_same(wanted, store.name)
    for generation in range(read_plan(old.store, old.manifest)[1]):
        name = PLAN.format(generation)
        content = old.store.read(name)
        store.create(name, content)
        if store.read(name) != content:
            raise ScoresError(f"{store.name} belongs to other scores than {old.store.name}: {OTHER_FOLDER}")
    if found is None:
        store.create(MANIFEST, wanted.to_json())
    folder = open_scores(store)
    folder.manifest.check_same(wanted, store.name)
    return folder


def open_scores(store: Store) -> ScoresFolder:
    """The folder as it is, to be read; its parts have names, but cannot be scored."""
    found = Manifest.read(store)
    if found is None:
        raise ScoresError(f"{store.name} has no scores: give the folder that `discopatch score --out` wrote")
    return ScoresFolder(store, found, tuple(read_plan(store, found)[0]))


def read_plan(store: Store, manifest: Manifest | None) -> tuple[list[Part], int]:
    """The parts that were planned so far, and in how many files; the first is the one that the manifest names."""
    generation, tables = 0, []
    while store.has(PLAN.format(generation)):
        with store.open_parquet(PLAN.format(generation)) as file:
            tables.append(file.read())
        generation += 1
    if manifest is not None and (not tables or first_listing(store) != manifest.source):
        raise ScoresError(
            f"{store.name} has another plan than its manifest says: copy the folder again, or {OTHER_FOLDER}"
        )
    return parts_of(tables), generation


def first_listing(store: Store) -> str:
    return hashlib.sha256(store.read(PLAN.format(0))).hexdigest()


def create_plan(store: Store, parts: tuple[Part, ...], generation: int) -> bool:
    """Whether it is these parts that were planned, or what another process found in its listing."""
    import pyarrow.parquet

    if generation >= MOST_PLANS:
        raise ScoresError(f"{store.name} was extended {generation:,} times: {OTHER_FOLDER}")
    content = io.BytesIO()
    pyarrow.parquet.write_table(table_of(parts), content, compression="zstd")
    store.create(PLAN.format(generation), content.getvalue())
    return store.read(PLAN.format(generation)) == content.getvalue()


def check_plan(store: Store, plan: Plan, before: list[Part], done: set[str], *, allow_gone: bool) -> Plan:
    """The plan, unless it does not belong to what is there already: ScoresError with the name of what differs."""
    known = {file_of(part) for part in before}
    if unknown := sorted(done - known):
        raise ScoresError(f"{store.name}/{unknown[0]} is no part of the plan: remove it, or {OTHER_FOLDER}")
    for part in plan.new:
        if part.number < len(before) and (old := file_of(before[part.number])) in done:
            raise ScoresError(
                f"{part.names[0]} was changed after it was scored: restore it, or remove {store.name}/{old} "
                "to score it again"
            )
    planned, gone = sum(len(part.names) for part in before), sum(map(len, plan.gone.values()))
    if before and planned == gone:
        raise ScoresError(
            f"{store.name} was begun with another source, which had {before[0].names[0]}: give the same, as it was "
            f"written then, or {OTHER_FOLDER}"
        )
    lost = {number: names for number, names in plan.gone.items() if file_of(plan.parts[number]) not in done}
    if not lost:
        return plan
    first = next(iter(lost.values()))[0]
    shards = [number for number in lost if plan.parts[number].version is not None]
    if shards or not allow_gone:
        raise ScoresError(
            f"{sum(map(len, lost.values())):,} names that were planned and not scored yet are gone from the source, "
            f"such as {first}: put them back, "
            + (f"or {OTHER_FOLDER}" if shards else "or let them count as refused (--allow-missing)")
        )
    parts = tuple(without_gone(part, lost.get(part.number, ())) for part in plan.parts)
    return plan._replace(parts=parts)
