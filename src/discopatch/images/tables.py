"""Lists and tables of images: text files with one path a line, CSV with a column of paths, and Parquet.

A column of Parquet holds encoded images as bytes, or structs of `bytes` and `path` as Hugging Face `datasets` writes
them. Relative names of a list begin at its folder.
"""

import csv
import io
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from discopatch.errors import ImageError, ParameterError
from discopatch.images.formats import SIGNATURE_LENGTH, identify
from discopatch.images.image import Limits, RefusalReason
from discopatch.images.items import Item, Place, Shard, open_place, read_bytes
from discopatch.images.stores import StorePath, is_uri, parse, without_options
from discopatch.utils import escaped, require

# Where several columns could be meant, the first of these is taken.
IMAGE_COLUMNS = ("image", "img", "image_bytes", "bytes", "content", "data", "jpg", "jpeg", "png", "webp")
NAME_COLUMNS = ("name", "filename", "file_name", "path", "__key__", "key", "id", "image_id", "file", "uri")
PATH_COLUMNS = ("path", "file_name", "filename", "file", "name", "uri", "image")  # of CSV

_MAX_NAME = 4096  # bytes, as long as a path can be
_LIST_LIMITS = Limits(max_bytes=2**30)  # a list of ten million names
_BUFFER = 2**23  # bytes of one request
_SHOWN = 10  # columns that an error names


def listed_names(path: Path) -> list[Place | Item] | None:
    """The files that a text or CSV file names, a refusal for each name that cannot be used; None for an image.

    Of a text file, empty lines and lines that begin with # are left out: a file of such a name is written as ./#1.jpg.
    """
    try:
        data = read_bytes(path, _LIST_LIMITS)
        identify(data[:SIGNATURE_LENGTH])
        return None  # an image under the name of a list
    except ImageError as error:
        if error.reason is not RefusalReason.NOT_AN_IMAGE:
            return [] if error.reason is RefusalReason.EMPTY else [Item(str(path), error)]
    text = data.decode("utf-8", errors="surrogateescape").removeprefix("\ufeff")
    if path.suffix.lower() == ".csv":
        rows = csv.DictReader(io.StringIO(text, newline=""))
        column = next((name for name in PATH_COLUMNS if name in (rows.fieldnames or ())), None)
        if column is None:
            detail = f"no column of paths: name it {PATH_COLUMNS[0]}"
            return [Item(str(path), ImageError(RefusalReason.UNSUPPORTED, detail))]
        names = [row[column] for row in rows if row[column]]
    else:
        names = [line for line in text.replace("\r\n", "\n").split("\n") if line and not line.startswith("#")]
    return [_place_named(name, path.parent) for name in names]


def _place_named(name: str, folder: Path) -> Place | Item:
    if "\0" in name or len(name) > _MAX_NAME:
        return Item(name, ImageError(RefusalReason.MISSING, "no name of a file: write one path or URI a line"))
    try:
        return parse(name) if is_uri(name) else folder / name
    except ParameterError as error:
        return Item(without_options(name), ImageError(RefusalReason.UNSUPPORTED, str(error)))


@dataclass(frozen=True, slots=True)
class ParquetShard(Shard):
    """A Parquet file, read a row at a time; one that was `found` in a folder, without images in it, is left out."""

    place: Place
    column: str | None = None
    found: bool = False

    @property
    def name(self) -> str:
        return str(self.place) if self.column is None else f"{self.place}#{self.column}"

    def images(self, limits: Limits, chosen: frozenset[int] | None = None) -> Iterator[Item]:
        require("pyarrow", extra="parquet")
        from pyarrow.parquet import ParquetFile

        with closing(
            self.place.open_input() if isinstance(self.place, StorePath) else open_place(self.place)
        ) as source:
            file = ParquetFile(source, buffer_size=_BUFFER, pre_buffer=False, page_checksum_verification=True)
            try:
                columns = find_columns(file.schema_arrow, self.column)
            except ImageError:
                if self.found:
                    return
                raise
            rows = 0
            for group in range(file.metadata.num_row_groups):
                size = file.metadata.row_group(group).num_rows
                if chosen is not None and chosen.isdisjoint(range(rows, rows + size)):
                    yield from (Item("", b"") for _ in range(size))
                    rows += size
                    continue
                # A dictionary may hold one large image for all rows: several rows at once could take any memory.
                for batch in file.iter_batches(1, row_groups=[group], columns=columns, use_threads=False):
                    yield self._item(batch, columns, rows)
                    rows += 1

    def _item(self, batch: Any, columns: list[str], row: int) -> Item:
        """The image of a batch of one row."""
        (found,) = batch.to_pylist()
        image = found[columns[0]]
        path = image.get("path") if isinstance(image, dict) else None
        name = found[columns[1]] if len(columns) > 1 else path
        text = "" if name is None else str(name)
        content = image["bytes"] if isinstance(image, dict) else image
        if content is None:
            content = ImageError(RefusalReason.EMPTY, "no image in this row")
        return Item(f"{self.name}/{text if 0 < len(text) <= _MAX_NAME else f'{row:06d}'}", content)


def find_columns(schema: Any, wanted: str | None) -> list[str]:
    """The column of images and, where there is one, that of names; ImageError, with the remedy, without images."""
    holding = [field.name for field in schema if _holds_images(field.type)]
    if wanted is not None:
        if wanted not in holding:
            raise _no_column(schema, f"no images in a column {escaped(wanted)}")
        image = wanted
    else:
        named = [name for name in IMAGE_COLUMNS if name in holding]
        if not named and len(holding) != 1:
            raise _no_column(schema, "which column holds images is not clear" if holding else "no column of images")
        image = (named or holding)[0]
    names = [name for name in NAME_COLUMNS if name in schema.names and name != image]
    return [image, *[name for name in names if _is_name(schema.field(name).type)][:1]]


def _holds_images(kind: Any) -> bool:
    from pyarrow import types

    kind = getattr(kind, "storage_type", kind)
    kind = kind.value_type if types.is_dictionary(kind) else kind
    if types.is_struct(kind):
        return any(field.name == "bytes" and _holds_images(field.type) for field in kind)
    return bool(types.is_binary(kind) or types.is_large_binary(kind) or types.is_binary_view(kind))


def _is_name(kind: Any) -> bool:
    from pyarrow import types

    kind = kind.value_type if types.is_dictionary(kind) else kind
    return bool(types.is_string(kind) or types.is_large_string(kind) or types.is_integer(kind))


def _no_column(schema: Any, what: str) -> ImageError:
    names = [escaped(name)[:40] for name in schema.names[:_SHOWN]] + ["..."] * (len(schema.names) > _SHOWN)
    detail = f"{what} (columns: {', '.join(names)}): name the one with encoded images, as in photos.parquet#column"
    return ImageError(RefusalReason.UNSUPPORTED, detail)
