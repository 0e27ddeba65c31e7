"""Batches of a pipeline of one's own, in Ray Data, Daft or Spark: columns in, the same rows with scores out."""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, overload

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from discopatch.batch.packed import Loaded, LoadSettings, PackedDetector
from discopatch.errors import ImageError, ParameterError
from discopatch.images import DEFAULT_LIMITS, Decoder, Limits, RefusalReason
from discopatch.images.items import Item
from discopatch.images.stores import is_uri, parse, without_options
from discopatch.results import Predictions
from discopatch.utils import require

if TYPE_CHECKING:
    import pandas
    import pyarrow

Batch: TypeAlias = Mapping[str, NDArray[Any]]  # columns by name, each with one entry a row

NO_IMAGE = "no image in this row: leave the row out, or give its image"


class BatchScorer:
    """Scores the images in one column of a batch, and adds columns with the results; one instance a worker.

    detector: the path of a detector or an export, which workers must see too, or a detector as bytes:
        `Detector.map_batches` makes a scorer that carries its detector along.
    image: the column with the images: encoded as bytes, arrays (H, W, 3), paths, or as in Hugging Face datasets a dict
        of bytes and path. It is left out of the results, unless `keep_image`.
    prefix: stands before the names of the new columns.
    cores: how many threads decode and compute; as many as torch has unless given (Ray tells it by `num_cpus`).
    weights, device, batch_size, decoder, max_pixels, max_bytes: as in `discopatch.load`.

    The new columns are score, p_value, is_ood, error and for each component of the detector its z-score, such as
    z_content. A row whose image cannot be used has an error, no score (NaN) and no alarm; others have the error None.
    A scorer can be pickled; the detector is loaded when first needed, once a process.
    """

    def __init__(
        self,
        detector: Path | str | PackedDetector,
        *,
        image: str = "image",
        keep_image: bool = False,
        prefix: str = "",
        cores: int | None = None,
        weights: str | Sequence[str] = (),
        device: str = "auto",
        batch_size: int = 8,
        decoder: Decoder | None = None,
        max_pixels: int = DEFAULT_LIMITS.max_pixels,
        max_bytes: int = DEFAULT_LIMITS.max_bytes,
    ) -> None:
        self.detector = detector if isinstance(detector, PackedDetector) else Path(detector)
        self.image, self.keep_image, self.prefix = image, keep_image, prefix
        self.settings = LoadSettings(
            weights=(weights,) if isinstance(weights, str) else tuple(weights),
            device=device,
            batch_size=batch_size,
            decoder=decoder,
            cores=cores,
            limits=Limits(max_pixels=max_pixels, max_bytes=max_bytes),
        )

    @overload
    def __call__(self, batch: Batch) -> dict[str, NDArray[Any]]: ...
    @overload
    def __call__(self, batch: "pyarrow.Table") -> "pyarrow.Table": ...
    def __call__(self, batch: "Batch | pyarrow.Table") -> "dict[str, NDArray[Any]] | pyarrow.Table":
        """The columns of the batch, without the images, and those with the results.

        A table of Arrow stays one, and its types are those of `schema_after` in every batch, with nulls where an image
        was refused; of arrays an engine may take a column of errors without any for one without a type.
        """
        if not isinstance(batch, Mapping):
            return self._score_arrow(batch)
        self._check_columns(batch)
        if batch[self.image].dtype.kind == "S":
            raise ParameterError(
                f"{self.image!r} is an array of {batch[self.image].dtype}, which cuts zeros off the end of an image: "
                "give an array of objects, or arrow's binary"
            )
        kept = {name: column for name, column in batch.items() if self.keep_image or name != self.image}
        return kept | self._score(batch[self.image])

    def map_arrow(self, batches: "Iterable[pyarrow.RecordBatch]") -> "Iterator[pyarrow.RecordBatch]":
        """The same for record batches, as Spark's `mapInArrow` hands them out."""
        return map(self._score_arrow, batches)

    def map_pandas(self, frames: "Iterable[pandas.DataFrame]") -> "Iterator[pandas.DataFrame]":
        """The same for data frames, as Spark's `mapInPandas` hands them out."""
        for frame in frames:
            self._check_columns(frame.columns)
            kept = frame if self.keep_image else frame.drop(columns=self.image)
            yield kept.assign(**self._score(frame[self.image].to_numpy(object)))

    def schema_after(self, schema: "pyarrow.Schema | None" = None) -> "pyarrow.Schema":
        """The columns of the results in Arrow's types, behind those of `schema` that stay; loads the detector."""
        require("pyarrow", extra="parquet")
        import pyarrow

        fields = [each for each in schema or () if self.keep_image or each.name != self.image]
        types = {"score": pyarrow.float64(), "p_value": pyarrow.float64()}
        types |= {"is_ood": pyarrow.bool_(), "error": pyarrow.string()}
        types |= {f"z_{name}": pyarrow.float64() for name in self._loaded().predictor.component_names}
        return pyarrow.schema([*fields, *((f"{self.prefix}{name}", type_) for name, type_ in types.items())])

    def _check_columns(self, names: Iterable[str]) -> None:
        """ParameterError unless there is a column of images, and none that results would replace."""
        found = list(names)
        if self.image not in found:
            raise ParameterError(f"there is no column {self.image!r} among {found}: name that of the images, image=...")
        components = self._loaded().predictor.component_names
        new = {f"{self.prefix}{name}" for name in (*RESULTS, *(f"z_{each}" for each in components))}
        taken = new.intersection(found if self.keep_image else (name for name in found if name != self.image))
        if taken:
            raise ParameterError(
                f"the batch has {', '.join(sorted(taken))} already: choose another prefix, such as prefix='ood_'"
            )

    def _score_arrow(self, batch: Any) -> Any:
        """A table or a record batch of Arrow with the results."""
        require("pyarrow", extra="parquet")
        import pyarrow

        self._check_columns(batch.schema.names)
        results, schema = self._score(batch.column(self.image).to_pylist()), self.schema_after(batch.schema)
        errors = results[f"{self.prefix}error"]
        refused = np.array([error is not None for error in errors], bool)
        columns = [
            batch.column(field.name)
            if field.name not in results
            else pyarrow.array(errors, field.type)
            if results[field.name] is errors
            else pyarrow.array(results[field.name], field.type, mask=refused)
            for field in schema
        ]
        return type(batch).from_arrays(columns, schema=schema)

    def _loaded(self) -> Loaded:
        if isinstance(self.detector, PackedDetector):
            return loaded_packed(self.detector, self.settings)
        return loaded_path(self.detector, self.settings, last_change(self.detector))

    def _score(self, images: Iterable[object]) -> dict[str, NDArray[Any]]:
        """The new columns, one entry an image."""
        predictor, cores, lock = self._loaded()
        items = [item_of(value, row) for row, value in enumerate(images)]
        with lock:
            predictions = predictor.predict(items, workers=cores)
        found = columns_of(predictions, predictor.component_names)
        return {f"{self.prefix}{name}": column for name, column in found.items()}


RESULTS = ("score", "p_value", "is_ood", "error")


def columns_of(predictions: Predictions, components: Sequence[str]) -> dict[str, NDArray[Any]]:
    """Score, p-value, decision, error and the components' z-scores as arrays (images,), NaN where there are none."""
    columns: dict[str, NDArray[Any]] = dict(
        zip(RESULTS, (predictions.scores, predictions.p_values, predictions.is_ood, predictions.errors), strict=True)
    )
    for place, name in enumerate(components):
        z = [each.components[place].z if each.components else np.nan for each in predictions]
        columns[f"z_{name}"] = np.array(z, np.float64)
    return columns


def item_of(value: object, row: int) -> Item:
    """The image in one row of a batch; what is none is refused when it is read."""
    match value:
        case None | float():  # pandas has NaN where there is nothing
            return Item(str(row), ImageError(RefusalReason.MISSING, NO_IMAGE))
        case bytes() | Image.Image() | np.ndarray():
            return Item(str(row), value)
        case bytearray() | memoryview():
            return Item(str(row), bytes(value))
        case str() | os.PathLike():
            return item_at(os.fspath(value))
        case {"bytes": bytes() as content, "path": str() as path}:
            return Item(path, content)
        case {"bytes": bytes() as content}:
            return Item(str(row), content)
        case {"path": str() as path}:
            return item_at(path)
    detail = f"{type(value).__name__} is no image: give bytes, an array (H, W, 3) or a path"
    return Item(str(row), ImageError(RefusalReason.UNSUPPORTED, detail))


def item_at(path: str) -> Item:
    """An image in a file, here or in a store."""
    if not is_uri(path):
        return Item(path, Path(path))
    try:
        return Item(without_options(path), parse(path))
    except ParameterError as error:
        return Item(without_options(path), ImageError(RefusalReason.UNREADABLE, str(error)))


@lru_cache(maxsize=2)  # an engine makes its workers' functions anew for each task
def loaded_packed(detector: PackedDetector, settings: LoadSettings) -> Loaded:
    return detector.load(settings)


@lru_cache(maxsize=2)
def loaded_path(path: Path, settings: LoadSettings, changed: tuple[int, ...]) -> Loaded:
    """The detector at the path as it is since it was last changed."""
    return settings.load(path)


def last_change(path: Path) -> tuple[int, ...]:
    try:
        status = path.stat()
    except OSError:  # loading will say why
        return ()
    return status.st_size, status.st_mtime_ns
