"""Features from Parquet: those of `discopatch score --features`, or any with columns that are named after the kinds."""

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from discopatch.batch.folder import ScoresFolder, open_scores
from discopatch.batch.identity import encoder_digest
from discopatch.batch.manifest import MANIFEST
from discopatch.batch.read import FEATURE_ROWS, present_parts, read_features
from discopatch.batch.store import LocalStore, Store, open_store
from discopatch.encoders import Features, Kind
from discopatch.errors import ParameterError, ScoresError
from discopatch.streamed_fitting import FeatureStream

if TYPE_CHECKING:
    import pyarrow

    from discopatch.encoders import OutsideNetwork
    from discopatch.images import Transform
    from discopatch.model import Weights

KINDS: tuple[Kind, ...] = ("logits", "statistics", "pooled")
SUFFIX = ".parquet"


class ScoredFeatures(FeatureStream):
    """Those that were stored with scores, of the images that have one."""

    def __init__(self, folder: ScoresFolder, kinds: Collection[Kind]) -> None:
        self._folder, self._kinds, self.name = folder, kinds, folder.store.name
        if folder.manifest.features is None:
            raise ScoresError(f"{self.name} was scored without features: score again with --features")
        self._count = folder.counts(present_parts(folder)).refusals.accepted

    def __len__(self) -> int:
        return self._count

    def batches(self) -> Iterator[Features]:
        return (batch for batch in read_features(self._folder.store, kinds=self._kinds) if len(batch.logits))

    def check_encoder(
        self,
        weights: "Weights | None",
        networks: "Sequence[OutsideNetwork]",
        parameters: Mapping[str, Any],
        transform: "Transform",
    ) -> None:
        """Raises ParameterError where another encoder computed them than these weights and parameters make."""
        known = self._folder.manifest.detector
        if known.kind == "detector" and known.encoder != encoder_digest(weights, networks, parameters, transform):
            raise ParameterError(
                f"{self.name} has features of other networks, or of other patches: give the weights, patches, "
                "sampling, seed and precision of the detector that scored, or score again with these"
            )


class TableFeatures(FeatureStream):
    """Those of Parquet files, row by row: lists of as many numbers in each, in columns that are named after kinds."""

    def __init__(self, store: Store, files: Sequence[str], kinds: Collection[Kind]) -> None:
        self.name, self._store, self._files = store.name, store, files
        self._count, columns = 0, set(kinds)
        for name in files:
            with store.open_parquet(name) as file:
                self._count += file.metadata.num_rows
                columns &= set(file.schema_arrow.names)
        self._kinds = [kind for kind in KINDS if kind in columns]
        if "statistics" not in columns:
            raise ParameterError(
                f"{store.name} has no column named statistics in all of its files: name that of the features so; "
                "logits and pooled are taken too"
            )

    def __len__(self) -> int:
        return self._count

    def batches(self) -> Iterator[Features]:
        for name in self._files:
            with self._store.open_parquet(name) as file:
                done = 0
                for batch in file.iter_batches(FEATURE_ROWS, columns=self._kinds, use_threads=False):
                    where = f"{self._store.name}/{name}, rows from {done:,} on"
                    found: dict[str, Any] = {kind: rows_of(batch.column(kind), kind, where) for kind in self._kinds}
                    done += batch.num_rows
                    if batch.num_rows:
                        found.setdefault("logits", np.empty((batch.num_rows, 0), np.float32))
                        yield Features(**found)


def rows_of(column: "pyarrow.Array", kind: str, where: str) -> NDArray[np.float32]:
    """A column of lists as (rows, numbers); ParameterError unless all rows have as many, and none is missing."""
    import pyarrow

    kinds = pyarrow.types
    if not (kinds.is_list(column.type) or kinds.is_large_list(column.type) or kinds.is_fixed_size_list(column.type)):
        raise ParameterError(f"{where}: {kind} is of type {column.type}, where lists of numbers are due")
    if column.null_count:
        raise ParameterError(f"{where}: some images have no {kind}: leave such rows out")
    flat = column.flatten()
    if not kinds.is_floating(flat.type) or flat.null_count:
        raise ParameterError(f"{where}: {kind} holds {flat.type}, where numbers of 16, 32 or 64 bits are due")
    lengths = column.value_lengths().to_numpy(zero_copy_only=False)
    if len(np.unique(lengths)) > 1:
        raise ParameterError(f"{where}: rows of {kind} have different lengths: give as many numbers for each image")
    values: NDArray[np.float32] = flat.to_numpy(zero_copy_only=False).astype(np.float32)
    return values.reshape(len(column), -1)


def open_features(source: "str | os.PathLike[str]", kinds: Collection[Kind] = KINDS) -> FeatureStream:
    """The features at a path or an address: a folder that `discopatch score --features` wrote, or Parquet files."""
    store = open_store(source)
    wanted = {"statistics", *kinds} - {"places"}
    if store.has(MANIFEST):
        return ScoredFeatures(open_scores(store), wanted)
    if isinstance(store, LocalStore) and store.folder.is_file():
        return TableFeatures(LocalStore(store.folder.parent), [store.folder.name], wanted)
    files = sorted(name for name in store.names() if name.endswith(SUFFIX) and not name.startswith(("_", ".")))
    if not files:
        raise ParameterError(f"{store.name} has no Parquet files: give the folder that `discopatch score --out` wrote")
    return TableFeatures(store, files, wanted)
