"""Tables with a column of images: Parquet, and the Arrow files of Hugging Face `datasets`; read in bounded memory.

A column holds encoded images as bytes, structs of `bytes` and `path` as `datasets` writes them, or paths alone.
"""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Literal

from discopatch.errors import ImageError
from discopatch.images.files import check_bytes, open_regular, out_of_memory
from discopatch.images.image import Limits, RefusalReason
from discopatch.images.items import Item, Place, Shard
from discopatch.images.name_lists import MAX_NAME, place_named
from discopatch.images.stores import StorePath
from discopatch.utils import escaped, require

# Where several columns could be meant, the first of these is taken.
IMAGE_COLUMNS = ("image", "img", "image_bytes", "bytes", "content", "data", "jpg", "jpeg", "png", "webp")
PATH_COLUMNS = ("path", "file_name", "filename", "file", "name", "uri", "image", "image_path", "file_path", "key")
NAME_COLUMNS = ("name", "filename", "file_name", "path", "__key__", "key", "id", "image_id", "file", "uri")

_BUFFER = 2**23  # bytes of one request
_NAMES_AT_ONCE = 256
_SHOWN = 10  # columns that an error names
_FILE_MARK = b"ARROW1"


@dataclass(frozen=True, slots=True)
class Columns:
    """Which columns of a table are read, and what the first of them holds."""

    image: str
    kind: Literal["bytes", "struct", "path"]
    name: str | None

    @property
    def names(self) -> list[str]:
        return [self.image] if self.name in (None, self.image) else [self.image, str(self.name)]


@dataclass(frozen=True, slots=True)
class ParquetShard(Shard):
    """A Parquet file, read a row at a time; one that was `found` in a folder, without images in it, is passed over."""

    place: Place
    column: str | None = None
    found: bool = False

    @property
    def name(self) -> str:
        return table_name(self.place, self.column)

    def names_files(self) -> bool:
        """Whether it has no images, but a column of paths; False, too, where it cannot be read."""
        try:
            with closing(_open_input(self.place)) as source:
                return find_columns(_open_parquet(source).schema_arrow, self.column).kind == "path"
        except Exception:  # reading it will say why
            return False

    def _images(self, limits: Limits) -> Iterator[Item]:
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
                for batch in file.iter_batches(count, row_groups=[group], columns=columns.names, use_threads=False):
                    yield from items_of(batch, columns, self, rows, limits)
                    rows += batch.num_rows


@dataclass(frozen=True, slots=True)
class ArrowShard(Shard):
    """An Arrow file or stream; here it is mapped into memory, of a store one of its batches is held.

    Where no column was named, the one that the dataset itself calls its `feature` of images is read.
    """

    place: Place
    column: str | None = None
    feature: str | None = None

    @property
    def name(self) -> str:
        return table_name(self.place, self.column)

    def _images(self, limits: Limits) -> Iterator[Item]:
        require("pyarrow", extra="parquet")
        with closing(_open_mapped(self.place)) as source:
            columns, rows = None, 0
            for batch in _arrow_batches(source):
                if columns is None:
                    columns = find_columns(batch.schema, self.column or self.feature)
                selected = batch.select(columns.names)
                selected.validate(full=True)  # places in a damaged file may lie outside of it
                yield from items_of(selected, columns, self, rows, limits)
                rows += batch.num_rows


def table_name(place: Place, column: str | None) -> str:
    return str(place) if column is None else f"{place}#{column}"


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


def items_of(batch: Any, columns: Columns, shard: Shard, first: int, limits: Limits) -> Iterator[Item]:
    """The images of a batch of rows, the first of which has that number in the shard."""
    images = _storage(batch.column(columns.image))
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
        called = f"{shard.name}/{name if name else f'{first + row:06d}'}"
        if columns.kind != "path" and value.is_valid:
            yield Item(called, _content(value, limits))
        elif path:
            yield _file_item(called, path, shard.place.parent, by_path=columns.kind == "path")
        else:
            yield Item(called, ImageError(RefusalReason.EMPTY, "a row without an image"))


def _file_item(called: str, path: str, folder: Place, *, by_path: bool) -> Item:
    """A row that names a file, called as the file is where the table is a list."""
    place = place_named(path, folder)
    return Item(called if isinstance(place, ImageError) or not by_path else str(place), place)


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
    if not value.is_valid or (hasattr(value, "as_buffer") and value.as_buffer().size > MAX_NAME):
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

    if types.is_dictionary(kind):
        kind = kind.value_type
    return _is_string(kind) or bool(types.is_integer(kind))


def _storage(column: Any) -> Any:
    """The values of an extension type, such as Lance's of encoded images, as what they are stored as."""
    return getattr(column, "storage", column)


def _no_column(schema: Any, what: str) -> ImageError:
    names = [escaped(name)[:40] for name in schema.names[:_SHOWN]] + ["..."] * (len(schema.names) > _SHOWN)
    columns = f"(columns: {', '.join(names)})" if names else "(it has no columns)"
    detail = f"{what} {columns}: name the one with encoded images, as in photos.parquet#column"
    return ImageError(RefusalReason.UNSUPPORTED, detail)


def _open_input(place: Place) -> Any:
    return place.open_input() if isinstance(place, StorePath) else open_regular(place)


def _open_parquet(source: Any) -> Any:
    from pyarrow.parquet import ParquetFile

    return ParquetFile(source, buffer_size=_BUFFER, pre_buffer=False, page_checksum_verification=True)


def _open_mapped(place: Place) -> Any:
    if isinstance(place, StorePath):
        return place.open_input()
    import pyarrow

    open_regular(place).close()  # a pipe or a device cannot be mapped
    return pyarrow.memory_map(str(place))


def _arrow_batches(source: Any) -> Iterator[Any]:
    import pyarrow

    start = source.read(len(_FILE_MARK))
    source.seek(0)
    if start == _FILE_MARK:
        file = pyarrow.ipc.open_file(source)
        yield from map(file.get_batch, range(file.num_record_batches))
    else:
        yield from pyarrow.ipc.open_stream(source)
