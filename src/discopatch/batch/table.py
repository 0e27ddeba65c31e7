"""Predictions as Arrow tables, and the one way in which they become Parquet: the same rows are the same bytes."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Self

import numpy as np

from discopatch.batch.features import Layout
from discopatch.errors import SchemaError, ScoresError
from discopatch.images import Refusal, RefusalReason, RefusalReport
from discopatch.results import Prediction
from discopatch.schema import Count, load_json, read_fields
from discopatch.utils import legible

if TYPE_CHECKING:
    import pyarrow

    from discopatch.encoders import Features

Z = "z_"  # before the name of a component
COUNTS = b"discopatch"  # the key of what a file says of its rows
GROUP_ROWS, GROUP_BYTES = 10_000, 2**23  # of a row group: no more rows, and of features no more bytes
MOST_COUNT_BYTES = 2**20
MOST_EXAMPLES = 5  # names of refused images for each reason


@dataclass
class Counts:
    """How many images of some parts were flagged, and which were refused."""

    flagged: Count = 0
    refusals: RefusalReport = field(default_factory=RefusalReport)

    @property
    def images(self) -> int:
        return self.refusals.accepted + self.refusals.count

    def add(self, other: "Counts") -> None:
        self.flagged += other.flagged
        self.refusals.accepted += other.refusals.accepted
        for reason, count in other.refusals.refused.items():
            self.refusals.refused[reason] = self.refusals.refused.get(reason, 0) + count
            names = self.refusals.examples.setdefault(reason, [])
            names.extend(other.refusals.examples[reason][: MOST_EXAMPLES - len(names)])

    @classmethod
    def of(cls, table: "pyarrow.Table") -> Self:
        """Those of the rows of a part."""
        import pyarrow.compute

        counts = cls(pyarrow.compute.sum(table["is_ood"]).as_py() or 0)
        refused = table.filter(pyarrow.compute.is_valid(table["error"])).select(["name", "error"])
        for name, error in zip(*(column.to_pylist() for column in refused.columns), strict=True):
            counts.refusals.add(Refusal(name, RefusalReason(error.partition(":")[0]), ""))
        counts.refusals.accepted = table.num_rows - counts.refusals.count
        return counts

    @classmethod
    def read(cls, stored: bytes | None, where: str) -> Self:
        try:
            if stored is None or len(stored) > MOST_COUNT_BYTES:
                raise SchemaError("it does not say what it counts")
            return read_fields(cls, load_json(stored), where="counts")
        except SchemaError as error:
            raise ScoresError(f"{where} is no part of scores ({error}): remove it, and score again") from None

    def to_json(self) -> bytes:
        return json.dumps({"flagged": self.flagged, "refusals": self.refusals.to_dict()}).encode()


def score_schema(components: Iterable[str], layout: Layout | None = None) -> "pyarrow.Schema":
    """name, score, p_value, is_ood, error, the z-score of each component, and the kinds of features that are stored."""
    import pyarrow

    number = pyarrow.float64()
    return pyarrow.schema(
        [
            ("name", pyarrow.string()),
            ("score", number),
            ("p_value", number),
            ("is_ood", pyarrow.bool_()),
            ("error", pyarrow.string()),
            *((f"{Z}{name}", number) for name in components),
            *((kind, pyarrow.list_(pyarrow.float16())) for kind in (layout.kinds if layout else ())),
        ]
    )


def group_rows(layout: Layout | None) -> int:
    """Rows of a row group."""
    return GROUP_ROWS if layout is None else max(1, min(GROUP_ROWS, GROUP_BYTES // layout.row_bytes))


class TableBuilder:
    """Collects the rows of a part, and keeps those of full row groups as Arrow has them."""

    def __init__(self, components: Sequence[str], layout: Layout | None = None) -> None:
        self._schema, self._layout, self._rows = score_schema(components, layout), layout, group_rows(layout)
        self._components = tuple(components)
        self._predictions: list[Prediction] = []
        self._features: list[Features] = []
        self._groups: list[pyarrow.RecordBatch] = []

    def add(self, predictions: Iterable[Prediction], features: "Features | None" = None) -> None:
        """Adds the next images, and where features are stored those of the images that have a score."""
        self._predictions.extend(predictions)
        if features is not None and self._layout is not None:
            self._features.append(features)
        if len(self._predictions) >= self._rows:
            self._close_group()

    def _close_group(self) -> None:
        import pyarrow

        rows, self._predictions = self._predictions, []
        features, self._features = self._features, []
        columns: list[Any] = [
            pyarrow.array([legible(each.name) for each in rows], pyarrow.string()),
            pyarrow.array([each.score for each in rows], pyarrow.float64()),
            pyarrow.array([each.p_value for each in rows], pyarrow.float64()),
            pyarrow.array([each.is_ood for each in rows], pyarrow.bool_()),
            pyarrow.array([None if each.error is None else legible(each.error) for each in rows], pyarrow.string()),
        ]
        for place, _ in enumerate(self._components):
            z = [each.components[place].z if each.components else None for each in rows]
            columns.append(pyarrow.array(z, pyarrow.float64()))
        if self._layout is not None:
            columns += self._layout.arrays(features, np.array([each.error is None for each in rows], bool))
        self._groups.append(pyarrow.RecordBatch.from_arrays(columns, schema=self._schema))

    def table(self) -> "pyarrow.Table":
        """All rows."""
        import pyarrow

        if self._predictions:
            self._close_group()
        return pyarrow.Table.from_batches(self._groups, self._schema)


def write_scores(table: "pyarrow.Table", sink: Path | IO[bytes], *, rows: int) -> None:
    """Writes a part as Parquet, in row groups of so many rows.

    All that the bytes depend on is said here, and the rows of a group lie in one piece: how they were collected does
    not show.
    """
    import pyarrow
    import pyarrow.parquet

    plain = [field.name for field in table.schema if not pyarrow.types.is_list(field.type)]
    schema = table.schema.with_metadata({COUNTS: Counts.of(table).to_json()})
    with pyarrow.parquet.ParquetWriter(
        sink,
        schema,
        version="2.6",
        data_page_version="1.0",
        compression="zstd",
        compression_level=1,
        use_dictionary=["error"],
        write_statistics=plain,
    ) as writer:
        for start in range(0, table.num_rows, rows):
            group = table.slice(start, rows).combine_chunks().replace_schema_metadata(schema.metadata)
            writer.write_table(group, row_group_size=rows)


def read_counts(file: "pyarrow.parquet.ParquetFile", where: str) -> Counts:
    """What the part says of its rows, without reading them."""
    return Counts.read((file.metadata.metadata or {}).get(COUNTS), where)
