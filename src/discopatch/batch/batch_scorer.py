"""Batches of images inside a pipeline of Ray Data, Daft or Spark: columns in, the same rows with scores out."""

import os
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Lock
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, overload

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from discopatch.batch.output import arrow_schema, to_table
from discopatch.errors import ImageError, ParameterError
from discopatch.hub import load
from discopatch.images import DEFAULT_WORKERS, Item, RefusalReason
from discopatch.images.stores import parse, without_options
from discopatch.results import FittedDetector
from discopatch.utils import require

if TYPE_CHECKING:
    import pyarrow

Columns: TypeAlias = Mapping[str, NDArray[Any]]
FILE = "detector.safetensors"


class PackedDetector(NamedTuple):
    """The file of a detector, or all files of an export, as bytes for machines that do not see the files."""

    files: tuple[tuple[str, bytes], ...]

    @classmethod
    def read(cls, path: Path) -> "PackedDetector":
        if not path.is_dir():
            return cls(((FILE, path.read_bytes()),))
        found = sorted(each for each in path.rglob("*") if each.is_file())
        return cls(tuple((each.relative_to(path).as_posix(), each.read_bytes()) for each in found))

    def load(self, cores: int | None, options: Mapping[str, Any]) -> FittedDetector:
        """The detector, which computes with so many threads."""
        with TemporaryDirectory(prefix="discopatch-", ignore_cleanup_errors=True) as folder:
            for name, content in self.files:
                path = Path(folder, name)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)
            return load_with(Path(folder, FILE) if self.files[0][0] == FILE else Path(folder), cores, options)


def load_with(path: Path, cores: int | None, options: Mapping[str, Any]) -> FittedDetector:
    """The detector of a file, or the export of a folder, that computes with so many threads."""
    if cores is not None and not path.is_dir():
        import torch

        torch.set_num_threads(cores)
    return load(path, **options)


@lru_cache(maxsize=2)  # engines unpickle a scorer for each task
def load_once(
    detector: Path | PackedDetector, cores: int | None, options: tuple[tuple[str, Any], ...], stamp: object = None
) -> tuple[FittedDetector, Lock]:
    """The detector, which one thread at a time may use; another `stamp` loads a changed file again."""
    if isinstance(detector, Path):
        return load_with(detector, cores, dict(options)), Lock()
    return detector.load(cores, dict(options)), Lock()


class BatchScorer:
    """Scores the images in one column of a batch and adds columns with the results.

    The new columns are those of `discopatch.results.column_types` without the name. A row whose image cannot be read
    has an error, and null (NaN in arrays) elsewhere. A scorer can be pickled; each process loads the detector once.

    Parameters
    ----------
    detector : a fitted detector, or the path of a detector or an export, which all workers must see.
    image : name of the column with images: encoded bytes, arrays (H, W, 3), paths, or dicts with bytes and path as in
        Hugging Face datasets.
    keep_image : whether the results keep that column.
    prefix : put before the names of the new columns.
    cores : threads that decode and compute, by default those of the process.
    **options : as in `discopatch.load`, such as device or batch_size.

    Examples
    --------
    >>> dataset.map_batches(BatchScorer(detector), batch_format="pyarrow")  # doctest: +SKIP
    """

    def __init__(
        self,
        detector: FittedDetector | Path | str,
        *,
        image: str = "image",
        keep_image: bool = False,
        prefix: str = "",
        cores: int | None = None,
        **options: Any,
    ) -> None:
        require("pyarrow", extra="parquet")
        if cores is not None and cores < 1:
            raise ParameterError(f"cores is {cores}: give at least 1, or None for all")
        kept = detector if isinstance(detector, FittedDetector) else Path(detector)
        self._detector: FittedDetector | Path | PackedDetector = kept
        self.image, self.keep_image, self.prefix = image, keep_image, prefix
        self._cores, self._options = cores, tuple(sorted(options.items()))

    def __getstate__(self) -> dict[str, Any]:
        if not isinstance(self._detector, FittedDetector):
            return vars(self)
        if not hasattr(self._detector, "save"):
            raise ParameterError("an export in memory cannot be sent to other processes: give the path of its folder")
        with TemporaryDirectory(prefix="discopatch-") as folder:
            self._detector.save(Path(folder, FILE))
            return {**vars(self), "_detector": PackedDetector.read(Path(folder, FILE))}

    @overload
    def __call__(self, batch: Columns) -> dict[str, NDArray[Any]]: ...
    @overload
    def __call__(self, batch: "pyarrow.Table") -> "pyarrow.Table": ...
    def __call__(self, batch: "Columns | pyarrow.Table") -> "dict[str, NDArray[Any]] | pyarrow.Table":
        """The columns of a batch, and those with the results: arrays for a dict of arrays, a table for a table."""
        if not isinstance(batch, Mapping):
            return self._score_arrow(batch)
        self._check_columns(batch)
        if batch[self.image].dtype.kind == "S":
            raise ParameterError(f"{self.image!r} has type {batch[self.image].dtype}, which drops zeros: use objects")
        kept = {name: column for name, column in batch.items() if self.keep_image or name != self.image}
        results = self._score(batch[self.image])
        return kept | {name: results[name].to_numpy(zero_copy_only=False) for name in results.column_names}

    def map_arrow(self, batches: "Iterable[pyarrow.RecordBatch]") -> "Iterator[pyarrow.RecordBatch]":
        """The results for record batches, for `mapInArrow` of Spark."""
        return map(self._score_arrow, batches)

    def schema_after(self, schema: "pyarrow.Schema | None" = None) -> "pyarrow.Schema":
        """The columns of the results in Arrow's types, after those of `schema` that stay."""
        import pyarrow

        fields = [each for each in schema or () if self.keep_image or each.name != self.image]
        results = arrow_schema(self._load()[0].component_names)
        new = [each.with_name(self.prefix + each.name) for each in results if each.name != "name"]
        return pyarrow.schema([*fields, *new])

    def _check_columns(self, names: Iterable[str]) -> None:
        found = list(names)
        if self.image not in found:
            raise ParameterError(f"no column {self.image!r} among {found}: name the one with images, image=...")
        kept = set(found if self.keep_image else (name for name in found if name != self.image))
        if taken := kept.intersection(self.schema_after().names):
            raise ParameterError(f"the batch already has {', '.join(sorted(taken))}: choose a prefix, such as 'ood_'")

    def _score_arrow(self, batch: Any) -> Any:
        self._check_columns(batch.schema.names)
        results = self._score(batch.column(self.image).to_pylist()).combine_chunks()
        schema = self.schema_after(batch.schema)
        new = results.column_names
        columns = [results[name].chunk(0) if name in new else batch.column(name) for name in schema.names]
        return type(batch).from_arrays(columns, schema=schema)

    def _score(self, images: Iterable[object]) -> "pyarrow.Table":
        """The new columns, one row per image."""
        detector, lock = self._load()
        items = [item_of(value, row) for row, value in enumerate(images)]
        with lock:
            predictions = detector.predict(items, workers=self._cores or DEFAULT_WORKERS)
        table = to_table(predictions, detector.component_names).drop_columns("name")
        return table.rename_columns([self.prefix + name for name in table.column_names]).combine_chunks()

    def _load(self) -> tuple[FittedDetector, Lock]:
        if isinstance(self._detector, Path):
            status = self._detector.stat()
            return load_once(self._detector, self._cores, self._options, (status.st_size, status.st_mtime_ns))
        if isinstance(self._detector, PackedDetector):
            return load_once(self._detector, self._cores, self._options)
        return self._detector, Lock()


def item_of(value: Any, row: int) -> Item:
    """The image of one row; a value that is no image is refused when it is read."""
    if isinstance(value, Mapping):
        value = value.get("path") if value.get("bytes") is None else value["bytes"]
    if isinstance(value, str | os.PathLike):
        path = os.fspath(value)
        try:
            return Item(without_options(path), parse(path))
        except ParameterError as error:
            return Item(without_options(path), ImageError(RefusalReason.UNREADABLE, str(error)))
    if isinstance(value, bytes | bytearray | memoryview):
        return Item(str(row), bytes(value))
    if not isinstance(value, Image.Image | np.ndarray):
        detail = f"{type(value).__name__} is no image: give bytes, an array (H, W, 3) or a path, or remove the row"
        value = ImageError(RefusalReason.UNSUPPORTED, detail)
    return Item(str(row), value)
