"""Lists and tables of images: text files with one path a line, CSV with a column of paths, and Parquet.

A column of Parquet holds encoded images as bytes, structs of `bytes` and `path` as Hugging Face `datasets` writes them,
or paths alone. A list is the user's own: its files are read with the user's rights. Relative names begin at the folder
of the list; a list in a store cannot name local files.
"""

import csv
import io
import posixpath
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from discopatch.errors import ImageError, ParameterError
from discopatch.images.formats import SIGNATURE_LENGTH, identify
from discopatch.images.image import Limits, RefusalReason, check_bytes
from discopatch.images.items import Item, Place, Shard, open_place, out_of_memory, read_bytes
from discopatch.images.stores import StorePath, is_uri, parse, without_options
from discopatch.utils import escaped, require

# Where several columns could be meant, the first of these is taken.
IMAGE_COLUMNS = ("image", "img", "image_bytes", "bytes", "content", "data", "jpg", "jpeg", "png", "webp")
PATH_COLUMNS = ("path", "file_name", "filename", "file", "name", "uri", "image", "image_path", "file_path", "key")
NAME_COLUMNS = ("name", "filename", "file_name", "path", "__key__", "key", "id", "image_id", "file", "uri")

_MAX_NAME = 4096  # bytes, as long as a path can be
_LIST_LIMITS = Limits(max_bytes=2**30)  # a list of ten million names
_BUFFER = 2**23  # bytes of one request
_NAMES_AT_ONCE = 256
_SHOWN = 10  # columns that an error names


def listed_names(place: Place) -> list[Place | Item] | None:
    """The files that a text or CSV file names, a refusal for each name that cannot be used; None for an image.

    Of a text file, empty lines and lines that begin with # are left out: a file of such a name is written as ./#1.jpg.
    """
    try:
        with open_place(place) as file:
            identify(file.read(SIGNATURE_LENGTH))
        return None  # an image under the name of a list
    except ImageError as error:
        if error.reason is not RefusalReason.NOT_AN_IMAGE:
            return [Item(str(place), error)]
    try:
        text = read_bytes(place, _LIST_LIMITS).decode("utf-8", errors="surrogateescape").removeprefix("\ufeff")
    except ImageError as error:
        return [] if error.reason is RefusalReason.EMPTY else [Item(str(place), error)]
    if place.name.lower().endswith(".csv"):
        rows = csv.DictReader(io.StringIO(text, newline=""))
        column = next((name for name in PATH_COLUMNS if name in (rows.fieldnames or ())), None)
        if column is None:
            detail = f"no column of paths: name it {', '.join(PATH_COLUMNS[:3])} or {PATH_COLUMNS[3]}"
            return [Item(str(place), ImageError(RefusalReason.UNSUPPORTED, detail))]
        names = [row[column] for row in rows if row[column]]
    else:
        names = [line for line in text.replace("\r\n", "\n").split("\n") if line and not line.startswith("#")]
    found = ((name, place_named(name, place.parent)) for name in names)
    return [Item(without_options(name), each) if isinstance(each, ImageError) else each for name, each in found]


def place_named(name: str, folder: Place) -> Place | ImageError:
    """The file that a list in the folder names; ImageError where it may not be read."""
    if "\0" in name or len(name) > _MAX_NAME:
        return ImageError(RefusalReason.MISSING, "no name of a file: write one path or URI a line")
    if is_uri(name):
        try:
            found = parse(name)
        except ParameterError as error:
            return ImageError(RefusalReason.UNSUPPORTED, str(error))
    elif isinstance(folder, Path) or name.startswith("/"):
        found = folder / name if isinstance(folder, Path) else Path(name)
    else:
        path = posixpath.normpath(posixpath.join(folder.path, name))
        if path.startswith(".."):
            return ImageError(RefusalReason.MISSING, "a name that leads out of the bucket: check the list")
        return StorePath(folder.store, path)
    if isinstance(folder, StorePath):
        if isinstance(found, Path):
            detail = "a list in a store names a local file, which is not read: copy the list here"
            return ImageError(RefusalReason.UNSUPPORTED, detail)
        if str(found.store) == str(folder.store) and not found.store.query:
            return StorePath(folder.store, found.path)  # with the options of the list's own URI
    return found


@dataclass(frozen=True, slots=True)
class Columns:
    """The columns of a table that are read, and what the first of them holds."""

    image: str
    kind: Literal["bytes", "struct", "path"]
    name: str | None

    @property
    def names(self) -> list[str]:
        return [self.image] if self.name is None else [self.image, self.name]


@dataclass(frozen=True, slots=True)
class ParquetShard(Shard):
    """A Parquet file, read a row at a time; one that was `found` in a folder, without images in it, is left out."""

    place: Place
    column: str | None = None
    found: bool = False

    @property
    def name(self) -> str:
        return str(self.place) if self.column is None else f"{self.place}#{self.column}"

    def names_files(self) -> bool:
        """Whether it has no images, but a column of paths; False, too, where it cannot be read."""
        try:
            with closing(_open_input(self.place)) as source:
                return find_columns(_open_parquet(source).schema_arrow, self.column).kind == "path"
        except Exception:  # files of any making; reading it gives the reason
            return False

    def images(self, limits: Limits, chosen: frozenset[int] | None = None) -> Iterator[Item]:
        require("pyarrow", extra="parquet")
        with closing(_open_input(self.place)) as source:
            file = _open_parquet(source)
            try:
                columns = find_columns(file.schema_arrow, self.column)
            except ImageError:
                if self.found:
                    return
                raise
            if self.found and columns.kind == "path":
                return
            # A dictionary may hold one large image for all rows: several rows at once could take any memory.
            count = _NAMES_AT_ONCE if columns.kind == "path" else 1
            rows = 0
            for group in range(file.metadata.num_row_groups):
                size = file.metadata.row_group(group).num_rows
                if chosen is not None and chosen.isdisjoint(range(rows, rows + size)):
                    yield from (Item("", b"") for _ in range(size))
                    rows += size
                    continue
                for batch in file.iter_batches(count, row_groups=[group], columns=columns.names, use_threads=False):
                    yield from self._items(batch, columns, rows, limits)
                    rows += batch.num_rows

    def _items(self, batch: Any, columns: Columns, first: int, limits: Limits) -> Iterator[Item]:
        """The images of a batch of rows, the first of which has that number in the table."""
        images = getattr(batch.column(columns.image), "storage", batch.column(columns.image))  # of an extension type
        names = None if columns.name is None else batch.column(columns.name)
        has_path = columns.kind == "struct" and any(field.name == "path" for field in images.type)
        for row in range(batch.num_rows):
            value, path = _plain(images[row]), None
            if columns.kind == "struct":
                path = _text(value["path"]) if value.is_valid and has_path else None
                value = value["bytes"] if value.is_valid else value
            elif columns.kind == "path":
                path = _text(value)
            name = _text(_plain(names[row])) if names is not None else path
            called = f"{self.name}/{name or f'{first + row:06d}'}"
            if columns.kind != "path" and value.is_valid:
                yield Item(called, _content(value, limits))
            elif path:
                place = place_named(path, self.place.parent)
                is_list = columns.kind == "path" and not isinstance(place, ImageError)
                yield Item(str(place) if is_list else called, place)
            else:
                yield Item(called, ImageError(RefusalReason.EMPTY, "a row without an image"))


def find_columns(schema: Any, wanted: str | None) -> Columns:
    """The columns of an Arrow schema that hold images and their names; ImageError, with the remedy, without images."""
    kinds = {field.name: kind for field in schema if (kind := _kind_of(field.type)) is not None}
    if wanted is not None:
        if wanted not in kinds:
            what = "holds neither images nor paths" if wanted in schema.names else "is not there"
            raise _no_column(schema, f"its column {escaped(wanted)} {what}")
        image = wanted
    else:
        holding = [name for name, kind in kinds.items() if kind != "path"]
        named = [name for name in IMAGE_COLUMNS if name in holding]
        paths = [name for name in PATH_COLUMNS if name in kinds]
        if not holding and paths:
            image = paths[0]
        elif named or len(holding) == 1:
            image = (named or holding)[0]
        else:
            raise _no_column(schema, "which column holds images is not clear" if holding else "no column of images")
    names = (name for name in NAME_COLUMNS if name in schema.names and name != image)
    name = next((name for name in names if _is_name(schema.field(name).type)), None)
    return Columns(image, kinds[image], name)  # type: ignore[arg-type]


def _content(value: Any, limits: Limits) -> bytes | ImageError:
    buffer = value.as_buffer()
    try:
        check_bytes(buffer.size, limits)
        data: bytes = buffer.to_pybytes()
    except ImageError as error:
        return error
    except MemoryError:
        return out_of_memory(buffer.size)
    return data


def _plain(value: Any) -> Any:
    """The value itself of one that stands in a dictionary."""
    return value.value if value.is_valid and hasattr(value, "dictionary") else value


def _text(value: Any) -> str | None:
    """A name or path of a table; None where there is none, or one that is too long for a file."""
    if not value.is_valid or (hasattr(value, "as_buffer") and value.as_buffer().size > _MAX_NAME):
        return None
    text = value.as_py()
    return text.decode(errors="surrogateescape") if isinstance(text, bytes) else str(text)


def _kind_of(kind: Any) -> str | None:
    from pyarrow import types

    kind = getattr(kind, "storage_type", kind)
    kind = kind.value_type if types.is_dictionary(kind) else kind
    if _is_binary(kind):
        return "bytes"
    if types.is_struct(kind):
        held = [field for field in kind if field.name == "bytes"]
        return "struct" if len(held) == 1 and _is_binary(held[0].type) else None
    return "path" if _is_string(kind) else None


def _is_binary(kind: Any) -> bool:
    from pyarrow import types

    return bool(types.is_binary(kind) or types.is_large_binary(kind) or types.is_binary_view(kind))


def _is_string(kind: Any) -> bool:
    from pyarrow import types

    return bool(types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind))


def _is_name(kind: Any) -> bool:
    from pyarrow import types

    kind = kind.value_type if types.is_dictionary(kind) else kind
    return _is_string(kind) or bool(types.is_integer(kind))


def _no_column(schema: Any, what: str) -> ImageError:
    names = [escaped(name)[:40] for name in schema.names[:_SHOWN]] + ["..."] * (len(schema.names) > _SHOWN)
    columns = f"(columns: {', '.join(names)})" if names else "(it has no columns)"
    detail = f"{what} {columns}: name the one with encoded images, as in photos.parquet#column"
    return ImageError(RefusalReason.UNSUPPORTED, detail)


def _open_input(place: Place) -> Any:
    return place.open_input() if isinstance(place, StorePath) else open_place(place)


def _open_parquet(source: Any) -> Any:
    from pyarrow.parquet import ParquetFile

    return ParquetFile(source, buffer_size=_BUFFER, pre_buffer=False, page_checksum_verification=True)
