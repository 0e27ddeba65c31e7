"""Batches of images inside a pipeline of Ray Data, Daft or Spark: columns in, the same rows with scores out."""

from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Lock
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import numpy as np

from discopatch.batch.output import arrow_schema, to_table
from discopatch.errors import ImageError, ParameterError
from discopatch.hub import load
from discopatch.images import DEFAULT_WORKERS, Item, RefusalReason
from discopatch.images.items import stamp_of
from discopatch.images.stores import parse, without_options
from discopatch.results import FittedDetector
from discopatch.utils import require

if TYPE_CHECKING:
    import pyarrow

Batch = TypeVar("Batch", bound="pyarrow.Table | pyarrow.RecordBatch")
Packed: TypeAlias = tuple[tuple[str, bytes], ...]  # names and contents of files


def pack(path: Path) -> Packed:
    """The file of a detector, or all files of an export, for machines that do not see them."""
    files = sorted(each for each in path.rglob("*") if each.is_file()) if path.is_dir() else [path]
    return tuple((each.relative_to(path).as_posix(), each.read_bytes()) for each in files)


def load_detector(detector: Path | Packed, cores: int | None, options: Mapping[str, Any]) -> FittedDetector:
    """The detector or the export, which computes with so many threads."""
    if not isinstance(detector, Path):
        with TemporaryDirectory(prefix="discopatch-", ignore_cleanup_errors=True) as folder:
            top = Path(folder, "detector")
            for name, content in detector:
                path = top / name  # of a detector `top` itself
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)
            return load_detector(top, cores, options)
    if cores is not None and not detector.is_dir():
        import torch

        torch.set_num_threads(cores)
    return load(detector, **options)


@lru_cache(maxsize=2)  # engines unpickle a scorer for each task
def load_once(
    detector: Path | Packed, cores: int | None, options: tuple[tuple[str, Any], ...], stamp: object
) -> tuple[FittedDetector, Lock]:
    """The detector, which one thread at a time may use; another `stamp` loads a changed file again."""
    return load_detector(detector, cores, dict(options)), Lock()


class BatchScorer:
    """Scores the images in one column of an Arrow table and adds columns with the results.

    The new columns are those of `discopatch.results.column_types` without the name. A row whose image cannot be read
    has an error, and null elsewhere. A scorer can be pickled; each process loads the detector once.

    Parameters
    ----------
    detector : a fitted detector, or the path of a detector or an export, which all workers must see.
    image : name of the column with images: encoded bytes, tensors (H, W, 3), paths, or structs of bytes and path as in
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
        self._detector: FittedDetector | Path | Packed = kept
        self.image, self.keep_image, self.prefix = image, keep_image, prefix
        self._cores, self._options = cores, tuple(sorted(options.items()))

    def __getstate__(self) -> dict[str, Any]:
        if not isinstance(self._detector, FittedDetector):
            return vars(self)
        if not hasattr(self._detector, "save"):
            raise ParameterError("an export in memory cannot be sent to other processes: give the path of its folder")
        with TemporaryDirectory(prefix="discopatch-") as folder:
            self._detector.save(Path(folder, "detector"))
            return {**vars(self), "_detector": pack(Path(folder, "detector"))}

    def __call__(self, batch: Batch) -> Batch:
        """The columns of a table or record batch, and those with the results."""
        import pyarrow

        names, schema = batch.schema.names, self.schema_after(batch.schema)
        if self.image not in names:
            raise ParameterError(f"no column {self.image!r} among {names}: name the one with images, image=...")
        if taken := {name for name in names if schema.names.count(name) > 1}:
            raise ParameterError(f"the batch already has {', '.join(sorted(taken))}: choose a prefix, such as 'ood_'")
        images = batch.column(self.image)
        if isinstance(images.type, pyarrow.FixedShapeTensorType):
            flat = images.combine_chunks() if isinstance(images, pyarrow.ChunkedArray) else images
            images = list(flat.to_numpy_ndarray())
        else:
            images = images.to_pylist()
        detector, lock = self._load()
        items = [item_of(value, row) for row, value in enumerate(images)]
        with lock:
            predictions = detector.predict(items, workers=self._cores or DEFAULT_WORKERS)
        results = to_table(predictions, detector.column_names).drop_columns("name")
        kept = [batch.column(name) for name in names if self.keep_image or name != self.image]
        columns = [*kept, *(each.combine_chunks() for each in results.columns)]
        made: Batch = type(batch).from_arrays(columns, schema=schema)
        return made

    def map_arrow(self, batches: "Iterable[pyarrow.RecordBatch]") -> "Iterator[pyarrow.RecordBatch]":
        """The results for record batches, for `mapInArrow` of Spark."""
        return map(self, batches)

    def schema_after(self, schema: "pyarrow.Schema | None" = None) -> "pyarrow.Schema":
        """The columns of the results in Arrow's types, after those of `schema` that stay."""
        import pyarrow

        fields = [each for each in schema or () if self.keep_image or each.name != self.image]
        results = arrow_schema(self._load()[0].column_names)
        new = [each.with_name(self.prefix + each.name) for each in results if each.name != "name"]
        return pyarrow.schema([*fields, *new])

    def _load(self) -> tuple[FittedDetector, Lock]:
        if isinstance(self._detector, FittedDetector):
            return self._detector, Lock()
        stamp = stamp_of(self._detector) if isinstance(self._detector, Path) else ()
        return load_once(self._detector, self._cores, self._options, stamp)


def item_of(value: Any, row: int) -> Item:
    """The image of one row; a value that is no image is refused when it is read."""
    if isinstance(value, Mapping):
        value = value.get("path") if value.get("bytes") is None else value["bytes"]
    if isinstance(value, str):
        try:
            return Item(without_options(value), parse(value))
        except ParameterError as error:
            return Item(without_options(value), ImageError(RefusalReason.UNREADABLE, str(error)))
    if not isinstance(value, bytes | np.ndarray):
        detail = f"{type(value).__name__} is no image: give bytes, an array (H, W, 3) or a path, or remove the row"
        value = ImageError(RefusalReason.UNSUPPORTED, detail)
    return Item(str(row), value)
