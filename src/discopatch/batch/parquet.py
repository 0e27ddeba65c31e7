"""Predictions as Arrow tables and Parquet files: the same rows give the same bytes."""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from discopatch.results import Prediction, as_row, column_types
from discopatch.utils import legible

if TYPE_CHECKING:
    import pyarrow

ROW_GROUP = 10_000  # rows


def arrow_schema(components: Sequence[str] = ()) -> "pyarrow.Schema":
    """The columns of `results.column_types` in Arrow's types."""
    import pyarrow

    types = {str: pyarrow.string(), float: pyarrow.float64(), bool: pyarrow.bool_()}
    return pyarrow.schema([(name, types[each]) for name, each in column_types(components).items()])


def to_table(predictions: Iterable[Prediction], components: Sequence[str] = ()) -> "pyarrow.Table":
    """One row per prediction; bytes of names that are not Unicode are escaped."""
    import pyarrow

    return pyarrow.Table.from_pylist([legible_row(each, components) for each in predictions], arrow_schema(components))


def legible_row(prediction: Prediction, components: Sequence[str] = ()) -> Mapping[str, Any]:
    row = as_row(prediction, components)
    return row | {name: legible(row[name]) for name in ("name", "error") if row[name] is not None}


def to_parquet(table: "pyarrow.Table") -> "pyarrow.Buffer":
    """The bytes of a Parquet file with the rows, in row groups of at most `ROW_GROUP`."""
    import pyarrow
    import pyarrow.parquet

    sink = pyarrow.BufferOutputStream()
    pyarrow.parquet.write_table(
        table.combine_chunks(),  # the bytes do not depend on how the rows were collected
        sink,
        row_group_size=ROW_GROUP,
        version="2.6",
        data_page_version="1.0",
        compression="zstd",
        compression_level=1,
        use_dictionary=[name for name in ("error", "significant") if name in table.column_names],
    )
    return sink.getvalue()
