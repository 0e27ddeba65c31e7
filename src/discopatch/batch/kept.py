"""Columns of Parquet tables that stay beside the scores of their images, with their types."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING

from discopatch.batch.plan import OTHER_FOLDER, Part
from discopatch.errors import ImageError, ParameterError, RunError
from discopatch.images import Shard
from discopatch.images.decode import is_parquet
from discopatch.images.items import open_place
from discopatch.images.shards import find_columns

if TYPE_CHECKING:
    import pyarrow


def kept_schema(
    parts: Iterable[Part], keep: Sequence[str], own: "pyarrow.Schema", before: "pyarrow.Schema | None"
) -> "pyarrow.Schema":
    """The `own` columns and those to keep, whose types are those `before`, or of the tables in the parts.

    Raises ParameterError where a source has no such columns, or has them with other types.
    """
    import pyarrow
    from pyarrow.parquet import ParquetFile

    if taken := [name for name in keep if name in own.names]:
        raise ParameterError(f"{taken[0]} is a column of the scores: rename it in the tables, or do not keep it")
    schema, seen = before, set[str]()
    for entry in (part.source[0] for part in parts if keep and part.names):
        if not isinstance(entry, Shard) or not is_parquet(entry.place.name):
            raise ParameterError(f"{entry.name} has no columns to keep: give Parquet tables, or leave out --keep")
        if entry.name in seen:
            continue
        seen.add(entry.name)
        try:
            with open_place(entry.place) as file:
                columns = ParquetFile(file).schema_arrow
                find_columns(columns, entry.column)
        except (ImageError, OSError, pyarrow.ArrowInvalid):
            continue  # damaged, or without images: it has no rows, or one with the error
        if unknown := [name for name in keep if name not in columns.names]:
            raise ParameterError(f"{entry.name} has no column {unknown[0]}: keep some of {', '.join(columns.names)}")
        found = pyarrow.schema([*own, *((name, columns.field(name).type) for name in keep)])
        if schema is not None and found != schema:
            differ = next(name for name in keep if found.field(name) != schema.field(name))
            types = f"{found.field(differ).type}, not {schema.field(differ).type}"
            raise ParameterError(f"{differ} of {entry.name} is {types}: write it with one type, or {OTHER_FOLDER}")
        schema = found
    if schema is None and keep:
        raise ParameterError("no table can be read, so that columns to keep are not known: repair one")
    return own if schema is None else schema


def with_kept(table: "pyarrow.Table", part: Part, schema: "pyarrow.Schema") -> "pyarrow.Table":
    """The rows with the columns of their table that the schema has besides; null for a damaged shard."""
    import pyarrow
    from pyarrow.parquet import ParquetFile

    names, (shard, *_) = schema.names[table.num_columns :], part.source
    if not names or not isinstance(shard, Shard):
        return table
    first, count = part.rows.first if part.rows else 0, table.num_rows - table["row"].null_count
    kept = schema.empty_table().select(names)
    if count:
        try:
            with open_place(shard.place) as source:
                file = ParquetFile(source)
                sizes = (file.metadata.row_group(group).num_rows for group in range(file.metadata.num_row_groups))
                starts = list(accumulate(sizes, initial=0))
                begun, ended = bisect_right(starts, first) - 1, bisect_left(starts, first + count)
                kept = file.read_row_groups(range(begun, ended), columns=names).select(names)
                kept = kept.slice(first - starts[begun], count)
        except (ImageError, OSError, pyarrow.ArrowInvalid) as error:
            raise RunError(f"{shard.name}: {', '.join(names)} cannot be read ({error}): repair it") from error
    for name in names:
        nulls = pyarrow.nulls(table.num_rows - count, schema.field(name).type)
        table = table.append_column(schema.field(name), pyarrow.chunked_array([*kept[name].chunks, nulls]))
    return table
